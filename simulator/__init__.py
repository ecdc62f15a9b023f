"""A world in which whole nodes run in virtual time, with a disk, a bucket and a network that fail on demand.

Imports `service`, never the reverse. One seed is one history: the same calls, the same faults, the same
trace.
"""
