"""Makes room in a log directory that fills up: seals segments early, and deletes those that the bucket has.

Local retention is ignored, the rules of `PartitionArchive` are not: nothing goes that the bucket has not.
Owned by the event loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from service.base.clock import Clock
from service.base.errors import CorruptionError, StorageError
from service.base.rate_limited_log import RateLimitedLog
from service.base.slices import Slice
from service.hot.disk_watermarks import Step, min_sealed_bytes
from service.hot.metrics import HotMetrics
from service.partition.archive import PartitionArchive
from service.partition.partition import Partition
from service.replicas.partition_registry import Replicas

_DUE_MS: Final = 1_000
"""Least interval between scans of all partitions, however often the disk is checked."""
_SETTLING_MS: Final = 3_000
"""Time after which deleted files are gone, so that the next check sees their space."""


class SpaceReclaimer:
    """Reclaims space in one log directory."""

    def __init__(
        self, path: Path, replicas: Replicas, metrics: HotMetrics, clock: Clock, troubles: RateLimitedLog
    ) -> None:
        self._path = path
        self._replicas = replicas
        self._metrics = metrics
        self._clock = clock
        self._troubles = troubles
        self.copied: list[Partition] = []
        """partitions in the directory that are copied to the bucket, as of the last scan"""
        self._is_due_ms = 0
        """when to scan again"""
        self._settles_ms = 0
        self._next_partition = 0

    def reset(self) -> None:
        """Drop the result of the last scan: there is room again, or no bucket."""
        self.copied, self._is_due_ms = [], 0

    async def scan(self) -> bool:
        """Determine `copied` anew, unless that was done lately; return whether it was due."""
        if self._clock.monotonic_ms() < self._is_due_ms:
            return False
        self._is_due_ms = self._clock.monotonic_ms() + _DUE_MS
        piece, found = Slice(), []
        for partition in self._replicas:
            if piece.is_over():
                await piece.next_turn()
            if partition.archive.is_copied and partition.log.dir.parent == self._path:
                found.append(partition)
        self.copied = found
        return True

    async def seal(self, step: Step) -> None:
        """Seal active segments of the copied partitions that are large enough at this step."""
        piece = Slice()
        for partition in self.copied:
            if piece.is_over():
                await piece.next_turn()
            least_bytes = min_sealed_bytes(step, partition.config.segment_bytes)
            if self._try(partition, partial(PartitionArchive.seal_early, least_bytes=least_bytes)):
                self._metrics.disk_sealed_segments += 1

    async def free(self, to_free: int) -> None:
        """Delete one local segment of each partition, as long as there are any that the bucket has, until
        there is room; not again before the files are gone and the disk reports their space."""
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._settles_ms or not self._replicas.may_let_go():
            return
        piece, freed = Slice(), 0
        at = self._next_partition % len(self.copied)
        waiting = deque([*self.copied[at:], *self.copied[:at]])
        while waiting and freed < to_free:
            if piece.is_over():
                await piece.next_turn()
            partition = waiting.popleft()
            if size := self._try(partition, PartitionArchive.let_go_early):
                freed += size
                self._metrics.disk_freed_segments += 1
                self._metrics.disk_freed_bytes += size
                waiting.append(partition)
            self._next_partition += 1
        if freed:
            self._settles_ms = now_ms + _SETTLING_MS

    def _try(self, partition: Partition, work: Callable[[PartitionArchive], int]) -> int:
        """Call `work` on a partition that is still here; returns 0 if the disk fails."""
        if self._replicas.get(partition.tip.topic_id, partition.tip.partition) is not partition:
            return 0
        try:
            return work(partition.archive)
        except (StorageError, CorruptionError) as e:
            self._troubles.warning("freeing disk space of %s failed: %s", partition.tip, e)
            return 0
