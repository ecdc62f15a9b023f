"""All local logs of a node: where they lie, opening, flushing, checkpoints, removal (Kafka `LogManager`).

Owned by the event loop. Whatever waits for the disk runs on the `log-io` pool: recovery at start, fsync,
checkpoints, unlinking. `run` is the one background task; an error of the disk ends it, and so is heard.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID

from service.base.disk import DiskError, MissingFile
from service.base.errors import StorageError
from service.base.files import remove_file, remove_tree
from service.base.threads import Threads
from service.base.types import TopicIdPartition
from service.base.world import World
from service.config.settings import LogConfig
from service.hot import names
from service.hot.files import FileCache
from service.hot.log import DEFAULT_PRODUCER_EXPIRATION_MS, LocalLog
from service.hot.log_dir import (
    LOG_START_OFFSETS,
    RECOVERY_POINTS,
    LogDir,
    MetaProperties,
    Offsets,
    read_topic_id,
    write_topic_id,
)

_log = logging.getLogger(__name__)

NEVER_MS: Final = 2**63 - 1
NO_TOPIC_ID: Final = UUID(int=0)
_TICK_S: Final = 1.0
_PRODUCER_EXPIRY_CHECK_MS: Final = 600_000

T = TypeVar("T")

LogKey = tuple[UUID, int]
"""(topic id, partition)"""


class _Offsets(NamedTuple):
    """What the checkpoints are to say; ``number`` goes up from one taking to the next."""

    number: int
    homes: list[tuple[LogDir, Offsets, Offsets]]


class _Found(NamedTuple):
    """What a log directory says of its logs before they are opened, and its directories by name."""

    clean: bool
    recovery_points: Offsets
    log_starts: Offsets
    directories: list[str]


_NEW: Final = _Found(True, {}, {}, [])
"""Of a log that is made just now."""


def _look_into(home: LogDir) -> _Found:
    clean = home.take_clean_marker()
    points, starts = home.read_offsets(RECOVERY_POINTS), home.read_offsets(LOG_START_OFFSETS)
    directories = [entry.name for entry in home.disk.list(home.path) if entry.is_dir]
    return _Found(clean, points, starts, directories)


class _Checkpoint:
    """The checkpoint files of all directories. Written from any thread; older offsets never replace newer.

    ``names``: the (topic, partition) pairs that the files speak of.
    """

    def __init__(self, threads: Threads) -> None:
        self.names: set[tuple[str, int]] = set()
        self._number = -1
        self._lock = threads.lock()

    def write(self, offsets: _Offsets, *, fsync: bool = True) -> None:
        with self._lock:
            if offsets.number < self._number:
                return
            self._number = offsets.number
            for home, points, starts in offsets.homes:
                home.write_offsets(RECOVERY_POINTS, points, fsync=fsync)
                home.write_offsets(LOG_START_OFFSETS, starts, fsync=fsync)
            self.names = {name for _, points, _ in offsets.homes for name in points}


class LogManager:
    """The logs in ``log.dirs``. Locks the directories at once; `open_all` brings the logs."""

    def __init__(
        self,
        log_dirs: Iterable[Path],
        world: World,
        *,
        checkpoint_interval_ms: int = 60_000,
        producer_expiration_ms: int = DEFAULT_PRODUCER_EXPIRATION_MS,
        io_threads: int = 2,
        max_open_files: int = 256,
    ) -> None:
        """`checkpoint_interval_ms`:

        ``log.flush.offset.checkpoint.interval.ms``. `StorageError` if a directory is in use.
        """
        self.files = FileCache(world.disk, max_open_files)
        self._world = world
        self._clock = world.clock
        self._disk = world.disk
        self._checkpoint_interval_ms = checkpoint_interval_ms
        self._producer_expiration_ms = producer_expiration_ms
        self._logs: dict[LogKey, LocalLog] = {}
        self._homes: dict[LocalLog, LogDir] = {}
        self._flushes: dict[LocalLog, asyncio.Future[int]] = {}
        self._rolled: set[LocalLog] = set()
        self._checkpoint = _Checkpoint(world.threads)
        self._checkpoint_soon = False
        self._taken = itertools.count()
        self._wake: asyncio.Event | None = None
        self._doomed: list[tuple[int, Path]] = []
        self._dirs: list[LogDir] = []
        self._running: set[Future[Any]] = set()
        try:
            for path in log_dirs:
                self._dirs.append(LogDir(path, world))
        except StorageError:
            self._release()
            raise
        self.pool = world.threads.pool("log-io", io_threads)

    def claim(self, cluster_id: str, node_id: int) -> list[MetaProperties]:
        """Note on every directory whose it is; `ConfigError` if one is another node's or cluster's."""
        return [home.claim(cluster_id, node_id) for home in self._dirs]

    def logs(self) -> Mapping[LogKey, LocalLog]:
        """All logs, by topic id and partition; a live view."""
        return MappingProxyType(self._logs)

    # Opening

    async def open_all(self, config_of: Callable[[str], LogConfig]) -> None:
        """Open every log in the directories, several at a time, recovering what needs it.

        `config_of`: settings of a topic by name. `StorageError` if a log cannot be opened.
        """
        for home in self._dirs:
            found = await self._run(_look_into, home)
            self._checkpoint.names |= found.recovery_points.keys() | found.log_starts.keys()
            replicas = self._replicas(home, found.directories)
            _log.info(
                "opening %d logs in %s after a %s stop",
                len(replicas), home.path, "clean" if found.clean else "hard",
            )  # fmt: skip
            jobs = [
                self._run(self._open, path, *named, config_of(named[0]), found) for path, named in replicas
            ]
            for log in await _all_of(jobs):
                self._adopt(log, home)

    def _run(self, job: Callable[..., T], *args: object) -> asyncio.Future[T]:
        """Have a `log-io` thread do it."""
        running = self.pool.submit(job, *args)
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        return asyncio.wrap_future(running)

    def _replicas(self, home: LogDir, directories: list[str]) -> list[tuple[Path, tuple[str, int]]]:
        """Directories of replicas; what was on its way to deletion is removed."""
        found = []
        for name in directories:
            path = home.path / name
            if name == names.CLUSTER_METADATA_DIR:
                continue
            named = names.parse_partition_dir(path.name)
            if named is not None:
                found.append((path, named))
            elif path.name.endswith(names.DELETE_DIR):
                self._run(self._remove, path)
            elif path.name.endswith((names.STRAY_DIR, names.FUTURE_DIR)):
                _log.warning("%s is left alone: not a replica in use", path)
        return found

    def _open(
        self,
        path: Path,
        topic: str,
        partition: int,
        config: LogConfig,
        known: _Found,
    ) -> LocalLog:
        return LocalLog.open(
            path,
            TopicIdPartition(read_topic_id(self._disk, path) or NO_TOPIC_ID, topic, partition),
            config,
            world=self._world,
            recovery_point=known.recovery_points.get((topic, partition), 0),
            log_start_offset=known.log_starts.get((topic, partition), 0),
            clean=known.clean,
            files=self.files,
            producer_expiration_ms=self._producer_expiration_ms,
        )

    def _adopt(self, log: LocalLog, home: LogDir) -> None:
        key = log.tip.topic_id, log.tip.partition
        if log.tip.topic_id != NO_TOPIC_ID and key in self._logs:
            raise StorageError(f"{log.dir} and {self._logs[key].dir} hold the same replica")
        self._logs[key] = log
        self._homes[log] = home
        log.on_roll = self._on_roll

    def get(self, topic_id: UUID, partition: int) -> LocalLog | None:
        return self._logs.get((topic_id, partition))

    def get_or_create(self, tip: TopicIdPartition, config: LogConfig) -> LocalLog:
        """The partition's log, made empty in the directory with the fewest if there is none.

        A directory of the same name that belongs to another topic id is set aside as stray, not touched
        otherwise. `StorageError` if the disk refuses.
        """
        log = self._logs.get((tip.topic_id, tip.partition))
        if log is not None:
            return log
        self._set_aside(tip)
        counts = [sum(1 for home in self._homes.values() if home is one) for one in self._dirs]
        home = self._dirs[counts.index(min(counts))]
        if (tip.topic, tip.partition) in self._checkpoint.names:
            # It speaks of a predecessor, whose start offset could cut this log after a crash.
            self._checkpoint.write(self._offsets(), fsync=False)
        path = home.path / names.partition_dir(tip.topic, tip.partition)
        self._disk.mkdir(path)
        write_topic_id(self._disk, path, tip.topic_id)
        log = self._open(path, tip.topic, tip.partition, config, _NEW)
        self._adopt(log, home)
        return log

    def _set_aside(self, tip: TopicIdPartition) -> None:
        for key, other in list(self._logs.items()):
            if (other.tip.topic, other.tip.partition) == (tip.topic, tip.partition):
                path = self._retire(key, names.STRAY_DIR)
                _log.warning(
                    "%s holds topic id %s, not %s: set aside", path, other.tip.topic_id, tip.topic_id
                )

    def set_aside_unknown(self, is_known: Callable[[UUID, int], bool]) -> None:
        """Rename the logs of partitions that the metadata does not have: they serve nobody and are not lost.

        A topic deleted just before a crash leaves one; so does a data directory put beside another node's
        metadata.
        """
        for key, log in list(self._logs.items()):
            if not is_known(*key):
                path = self._retire(key, names.STRAY_DIR)
                _log.warning("%s-%d is unknown to the metadata: set aside as %s", *log.tip[1:], path)

    # Going away

    def delete(self, tip: TopicIdPartition) -> bool:
        """Take a log out of use; its files go after ``file.delete.delay.ms``. False if it is not here."""
        key = tip.topic_id, tip.partition
        log = self._logs.get(key)
        if log is None:
            return False
        due_ms = self._clock.now_ms() + log.config.file_delete_delay_ms
        self._doomed.append((due_ms, self._retire(key, names.DELETE_DIR)))
        return True

    def _retire(self, key: LogKey, suffix: str) -> Path:
        log = self._logs.pop(key)
        home = self._homes.pop(log)
        self._rolled.discard(log)
        self._checkpoint_soon = True
        target = home.path / names.retired_dir(
            log.tip.topic, log.tip.partition, self._world.new_uuid(), suffix
        )
        self._disk.rename(log.dir, target)
        log.moved(target)
        log.close(clean=False)
        return target

    # Durability

    def _on_roll(self, log: LocalLog) -> None:
        self._rolled.add(log)
        if self._wake is not None:
            self._wake.set()

    async def flush(self, log: LocalLog) -> None:
        """Return once everything appended to `log` until now is durable.

        Callers that come together share an fsync.
        """
        target = log.log_end_offset
        while log.recovery_point < min(target, log.log_end_offset):
            running = self._flushes.get(log)
            if running is None:
                running = self._run(log.flush)
                self._flushes[log] = running
                running.add_done_callback(lambda _: self._flushes.pop(log, None))
            await asyncio.shield(running)

    async def run(self) -> None:
        """Flush, checkpoint, expire and unlink, for as long as the task lives.

        Ends with `StorageError` if the disk fails.
        """
        self._wake = wake = asyncio.Event()
        checkpoint_at = self._clock.monotonic_ms() + self._checkpoint_interval_ms
        expire_at = self._clock.monotonic_ms() + _PRODUCER_EXPIRY_CHECK_MS
        while True:
            rolled, self._rolled = self._rolled, set()
            for log in rolled:
                await self._run(log.flush, log.active_base_offset)
            await self._flush_due()
            await self._run(self._remove_due, self._take_due(self._clock.now_ms()))
            now_ms = self._clock.monotonic_ms()
            if now_ms >= checkpoint_at or self._checkpoint_soon:
                self._checkpoint_soon = False
                checkpoint_at = now_ms + self._checkpoint_interval_ms
                await self._run(self._checkpoint.write, self._offsets())
            if now_ms >= expire_at:
                expire_at = now_ms + _PRODUCER_EXPIRY_CHECK_MS
                for log in self._logs.values():
                    log.producers.expire(self._clock.now_ms())
            if not self._rolled:
                wake.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_TICK_S):
                        await wake.wait()

    async def _flush_due(self) -> None:
        """``flush.ms``: logs whose unflushed records have waited that long."""
        now_ms = self._clock.now_ms()
        for log in tuple(self._logs.values()):
            overdue = now_ms - log.last_flush_ms >= log.config.flush_ms
            if log in self._homes and log.unflushed_records and (overdue or log.flush_due):
                await self.flush(log)

    def _take_due(self, now_ms: int) -> list[Path]:
        due = [path for at, path in self._doomed if at <= now_ms]
        self._doomed = [(at, path) for at, path in self._doomed if at > now_ms]
        for log in self._logs.values():
            due += log.take_removals(now_ms)
        return due

    def _remove_due(self, paths: list[Path]) -> None:
        for path in paths:
            self._remove(path)

    def _remove(self, path: Path) -> None:
        """Remove a file or a directory that nobody needs; what stays is tried again at the next start."""
        try:
            if self._disk.stat(path).is_dir:
                remove_tree(self._disk, path)
            else:
                remove_file(self._disk, path)
        except MissingFile:
            return
        except DiskError as e:
            _log.warning("%s stays: %s", path, e)

    def checkpoint(self) -> None:
        """Write recovery points and log starts of all logs. Blocks on the disk."""
        self._checkpoint.write(self._offsets())

    def _offsets(self) -> _Offsets:
        """Per directory: recovery points, and the log starts that are not plain from the files."""
        found = []
        for home in self._dirs:
            logs = [log for log, at in self._homes.items() if at is home]
            points = {(log.tip.topic, log.tip.partition): log.recovery_point for log in logs}
            starts = {
                (log.tip.topic, log.tip.partition): log.log_start_offset
                for log in logs
                if log.config.remote_storage_enable or log.log_start_offset > log.first_base_offset
            }
            found.append((home, points, starts))
        return _Offsets(next(self._taken), found)

    async def close(self, clean: bool = True, broker_epoch: int = -1) -> None:
        """Close all logs and give up the directories. With `clean` the next start needs no recovery.

        End `run` first. `StorageError` if the disk refuses; no marker is left then.
        """
        try:
            await _all_of([self._run(log.close, clean) for log in self._logs.values()])
            if clean:
                await self._run(self._mark_clean, self._offsets(), broker_epoch)
        finally:
            # What the cancelled background task began goes on in its thread.
            running = [asyncio.wrap_future(job) for job in tuple(self._running)]
            await asyncio.gather(*running, return_exceptions=True)
            self.pool.shutdown(wait=False)
            self._release()

    def _mark_clean(self, offsets: _Offsets, broker_epoch: int) -> None:
        self._checkpoint.write(offsets)
        for home in self._dirs:
            home.write_clean_marker(broker_epoch)

    def _release(self) -> None:
        for home in self._dirs:
            home.close()


async def _all_of(jobs: list[asyncio.Future[T]]) -> list[T]:
    """The results of all; the first error, once all have ended, so that none works on unseen."""
    results = await asyncio.gather(*jobs, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [job.result() for job in jobs]
