"""The metadata quorum: who leads in which epoch, and how far its log is committed.

`machine` decides [P]; `log`, `state_file` and `snapshots` are the disk; `runtime` joins them on the loop.
"""
