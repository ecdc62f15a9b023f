"""HTTP listener of a node, and the web console of a cluster.

The listener reads the counters of the rooms below on request and changes nothing; a node imports it only if
it is configured. The console (`web/`) is a process of its own, and no node imports it.
"""
