"""The local tier: segments in Apache Kafka's own files, indexes, producers, epochs, retention, recovery.

Owns everything below a log directory. It must not know of requests, the bucket, leadership or the metadata
quorum: callers pass the leader epoch to stamp, the high watermark to respect, and the offset up to which the
bucket has everything.
"""
