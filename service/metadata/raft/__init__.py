"""The metadata quorum: who leads in which epoch, and how far its log is committed. Bytes and offsets only.

`machine` decides [P]; `log`, `log_check`, `durable_offset`, `state_file` and `snapshots` are the disk;
`runtime` joins them on the loop. What the bytes say is the publisher's business.
"""
