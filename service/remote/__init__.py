"""Object storage: the bucket's layout and formats, the stores that hold it, and the readers of cold data.

Owns every byte in the bucket (docs/bucket-format.md) and the threads that read it. Knows nothing of brokers,
leaders, Raft or the local log: `service.tiering` decides who writes which segment when.
"""
