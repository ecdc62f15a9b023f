"""Consumer groups: their offsets, classic groups and those of KIP-848, as shards over `__consumer_offsets`.

Owns what a group is and what its records say. All of it is pure: time, ids and topics come in as arguments.
It must not know of connections, of the log, nor of how a decision becomes durable (`service/coordinator`).
"""
