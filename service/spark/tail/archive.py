"""The archive and the brokers' tail behind it, as one line of offsets.

A plan puts the border where the manifest that it has seen ends: below it is read from the bucket, from it on
through the brokers. Segments that are sealed and offloaded after that move nothing, since brokers serve every
offset of the log, whichever tier it lies in. So for `read_committed` the border is the archive's last stable
offset: what was undecided there the brokers decide.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from service.remote.store import ObjectStore
from service.spark.plan.archive import Archive, ChosenPartition, PartitionSnapshot
from service.spark.plan.memory import Memory
from service.spark.tail.brokers import TopicPartition, brokers_of
from service.spark.tail.options import TailOptions


class LiveArchive(Archive):
    """The archive whose partitions reach as far as the brokers say."""

    def __init__(
        self, store: ObjectStore, tail: TailOptions, *, read_committed: bool, memory: Memory | None = None
    ) -> None:
        super().__init__(store, read_committed=read_committed, memory=memory)
        self._brokers = brokers_of(tail, read_committed, os.getpid())

    def snapshots(self, chosen: Iterable[ChosenPartition]) -> list[PartitionSnapshot]:
        """The archive first, then the brokers, whose log does not end before what is archived."""
        return self.renewed(super().snapshots(chosen))

    def renewed(self, snapshots: Sequence[PartitionSnapshot]) -> list[PartitionSnapshot]:
        """The same with the ends that brokers tell now."""
        bounds = self._brokers.bounds([_named(snapshot) for snapshot in snapshots])
        return [snapshot._replace(live=bounds.get(_named(snapshot))) for snapshot in snapshots]

    def offsets_for_timestamps(
        self, snapshots: Sequence[PartitionSnapshot], timestamps_ms: Sequence[int]
    ) -> list[int | None]:
        found = super().offsets_for_timestamps(snapshots, timestamps_ms)
        later = {
            _named(snapshot): time
            for snapshot, time, offset in zip(snapshots, timestamps_ms, found, strict=True)
            if offset is None
        }
        live = self._brokers.offsets_for_timestamps(later)
        return [
            live.get(_named(snapshot)) if offset is None else offset
            for snapshot, offset in zip(snapshots, found, strict=True)
        ]


def _named(snapshot: PartitionSnapshot) -> TopicPartition:
    return snapshot.chosen.topic, snapshot.chosen.partition
