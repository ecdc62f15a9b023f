"""The *machines* world: Raft machines alone, on model disks and a model network, fast, for breadth.

No file, no thread, no asyncio: events lie in one heap, by virtual time. What the shell does with effects is
done here in the same order, and each disk write takes its time and may be the last.
"""
