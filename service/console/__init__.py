"""What a node shows over HTTP, and the console that shows a cluster.

The listener reads the counters of the rooms below when it is asked, and changes nothing; it is imported only
where one is configured. The console (`web/`) is a process of its own and no node imports it.
"""
