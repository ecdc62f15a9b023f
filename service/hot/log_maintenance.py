"""Background work on the logs of a node: flushes, checkpoints, deletions, expiry of producers.

Logs, flusher and cleaner report here what has changed. Owned by the event loop; `log-io` threads do all that
waits for the disk. The cost depends on the number of changes, not of logs.

A log directory in which an fsync failed takes all its logs offline: it is never checkpointed nor marked clean
again, and `on_directory_failed` is called.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import Final

from service.base.errors import StorageError
from service.base.types import NO_OFFSET
from service.base.world import World
from service.hot import producer_expiry
from service.hot.cleaning.cleaner import Cleaner
from service.hot.directories import LogDirs
from service.hot.file_deletion import FileDeletion, Permission
from service.hot.flusher import Flusher
from service.hot.high_watermark_checkpoint import HighWatermarkCheckpoint
from service.hot.log import LocalLog
from service.hot.log_checkpoints import LogCheckpoints
from service.hot.log_dir import LogDir
from service.hot.log_io import LogIo
from service.hot.log_registry import LogRegistry
from service.hot.metrics import HotMetrics

_log = logging.getLogger(__name__)

_TICK_S: Final = 1.0
_PRODUCER_EXPIRY_CHECK_MS: Final = 600_000
_OPEN_AGAIN_MS: Final = 5_000


class LogMaintenance:
    """Keeps the logs in `registry` durable and tidy. `LogListener`, `FlushListener` and `CleanerListener`."""

    def __init__(
        self,
        io: LogIo,
        cleaner_io: LogIo,
        world: World,
        registry: LogRegistry,
        dirs: LogDirs,
        metrics: HotMetrics,
        *,
        checkpoint_interval_ms: int,
        high_watermark_interval_ms: int,
        producer_expiration_ms: int,
        open_again: Callable[[], Awaitable[None]],
        on_directory_failed: Callable[[Path, StorageError], None] | None,
    ) -> None:
        """`open_again`: called every few seconds, to retry logs that could not be opened."""
        self.producer_expiration_ms = producer_expiration_ms
        self._clock = world.clock
        self._registry = registry
        self._dirs = dirs
        self._open_again = open_again
        self._on_directory_failed = on_directory_failed
        self._wake: asyncio.Event | None = None
        self.flusher = Flusher(io, world.clock, self, metrics)
        self.deletion = FileDeletion(io, world.disk)
        self.cleaner = Cleaner(io, cleaner_io, world, self, metrics)
        self.checkpoints = LogCheckpoints(
            io, world.clock, world.threads, checkpoint_interval_ms, registry.homes.get,
            self.take_directories_offline,
        )  # fmt: skip
        self.offsets = self.checkpoints.table
        self.high_watermarks = HighWatermarkCheckpoint(
            io, world.clock, high_watermark_interval_ms, registry.home_of
        )

    def forget(self, log: LocalLog, home: LogDir) -> None:
        """Remove a log that is not in use any more."""
        name = log.tip.topic, log.tip.partition
        self.flusher.forget(log)
        self.cleaner.forget(log)
        self.offsets.forget(name, home, log)
        self.high_watermarks.forget(name, home)
        self.checkpoints.request()

    # `LogListener`

    def needs_flush(self, log: LocalLog) -> None:
        """Flush the log in the background."""
        self.flusher.enqueue(log)
        self._wake_up()

    def start_moved(self, log: LocalLog) -> None:
        """Write the log's start to the checkpoint soon."""
        self.flushed(log)
        self.checkpoints.request()
        self._wake_up()

    def files_queued(self, log: LocalLog, due_ms: int) -> None:
        """Schedule the deletion of the log's files."""
        self.flushed(log)
        self.deletion.schedule(log, due_ms)

    def configured(self, log: LocalLog) -> None:
        """Apply the settings of a log that is new, or whose settings have changed."""
        self.flushed(log)
        self.flusher.configured(log)
        self.cleaner.configured(log)

    def _wake_up(self) -> None:
        if self._wake is not None:
            self._wake.set()

    # `FlushListener`, `CleanerListener`

    def is_in_use(self, log: LocalLog) -> bool:
        return log in self._registry.homes

    def flushed(self, log: LocalLog) -> None:
        log.sealed.flushed()
        home = self._registry.homes.get(log)
        if home is not None:
            self.offsets.note(log, home)

    async def flush(self, log: LocalLog) -> None:
        await self.flusher.flush(log)

    def delete_queued(self, log: LocalLog) -> None:
        log.deletion_queue.expedite(self._clock.now_ms())
        self._wake_up()

    def flush_failed(self) -> None:
        self.take_directories_offline()

    def cleaned(self, log: LocalLog) -> None:
        self.flushed(log)
        self.checkpoints.request()
        self._wake_up()

    async def note_compacted(self, log: LocalLog) -> bool:
        durable = self.checkpoints.files.cleaned
        name, home = (log.tip.topic, log.tip.partition), self._registry.homes[log]
        if name not in durable[home]:
            self.flushed(log)
            await self.checkpoints.write()
        return name in durable[home]

    def take_directories_offline(self) -> Collection[LogDir]:
        """Take the logs of directories that have failed since the last call offline; returns all directories
        that have failed."""
        for home, failure in self._dirs.newly_failed():
            _log.critical("log directory %s failed and is offline with all its logs: %s", home.path, failure)
            for log in self._registry.logs_in(home):
                log.fail(failure)
            if self._on_directory_failed is not None:
                self._on_directory_failed(home.path, failure)
        return self._dirs.failed

    # In the background

    async def run(self) -> None:
        """Flush, checkpoint, expire and unlink until the task is cancelled.

        Refused operations are logged and retried; a failed fsync takes its directory offline.
        """
        try:
            await self._keep_up()
        finally:
            self.deletion.cancel()

    async def _keep_up(self) -> None:
        self._wake = wake = asyncio.Event()
        self.checkpoints.begin_interval()
        expire_at = self._clock.monotonic_ms() + _PRODUCER_EXPIRY_CHECK_MS
        open_at = 0
        while True:
            again = await self.flusher.flush_waiting()
            await self.flusher.flush_due()
            now_ms = self._clock.monotonic_ms()
            await self.checkpoints.write_due()
            await self.high_watermarks.write_due()
            self.take_directories_offline()
            self.delete_due(self._clock.now_ms())
            if now_ms >= open_at:
                open_at = now_ms + _OPEN_AGAIN_MS
                await self._open_again()
            if now_ms >= expire_at:
                expire_at = now_ms + _PRODUCER_EXPIRY_CHECK_MS
                logs, expiration_ms = self._registry.logs.values(), self.producer_expiration_ms
                await producer_expiry.expire(logs, expiration_ms, self._clock.now_ms())
            if not self.flusher.has_waiting:
                wake.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_TICK_S):
                        await wake.wait()
            for log in again:
                self.flusher.enqueue(log)

    def durable_start(self, log: LocalLog) -> int:
        """Return the log's start in the checkpoint; -1 if the log is not in use any more."""
        home, name = self._registry.homes.get(log), (log.tip.topic, log.tip.partition)
        return NO_OFFSET if home is None else self.checkpoints.files.durable_start(name, home)

    def delete_due(self, now_ms: int) -> None:
        """Begin to delete the files that are due, once a checkpoint contains the starts of their logs."""
        failed: Mapping[LogDir, Exception] = {}

        async def checkpoint() -> None:
            nonlocal failed
            failed = await self.checkpoints.write()

        def permission(log: LocalLog) -> Permission:
            home = self._registry.homes.get(log)
            # On a full disk checkpoints fail; an older one with the same start permits the deletion, too.
            is_durable = home not in failed or self.durable_start(log) >= log.log_start_offset
            if home is None:
                return Permission.NEVER
            return Permission.NOW if is_durable and home not in self._dirs.failed else Permission.LATER

        self.deletion.start_due(now_ms, checkpoint, permission)
