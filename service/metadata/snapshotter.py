"""Writes snapshots of the committed image, and deletes old ones with the log that they cover.

Owned by the event loop; an immutable image is written on a `log-io` thread. The log below a snapshot is
deleted one snapshot later at the earliest, so that the newest snapshot is never the only copy of a record;
``metadata.max.retention.bytes`` and ``.ms`` may keep it longer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Final, NamedTuple

from service.base.disk import Disk
from service.base.errors import StorageError
from service.base.files import remove_file
from service.base.world import World
from service.metadata.image import MetadataImage
from service.metadata.metrics import MetadataMetrics
from service.metadata.raft.control import VoterRecords
from service.metadata.raft.keys import SnapshotId
from service.metadata.raft.log import MetadataLog
from service.metadata.raft.snapshots import list_snapshots, read_piece, write_snapshot
from service.metadata.snapshot_codec import encode_image, last_contained_ms

SNAPSHOTS_KEPT: Final = 2
"""At least."""
_HEAD_BYTES: Final = 4096

_logger = logging.getLogger(__name__)


class StoredSnapshot(NamedTuple):
    """Snapshot on disk: its size, and the time of the last record that it covers; -1 where unknown."""

    id: SnapshotId
    size: int
    last_contained_ms: int


class Snapshotter:
    """Writes a snapshot after a number of bytes of log, or after an interval (Kafka's ``SnapshotGenerator``).

    A failed write is not fatal, as the log has everything: it is logged, and repeated later.
    """

    def __init__(
        self,
        log: MetadataLog,
        world: World,
        log_io: Executor,
        metrics: MetadataMetrics,
        *,
        max_bytes: int,
        interval_ms: int,
        retention_bytes: int,
        retention_ms: int,
        current_image: Callable[[], MetadataImage],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self._log = log
        self._disk = world.disk
        self._clock = world.clock
        self._log_io = log_io
        self._metrics = metrics
        self._max_bytes = max_bytes
        self._interval_ms = interval_ms
        self._retention_bytes = retention_bytes
        self._retention_ms = retention_ms
        self._known: dict[SnapshotId, tuple[int, int]] = {}
        self._bytes = 0
        self._current_image = current_image
        self._on_fatal = on_fatal
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None
        self._stopped = True

    def start(self) -> None:
        """Start the interval, and write a snapshot where the log that was read is large enough."""
        self._stopped = False
        self._arm_timer()
        self.committed(0)

    def committed(self, size: int) -> None:
        """Count `size` more bytes of committed log."""
        self._bytes += size
        if self._bytes >= self._max_bytes:
            self._write()

    async def stop(self) -> None:
        """Await a running write, and start no other."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if self._writing is not None:
            await self._writing

    def _arm_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._interval_ms > 0 and not self._stopped:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._interval_ms / 1000, self._interval_over)

    def _interval_over(self) -> None:
        if self._bytes > 0:
            self._write()
        else:
            self._arm_timer()

    def _write(self) -> None:
        if self._writing is None and not self._stopped:
            self._writing = asyncio.get_running_loop().create_task(self._run(), name="metadata-snapshot")

    async def _run(self) -> None:
        try:
            await self._write_one()
        except StorageError as e:
            self._metrics.snapshot_errors += 1
            _logger.error("cannot write a metadata snapshot, which is retried later: %s", e)
        except Exception as e:
            self._on_fatal(e)
        finally:
            self._writing = None
            self._arm_timer()

    async def _write_one(self) -> None:
        log, loop = self._log, asyncio.get_running_loop()
        began_ms = self._clock.monotonic_ms()
        async with log.changing:
            image = self._current_image().settled
            snapshot = SnapshotId(image.offset + 1, image.epoch)
            if snapshot.end_offset < log.start_offset:
                return  # the log has restarted at a later one, which is not published yet
            self._bytes = 0
            log.seal()
            voter_records = log.voters_at(snapshot.end_offset)
            # Else an observer's log, which is never flushed, could end before this snapshot after a crash.
            await loop.run_in_executor(self._log_io, log.flush_up_to, snapshot.end_offset)
        held = await loop.run_in_executor(self._log_io, self._write_image, image, snapshot, voter_records)
        self._metrics.snapshot_time.observe((self._clock.monotonic_ms() - began_ms) / 1000)
        leftovers = [log.directory / snapshot.file_name]
        async with log.changing:
            # Else the log has restarted meanwhile, and its snapshot may not be in `held`.
            if snapshot.end_offset >= log.start_offset:
                leftovers = self._trim(held)
        await loop.run_in_executor(self._log_io, _remove, self._disk, leftovers)

    def _trim(self, held: list[StoredSnapshot]) -> list[Path]:
        """Advance the log's start past snapshots that are not retained; returns the files to delete."""
        log = self._log
        # Snapshots below the log's start belong to a log that was replaced.
        stale = [one.id for one in held if one.id.end_offset < log.start_offset]
        held = [one for one in held if one.id not in stale]
        gone = expendable(
            held, log.size, self._retention_bytes, self._retention_ms, now_ms=self._clock.now_ms()
        )
        stays = [one.id for one in held][gone:]
        log.set_snapshots(stays)
        leftovers: list[Path] = []
        if len(stays) >= SNAPSHOTS_KEPT:
            leftovers = log.forget_before(stays[0].end_offset, self._clock.now_ms())
        files = [*stale, *(one.id for one in held[:gone])]
        return leftovers + [log.directory / one.file_name for one in files]

    def _write_image(
        self, image: MetadataImage, snapshot: SnapshotId, voter_records: VoterRecords
    ) -> list[StoredSnapshot]:
        """Write the snapshot; returns all snapshots, oldest first."""
        directory = self._log.directory
        batches = encode_image(image, self._clock.now_ms(), voter_records)
        # Note the log's end first: a shorter log would be replaced by the snapshot, as if that was fetched.
        self._log.note_durable()
        write_snapshot(self._disk, directory, snapshot, batches)
        self._known = {one: self._size_and_time(one) for one in list_snapshots(self._disk, directory)}
        return [StoredSnapshot(one, *size_and_time) for one, size_and_time in self._known.items()]

    def _size_and_time(self, snapshot: SnapshotId) -> tuple[int, int]:
        found = self._known.get(snapshot)
        if found is None:
            head = read_piece(self._disk, self._log.directory, snapshot, 0, _HEAD_BYTES)
            found = (0, -1) if head is None else (head[0], last_contained_ms(head[1]))
        return found


def expendable(
    held: Sequence[StoredSnapshot], log_bytes: int, retention_bytes: int, retention_ms: int, *, now_ms: int
) -> int:
    """Return how many of the snapshots, oldest first, may be deleted with the log below the next one.

    The first are deleted while log and snapshots exceed `retention_bytes`, then those older than
    `retention_ms`; -1 is no limit. The last two always stay: the log from the one before the newest holds the
    newest's records, too (Kafka's ``KafkaRaftLog.maybeClean`` keeps one).
    """
    most = max(len(held) - SNAPSHOTS_KEPT, 0)
    gone, total = 0, log_bytes + sum(one.size for one in held)
    while gone < most and 0 <= retention_bytes < total:
        total -= held[gone].size
        gone += 1
    while gone < most and 0 <= retention_ms < now_ms - held[gone].last_contained_ms:
        gone += 1
    return gone


def _remove(disk: Disk, paths: list[Path]) -> None:
    for path in paths:
        remove_file(disk, path)
