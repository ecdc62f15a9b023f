"""The archive and the brokers' tail after it, as one range of offsets.

A plan puts the border at the end of the manifest that it has read: offsets below it come from the bucket,
those from it on from the brokers. Segments that are sealed and offloaded later change nothing, since brokers
serve every offset of the log, whichever tier it lies in. So for `read_committed` the border is the archive's
last stable offset: brokers have the decisions on transactions that were open there.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from service.remote.stores.store import ObjectStore
from service.spark.plan.archive import ArchiveReader
from service.spark.plan.memory import PlanCache
from service.spark.plan.snapshots import ChosenPartition, LogBounds, PartitionSnapshot
from service.spark.tail.log_ends import log_ends_of
from service.spark.tail.options import TailOptions
from service.spark.tail.topic_lookup import TopicPartition


class LiveArchiveReader(ArchiveReader):
    """An archive whose partitions reach to the ends of the brokers' logs."""

    def __init__(
        self,
        store: ObjectStore,
        tail: TailOptions,
        *,
        read_committed: bool,
        fail_on_data_loss: bool = True,
        cache: PlanCache | None = None,
    ) -> None:
        super().__init__(store, read_committed=read_committed, cache=cache)
        self._ends = log_ends_of(tail, read_committed, fail_on_data_loss, os.getpid())

    def snapshots(self, chosen: Iterable[ChosenPartition]) -> list[PartitionSnapshot]:
        """Read the archive first, then the brokers, so that no log ends before its archive."""
        return self.renewed(super().snapshots(chosen))

    def renewed(self, snapshots: Sequence[PartitionSnapshot]) -> list[PartitionSnapshot]:
        """Return the snapshots with the current bounds of the brokers' logs."""
        if not snapshots:
            return []
        cluster_id = self.cluster_id()
        bounds = self._ends.bounds([snapshot.chosen for snapshot in snapshots], cluster_id)
        found = []
        for snapshot in snapshots:
            ends = bounds.get(_named(snapshot))
            found.append(snapshot._replace(live=None if ends is None else LogBounds(*ends, cluster_id)))
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
