"""What a node shows over HTTP: metrics, health, version.

Reads the counters of the rooms below when it is asked, and changes nothing. Nobody imports it but the command
line, and only where a listener is configured.
"""
