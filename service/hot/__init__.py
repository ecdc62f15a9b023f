"""The local tier: segments in Apache Kafka's own files, indexes, producers, epochs, retention, recovery.

Owns everything below a log directory. It must not know of requests, of the bucket, of leadership or of the
metadata quorum: it is told the leader epoch to stamp, the high watermark to respect and the offset up to
which the bucket holds everything.
"""
