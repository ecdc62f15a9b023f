"""When to write a snapshot of the committed image, and what may go afterwards.

Owned by the event loop; the writing itself runs on a `log-io` thread, from an image that never changes. What
a snapshot covers is cut off one snapshot later, so that the newest snapshot is never the only copy of
anything.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import Final

from service.base.disk import Disk
from service.base.errors import StorageError
from service.base.files import remove_file
from service.base.world import World
from service.metadata.image import MetadataImage
from service.metadata.metrics import MetadataMetrics
from service.metadata.raft.keys import SnapshotId
from service.metadata.raft.log import MetadataLog
from service.metadata.raft.snapshots import list_snapshots, write_snapshot
from service.metadata.snapshot_codec import encode_image

_SNAPSHOTS_KEPT: Final = 2

_logger = logging.getLogger(__name__)


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
            image = self._current_image().settled
            self._bytes = 0
            self._log.seal()
            loop = asyncio.get_running_loop()
            began_ms = self._clock.monotonic_ms()
            snapshots = await loop.run_in_executor(self._log_io, self._write_image, image)
            self._log.has_snapshots(snapshots)
            self._metrics.snapshot_time.observe((self._clock.monotonic_ms() - began_ms) / 1000)
            if len(snapshots) >= _SNAPSHOTS_KEPT:
                oldest = snapshots[-_SNAPSHOTS_KEPT]
                leftovers = self._log.forget_before(oldest.end_offset, self._clock.now_ms())
                leftovers += [self._log.directory / one.file_name for one in snapshots[:-_SNAPSHOTS_KEPT]]
                self._log.has_snapshots(snapshots[-_SNAPSHOTS_KEPT:])
                await loop.run_in_executor(self._log_io, _remove, self._disk, leftovers)
        except StorageError as e:
            self._metrics.snapshot_errors += 1
            _logger.error("no metadata snapshot this time: %s", e)
        except Exception as e:
            self._on_fatal(e)
        finally:
            self._writing = None
            self._wind()

    def _write_image(self, image: MetadataImage) -> list[SnapshotId]:
        """Write it; returns the snapshots that there are then, oldest first."""
        snapshot = SnapshotId(image.offset + 1, image.epoch)
        # Else an observer, which flushes nothing by itself, could have a snapshot of what its log has lost.
        self._log.flush_up_to(snapshot.end_offset)
        batches = encode_image(image, self._clock.now_ms(), self._log.voters_at(snapshot.end_offset))
        write_snapshot(self._disk, self._log.directory, snapshot, batches)
        self._log.note_durable()
        return list_snapshots(self._disk, self._log.directory)


def _remove(disk: Disk, paths: list[Path]) -> None:
    for path in paths:
        remove_file(disk, path)
