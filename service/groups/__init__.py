"""Consumer groups: offsets, classic groups and KIP-848 groups, as shards over `__consumer_offsets`.

Defines what a group is and what its records mean. All of it is pure: time, ids and topics are arguments. It
knows neither connections, nor the log, nor how a decision becomes durable (`service/coordinator`).
"""
