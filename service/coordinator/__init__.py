"""Runtime of log-backed coordinators: decide, append, replay, await the high watermark, respond.

Turns a shard's decisions into records of one partition's log, and rebuilds its state from that log. It knows
neither what the records mean, nor metadata or partitions: `ports` declares what it needs of them.
"""
