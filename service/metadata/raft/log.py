"""The metadata log on disk: a `LocalLog` in ``__cluster_metadata-0``, with snapshots beside it.

Opened on a `log-io` thread; then appended to on the event loop and flushed on a `log-io` thread. What a
snapshot covers is cut off one snapshot later, so that the newest snapshot is never the only copy of anything.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from service.base.errors import CorruptionError, StorageError
from service.base.files import exists, make_directory, write_atomically
from service.base.types import TopicIdPartition
from service.base.world import World
from service.config.settings import LogConfig
from service.hot.log import LocalLog
from service.metadata.batches import MetadataBatch, decode_batches
from service.metadata.delta import MetadataDelta
from service.metadata.image import MetadataImage
from service.metadata.raft.snapshots import (
    SnapshotId,
    list_snapshots,
    load_snapshot,
    remove_unfinished,
    set_aside,
)
from service.records.batch import complete_headers

DIRECTORY_NAME: Final = "__cluster_metadata-0"
METADATA_TOPIC: Final = TopicIdPartition(UUID(int=1), "__cluster_metadata", 0)
_PARTITION_METADATA: Final = b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ"
_READ_BYTES: Final = 1024 * 1024
_INDEX_BYTES: Final = 1024 * 1024
_SNAPSHOTS_KEPT: Final = 2

_logger = logging.getLogger(__name__)


class Recovered(NamedTuple):
    """What the disk says. `snapshot` is the one that `image` started from; `bytes_since` come after it."""

    image: MetadataImage
    snapshot: SnapshotId | None
    bytes_since: int


class MetadataLog:
    """The log's files. Offsets are of records; ends are exclusive."""

    def __init__(self, directory: Path, log: LocalLog) -> None:
        self.directory = directory
        self._log = log

    @classmethod
    def open(cls, directory: Path, world: World, *, segment_bytes: int) -> tuple[MetadataLog, Recovered]:
        """Open or make the log, cut off a torn tail, and add up what it says. Blocks.

        Raises `CorruptionError` where records before the tail are missing or make no sense, `StorageError`
        where the disk does not let us.
        """
        try:
            make_directory(world.disk, directory)
            remove_unfinished(directory)
            snapshots = list_snapshots(directory)
            if not exists(world.disk, directory / "partition.metadata"):
                write_atomically(world.disk, directory / "partition.metadata", _PARTITION_METADATA)
        except OSError as e:
            raise StorageError(f"cannot open the metadata log in {directory}: {e}") from e
        snapshot, image = _newest_readable(directory, snapshots)
        config = LogConfig(
            segment_bytes=segment_bytes,
            segment_index_bytes=_INDEX_BYTES,
            retention_ms=-1,
            file_delete_delay_ms=0,
        )
        covered = 0 if snapshot is None else snapshot.end_offset
        local = LocalLog.open(
            directory,
            METADATA_TOPIC,
            config,
            world=world,
            recovery_point=covered,
            log_start_offset=snapshots[0].end_offset if snapshots else 0,
        )
        log = cls(directory, local)
        try:
            image, bytes_since = log._replay(image, covered)
        except BaseException:
            local.close(clean=False)
            raise
        return log, Recovered(image, snapshot, bytes_since)

    def _replay(self, image: MetadataImage, offset: int) -> tuple[MetadataImage, int]:
        if not self._log.log_start_offset <= offset <= self.end_offset:
            raise CorruptionError(
                f"{self.directory}: the log holds offsets {self._log.log_start_offset} to {self.end_offset}, "
                f"the newest snapshot ends at {offset}"
            )
        size = 0
        for batch, batch_bytes in self._read(offset):
            if batch.last_offset < offset:
                continue
            size += batch_bytes
            image = apply_batch(image, batch)
        return image, size

    def _read(self, offset: int) -> Iterator[tuple[MetadataBatch, int]]:
        while offset < self.end_offset:
            found = self._log.read(offset, _READ_BYTES).slice
            if found is None:
                raise CorruptionError(f"{self.directory}: nothing is at offset {offset}")
            data = found.read()
            headers = list(complete_headers(data))
            whole = memoryview(data)[: headers[-1].end]
            for header, batch in zip(headers, decode_batches(whole), strict=True):
                yield batch, header.size
            offset = headers[-1].next_offset

    @property
    def end_offset(self) -> int:
        return self._log.log_end_offset

    @property
    def last_epoch(self) -> int:
        """Epoch of the last leader that wrote here; -1 for none."""
        return self._log.epochs.latest

    def append(self, batch: bytearray) -> None:
        """Write one batch; it is not on disk before `flush`. On an error nothing has changed."""
        self._log.append_raw(memoryview(batch))

    def flush(self, end_offset: int) -> None:
        """Make everything below `end_offset` durable. Blocks; for a `log-io` thread."""
        self._log.flush(end_offset)

    def seal(self) -> None:
        """Begin a new segment, so that the ones before it can go once nobody needs them."""
        self._log.roll()

    def forget_before_snapshots(self, now_ms: int) -> list[Path]:
        """Keep the newest two snapshots and the log from the older of them on.

        Returns the files that are no part of the log any more, for a `log-io` thread to remove.
        """
        snapshots = list_snapshots(self.directory)
        if len(snapshots) < _SNAPSHOTS_KEPT:
            return []
        self._log.advance_log_start(snapshots[-_SNAPSHOTS_KEPT].end_offset)
        old = [self.directory / snapshot.file_name for snapshot in snapshots[:-_SNAPSHOTS_KEPT]]
        return old + self._log.take_removals(now_ms)

    def close(self, *, clean: bool = True) -> None:
        """Let go of the files. Blocks."""
        self._log.close(clean)


def apply_batch(image: MetadataImage, batch: MetadataBatch) -> MetadataImage:
    """The image with one more batch. Raises `CorruptionError` where it makes no sense."""
    delta = MetadataDelta(image)
    delta.replay_all(frame.record for frame in batch.frames)
    return delta.build(batch.last_offset, batch.epoch, batch.timestamp_ms)


def _newest_readable(directory: Path, snapshots: list[SnapshotId]) -> tuple[SnapshotId | None, MetadataImage]:
    """The newest snapshot that is whole: the log still covers what came after. Damaged ones are set aside."""
    for snapshot in reversed(snapshots):
        try:
            return snapshot, load_snapshot(directory, snapshot)
        except CorruptionError as e:
            _logger.error("setting aside a damaged metadata snapshot: %s", e)
            set_aside(directory, snapshot)
    return None, MetadataImage()
