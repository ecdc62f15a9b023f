"""The ground floor: names, errors, and the world as parameters: clock, disk, threads.

Knows nothing of Kafka's messages or of storage.
"""
