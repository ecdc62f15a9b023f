"""When to write a snapshot of the committed image, and what may go afterwards.

Owned by the event loop; the writing itself runs on a `log-io` thread, from an image that never changes. What
a snapshot covers is cut off one snapshot later at the earliest, so that the newest snapshot is never the only
copy of anything; how much later is a matter of ``metadata.max.retention.bytes`` and ``.ms``.
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
from service.metadata.raft.control import VotersSaid
from service.metadata.raft.keys import SnapshotId
from service.metadata.raft.log import MetadataLog
from service.metadata.raft.snapshots import list_snapshots, read_piece, write_snapshot
from service.metadata.snapshot_codec import encode_image, last_contained_ms

SNAPSHOTS_KEPT: Final = 2
"""at least"""
_HEAD_BYTES: Final = 4096

_logger = logging.getLogger(__name__)


class Held(NamedTuple):
    """A snapshot on disk: its size, and the time of the last record it covers; -1 where that is not told."""

    id: SnapshotId
    size: int
    last_contained_ms: int


class Snapshotter:
    """Writes a snapshot after so many bytes of log, or so much time (Kafka's ``SnapshotGenerator``).

    A disk that refuses one is not fatal, as the log has everything: it is logged and tried again later.
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
        """The log is read to its end: look at how much that was, and set the clock going."""
        self._stopped = False
        self._wind()
        self.committed(0)

    def committed(self, size: int) -> None:
        """So many bytes more of log are committed."""
        self._bytes += size
        if self._bytes >= self._max_bytes:
            self._write()

    async def stop(self) -> None:
        """Let a snapshot that is being written come to its end; begin no other."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if self._writing is not None:
            await self._writing

    def _wind(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._interval_ms > 0 and not self._stopped:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._interval_ms / 1000, self._time_is_up)

    def _time_is_up(self) -> None:
        if self._bytes > 0:
            self._write()
        else:
            self._wind()

    def _write(self) -> None:
        if self._writing is None and not self._stopped:
            self._writing = asyncio.get_running_loop().create_task(self._run(), name="metadata-snapshot")

    async def _run(self) -> None:
        try:
            await self._write_one()
        except StorageError as e:
            self._metrics.snapshot_errors += 1
            _logger.error("no metadata snapshot this time: %s", e)
        except Exception as e:
            self._on_fatal(e)
        finally:
            self._writing = None
            self._wind()

    async def _write_one(self) -> None:
        log, loop = self._log, asyncio.get_running_loop()
        began_ms = self._clock.monotonic_ms()
        async with log.changing:
            image = self._current_image().settled
            snapshot = SnapshotId(image.offset + 1, image.epoch)
            if snapshot.end_offset < log.start_offset:
                return  # the log has begun anew at a later one, which is not published yet
            self._bytes = 0
            log.seal()
            said = log.voters_at(snapshot.end_offset)
            # Else an observer, which flushes nothing by itself, could have a snapshot of what its log lost.
            await loop.run_in_executor(self._log_io, log.flush_up_to, snapshot.end_offset)
        held = await loop.run_in_executor(self._log_io, self._write_image, image, snapshot, said)
        self._metrics.snapshot_time.observe((self._clock.monotonic_ms() - began_ms) / 1000)
        leftovers = [log.directory / snapshot.file_name]
        async with log.changing:
            # If not, the log has begun anew meanwhile, and what it begins at may not be among `held`.
            if snapshot.end_offset >= log.start_offset:
                leftovers = self._let_go(held)
        await loop.run_in_executor(self._log_io, _remove, self._disk, leftovers)

    def _let_go(self, held: list[Held]) -> list[Path]:
        """Cut off the log what need not stay of it; returns the files that may go, snapshots among them."""
        log = self._log
        # What lies below the log's start is of a log that there was before.
        stale = [one.id for one in held if one.id.end_offset < log.start_offset]
        held = [one for one in held if one.id not in stale]
        gone = expendable(
            held, log.size, self._retention_bytes, self._retention_ms, now_ms=self._clock.now_ms()
        )
        stays = [one.id for one in held][gone:]
        log.has_snapshots(stays)
        leftovers: list[Path] = []
        if len(stays) >= SNAPSHOTS_KEPT:
            leftovers = log.forget_before(stays[0].end_offset, self._clock.now_ms())
        files = [*stale, *(one.id for one in held[:gone])]
        return leftovers + [log.directory / one.file_name for one in files]

    def _write_image(self, image: MetadataImage, snapshot: SnapshotId, said: VotersSaid) -> list[Held]:
        """Write it; returns the snapshots that there are then, oldest first."""
        directory = self._log.directory
        batches = encode_image(image, self._clock.now_ms(), said)
        # First what the log has, lest it be taken for one that a fetched snapshot is to take the place of.
        self._log.note_durable()
        write_snapshot(self._disk, directory, snapshot, batches)
        self._known = {one: self._size_and_time(one) for one in list_snapshots(self._disk, directory)}
        return [Held(one, *told) for one, told in self._known.items()]

    def _size_and_time(self, snapshot: SnapshotId) -> tuple[int, int]:
        found = self._known.get(snapshot)
        if found is None:
            head = read_piece(self._disk, self._log.directory, snapshot, 0, _HEAD_BYTES)
            found = (0, -1) if head is None else (head[0], last_contained_ms(head[1]))
        return found


def expendable(
    held: Sequence[Held], log_bytes: int, retention_bytes: int, retention_ms: int, *, now_ms: int
) -> int:
    """How many of the snapshots, oldest first, may go with the log below the next one.

    First while log and snapshots are larger than `retention_bytes`, then those older than `retention_ms`; -1
    is no limit. The last two always stay: what the newest one says, the log says too, from the one before it
    on (Kafka's ``KafkaRaftLog.maybeClean`` keeps one).
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
