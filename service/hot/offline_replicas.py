"""Replicas that could not be opened, and why; no log is made under their names."""

from __future__ import annotations

from collections.abc import Iterator

from service.base.errors import CorruptionError
from service.base.types import TopicIdPartition
from service.hot.checkpoints import Name
from service.hot.log_dir import LogDir
from service.hot.opening import NO_TOPIC_ID, OfflineReplica
from service.hot.state import LogOffline


class OfflineReplicas:
    """Offline replicas by topic and partition; a name may occur with several topic ids, or in several
    directories."""

    def __init__(self) -> None:
        self._by_name: dict[Name, list[OfflineReplica]] = {}

    def __iter__(self) -> Iterator[OfflineReplica]:
        """Iterate over a copy."""
        return iter([one for found in self._by_name.values() for one in found])

    def named(self, tip: TopicIdPartition) -> list[OfflineReplica]:
        """Return the replicas with this name, whatever their topic id."""
        return list(self._by_name.get((tip.topic, tip.partition), ()))

    def holds(self, one: OfflineReplica) -> bool:
        return any(one is other for other in self.named(one.tip))

    def add(self, one: OfflineReplica) -> None:
        self._by_name.setdefault((one.tip.topic, one.tip.partition), []).append(one)

    def discard(self, one: OfflineReplica) -> None:
        """Remove a replica that was opened, set aside or deleted."""
        left = [other for other in self.named(one.tip) if other is not one]
        if left:
            self._by_name[one.tip.topic, one.tip.partition] = left
        else:
            self._by_name.pop((one.tip.topic, one.tip.partition), None)

    def homes(self) -> set[LogDir]:
        return {one.home for one in self}

    def check(self, tip: TopicIdPartition) -> None:
        """Raise why the partition's own files could not be opened, if that is so: no log may replace them."""
        for one in self.named(tip):
            if one.tip.topic_id in (tip.topic_id, NO_TOPIC_ID):
                kind = CorruptionError if one.is_damaged else LogOffline
                raise kind(f"{one.path} could not be opened: {one.why}")
