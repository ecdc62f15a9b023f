"""The cluster world: three or five whole nodes on one deterministic loop, each with a disk of its own.

What lies between them is `simulator.network`, with links that are cut, slow, or reset connections.
"""
