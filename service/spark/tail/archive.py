"""The archive and the brokers' tail behind it, as one line of offsets.

A plan puts the border where the manifest that it has seen ends: below it is read from the bucket, from it on
through the brokers. Segments that are sealed and offloaded after that move nothing, since brokers serve every
offset of the log, whichever tier it lies in. So for `read_committed` the border is the archive's last stable
offset: what was undecided there the brokers decide.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from service.remote.stores.store import ObjectStore
from service.spark.plan.archive import Archive
from service.spark.plan.memory import Memory
from service.spark.plan.snapshots import ChosenPartition, Live, PartitionSnapshot
from service.spark.tail.log_ends import log_ends_of
from service.spark.tail.options import TailOptions
from service.spark.tail.topic_lookup import TopicPartition


class LiveArchive(Archive):
    """The archive whose partitions reach as far as the brokers say."""

    def __init__(
        self,
        store: ObjectStore,
        tail: TailOptions,
        *,
        read_committed: bool,
        fail_on_data_loss: bool = True,
        memory: Memory | None = None,
    ) -> None:
        super().__init__(store, read_committed=read_committed, memory=memory)
        self._ends = log_ends_of(tail, read_committed, fail_on_data_loss, os.getpid())

    def snapshots(self, chosen: Iterable[ChosenPartition]) -> list[PartitionSnapshot]:
        """The archive first, then the brokers, whose log does not end before what is archived."""
        return self.renewed(super().snapshots(chosen))

    def renewed(self, snapshots: Sequence[PartitionSnapshot]) -> list[PartitionSnapshot]:
        """The same with the ends that brokers tell now."""
        if not snapshots:
            return []
        cluster_id = self.cluster_id()
        bounds = self._ends.bounds([snapshot.chosen for snapshot in snapshots], cluster_id)
        found = []
        for snapshot in snapshots:
            ends = bounds.get(_named(snapshot))
            found.append(snapshot._replace(live=None if ends is None else Live(*ends, cluster_id)))
        return found

    def offsets_for_timestamps(
        self, snapshots: Sequence[PartitionSnapshot], timestamps_ms: Sequence[int]
    ) -> list[int | None]:
        found = super().offsets_for_timestamps(snapshots, timestamps_ms)
        later = {
            snapshot.chosen: time
            for snapshot, time, offset in zip(snapshots, timestamps_ms, found, strict=True)
            if offset is None and snapshot.live is not None
        }
        live = self._ends.offsets_for_timestamps(later, self.cluster_id()) if later else {}
        return [
            live.get(_named(snapshot)) if offset is None else offset
            for snapshot, offset in zip(snapshots, found, strict=True)
        ]


def _named(snapshot: PartitionSnapshot) -> TopicPartition:
    return snapshot.chosen.topic, snapshot.chosen.partition
