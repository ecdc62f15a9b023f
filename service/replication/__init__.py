"""Replication of a partition: the leader's state of its followers, and the fetchers that copy a leader's log.

State machines decide here: what is committed, which replicas are in sync, what to fetch, append and truncate.
Their callers pass in the metadata image, the controller's responses and the connections; nothing here imports
a room above.
"""
