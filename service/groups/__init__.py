"""Consumer groups: the state of a group coordinator's partition as a shard for the runtime of `coordinator`.

Classic groups and their rounds, KIP-848 groups and their assignors, offsets and their end. All of it is pure: time,
ids and topics come in as arguments. Must not know: logs, metadata, sockets, asyncio.
"""
