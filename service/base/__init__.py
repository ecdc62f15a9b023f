"""Names, errors, and the world as parameters: clock, disk, threads. The lowest room.

Imports nothing of Kafka's messages or of storage.
"""
