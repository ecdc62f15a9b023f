"""A world in which whole nodes run under virtual time, with a disk, a bucket and a network that fail as told.

Imports `service`, never the reverse. One seed is one history: the same calls, the same faults, the same
trace.
"""
