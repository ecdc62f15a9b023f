"""Offline tools: dumpers of every format that Firn writes, and check, sweep and repair of a bucket.

Owns the form of a dump, the choice of its decoder, and the checks and repairs that need no broker. The
decoders are those of the rooms that own the formats; nothing is parsed a second time here. Must not know:
brokers, sockets.
"""
