"""The runtime of log-backed coordinators: decide, append, replay, wait for the high watermark, answer.

Owns how a shard's decisions become records of one partition's log and its state is made of that log again.
It must not know what the records mean, nor of metadata and partitions: `ports` says what it needs of them.
"""
