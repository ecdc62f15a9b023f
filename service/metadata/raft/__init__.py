"""Raft for the metadata log (KRaft): elections, replication and commit of its batches.

`machine` decides [P]; `log`, `log_check`, `durable_offset`, `state_file` and `snapshots` do the disk I/O;
`runtime` runs the machine on the event loop. This room knows bytes and offsets only: the publisher interprets
the records.
"""
