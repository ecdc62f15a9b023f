"""Start of a follower whose next records its leader has only in the archive.

It reads only the archive's end and the state there: the manifest that the committed metadata names, whose
leader epochs it takes over (invariant P12), and the producers of its last segment, with the transactions that
are open there: their first offsets may lie below the local start. The follower continues at that end, which
the leader has locally: local bytes are deleted only once the archive has them, and the archive has committed
records only. Owned by the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Protocol
from uuid import UUID

from service.base.errors import CorruptionError, RequestError, StorageError
from service.base.types import TopicIdPartition
from service.hot.log import LocalLog
from service.hot.producers import ProducerEntry
from service.metadata.image import MetadataImage
from service.remote.catalog import CatalogEntry
from service.remote.reading.reader import ArchiveEnd
from service.replicas.archive_producers import producers_of

_log = logging.getLogger(__name__)


class Reader(Protocol):
    """Interface of `RemoteReader` to this module."""

    def archive_end(self, tip: TopicIdPartition, manifest_key: str) -> Future[ArchiveEnd]: ...


class RestartablePartition(Protocol):
    """Interface of `Partition` to this module."""

    @property
    def log(self) -> LocalLog: ...

    def set_follower_high_watermark(self, high_watermark: int) -> None: ...


class TierStateBuilder:
    """A `replication.fetcher.LocalStartBuilder` that uses this node's image of the metadata."""

    def __init__(
        self,
        reader: Reader | None,
        partition: Callable[[UUID, int], RestartablePartition | None],
        image: Callable[[], MetadataImage],
    ) -> None:
        """`partition`: like `Replicas.get`. `image`: returns the newest one."""
        self._reader = reader
        self._partition = partition
        self._image = image

    async def build(
        self, tip: TopicIdPartition, leader_epoch: int, start_offset: int, is_wanted: Callable[[], bool]
    ) -> bool:
        """Restart the log at the archive's end. The log start in the metadata takes precedence over the
        leader's."""
        partition, entry = self._partition(tip.topic_id, tip.partition), self._entry(tip)
        if partition is None or entry is None or not self._leads_on(tip, partition.log, entry):
            return False
        assert self._reader is not None, "it leads on"
        try:
            end = await asyncio.wrap_future(self._reader.archive_end(tip, entry.manifest_key))
            _prove(end, entry)
            producers = producers_of(end)
        except (StorageError, CorruptionError, RequestError) as e:
            _log.warning("%s: reading the end of its archive failed: %s", tip, e)
            return False
        newest = self._entry(tip)
        if not is_wanted() or newest is None or not _is_still_true(entry, newest):
            return False
        if self._partition(tip.topic_id, tip.partition) is not partition:
            return False
        return self._begin(partition, entry, max(newest.start_offset, start_offset), end.epochs, producers)

    def _entry(self, tip: TopicIdPartition) -> CatalogEntry | None:
        return self._image().remote.get((tip.topic_id, tip.partition))

    def _leads_on(self, tip: TopicIdPartition, local: LocalLog, entry: CatalogEntry) -> bool:
        """Return whether the archive, as this node knows it, goes beyond the log."""
        if self._reader is None:
            _log.warning(
                "%s: its leader has the next records only in the archive, and firn.remote.url is not set", tip
            )
            return False
        return not entry.is_given_up and entry.end_offset > local.log_end_offset

    def _begin(
        self,
        partition: RestartablePartition,
        entry: CatalogEntry,
        start_offset: int,
        epochs: Sequence[tuple[int, int]],
        producers: Sequence[tuple[int, ProducerEntry]],
    ) -> bool:
        local, end = partition.log, entry.end_offset
        if local.log_end_offset >= end:
            return False
        start = min(max(start_offset, local.log_start_offset), end)
        _log.info(
            "%s: restarting at offset %d (end of archive); the local log ended at %d",
            local.tip,
            end,
            local.log_end_offset,
        )
        local.truncation.restart_at(end, start, epochs=epochs, producers=producers)
        partition.set_follower_high_watermark(end)
        return True


def _prove(end: ArchiveEnd, entry: CatalogEntry) -> None:
    """Raise `CorruptionError` unless the archive's end is what the entry names."""
    if end.entry._replace(leader_epoch=entry.leader_epoch) != entry:
        raise CorruptionError(f"{entry.manifest_key} is {end.entry}, the metadata says {entry}")
    before = (-1, -1)
    for one in end.epochs:
        if not (before[0] < one[0] and before[1] < one[1] < entry.end_offset):
            raise CorruptionError(f"{entry.manifest_key}: leader epoch {one} after {before}")
        before = one
    if entry.segments and not end.epochs:
        raise CorruptionError(f"{entry.manifest_key} knows no leader epoch")


def _is_still_true(entry: CatalogEntry, newest: CatalogEntry) -> bool:
    """Return whether a log may still restart where `entry` ends: the archive may have grown meanwhile."""
    return not newest.is_given_up and newest.start_offset <= entry.end_offset <= newest.end_offset
