"""Where a follower begins whose leader has what comes next in the archive alone.

It takes nothing of the archive but what says where that ends, and what was known there: the manifest that
the committed metadata names, and the producers of its last segment. It goes on at that end, which the leader
has locally: local bytes go once the archive has them, and it has what is committed alone. Owned by the event
loop.
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
from service.hot.producer_snapshot import decode_snapshot
from service.hot.producers import ProducerEntry
from service.metadata.image import MetadataImage
from service.remote.catalog import CatalogEntry
from service.remote.reading.reader import ArchiveEnd

_log = logging.getLogger(__name__)


class Reader(Protocol):
    """`RemoteReader`."""

    def archive_end(self, tip: TopicIdPartition, manifest_key: str) -> Future[ArchiveEnd]: ...


class Following(Protocol):
    """What of a `Partition` is needed here."""

    @property
    def log(self) -> LocalLog: ...

    def follower_mark(self, high_watermark: int) -> None: ...


class ArchiveOfLeader:
    """`replication.fetcher.Archive` by this node's own image of the metadata."""

    def __init__(
        self,
        reader: Reader | None,
        partition: Callable[[UUID, int], Following | None],
        image: Callable[[], MetadataImage],
    ) -> None:
        """`partition`: as `Replicas.get`. `image`: the newest one."""
        self._reader = reader
        self._partition = partition
        self._image = image

    async def build(
        self, tip: TopicIdPartition, leader_epoch: int, start_offset: int, is_wanted: Callable[[], bool]
    ) -> bool:
        """As `Archive.build`. What the metadata says of the log's start goes before what the leader does."""
        partition, entry = self._partition(tip.topic_id, tip.partition), self._entry(tip)
        if partition is None or entry is None or not self._leads_on(tip, partition.log, entry):
            return False
        assert self._reader is not None, "it leads on"
        try:
            end = await asyncio.wrap_future(self._reader.archive_end(tip, entry.manifest_key))
            _prove(end, entry)
            producers = decode_snapshot(end.producer_snapshot) if end.producer_snapshot else []
        except (StorageError, CorruptionError, RequestError) as e:
            _log.warning("%s: the end of its archive cannot be read: %s", tip, e)
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
        """Whether the archive, as this node knows it, has more than the log."""
        if self._reader is None:
            _log.warning("%s goes on in its archive, and firn.remote.url is not set", tip)
            return False
        return not entry.is_given_up and entry.end_offset > local.log_end_offset

    def _begin(
        self,
        partition: Following,
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
            "%s: goes on at %d, where its archive ends; here it ended at %d",
            local.tip,
            end,
            local.log_end_offset,
        )
        local.truncation.restart_at(end, start, epochs=epochs, producers=producers)
        partition.follower_mark(end)
        return True


def _prove(end: ArchiveEnd, entry: CatalogEntry) -> None:
    """`CorruptionError` unless what was read is what the entry names."""
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
    """Whether a log may still begin where `entry` ends: the archive may have gone on meanwhile."""
    return not newest.is_given_up and newest.start_offset <= entry.end_offset <= newest.end_offset
