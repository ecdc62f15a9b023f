"""Counters of groups and offsets, exported under Kafka's names. [P]"""

from __future__ import annotations


class GroupMetrics:
    """Plain counters, one instance for all shards of a node."""

    __slots__ = (
        "classic_rebalances_completed",
        "consumer_rebalances",
        "offset_commits",
        "offset_deletions",
        "offset_expirations",
    )

    def __init__(self) -> None:
        self.offset_commits = 0
        self.offset_expirations = 0
        self.offset_deletions = 0
        self.classic_rebalances_completed = 0
        self.consumer_rebalances = 0
