"""All local logs of a node: where they lie, opening, flushing, checkpoints, removal (Kafka `LogManager`).

Owned by the event loop. Whatever waits for the disk runs on the `log-io` pool: recovery at start, fsync,
checkpoints, unlinking.

What fails costs as little as it can. A log that cannot be opened, or turns out to be damaged, is offline: it
answers nothing, keeps its bytes, and nothing is made in its place. A log directory in which an fsync failed
takes all its logs offline. It is never checkpointed nor marked clean again, and whoever runs the node is
told.
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
from typing import Any, Final, TypeVar
from uuid import UUID

from service.base.disk import DiskError, MissingFile
from service.base.errors import CorruptionError, StorageError
from service.base.files import fsync_dir, remove_file, remove_tree
from service.base.types import TopicIdPartition
from service.base.world import World
from service.config.settings import LogConfig
from service.hot import names
from service.hot.checkpoints import AllOffsets, Checkpoints, DirOffsets
from service.hot.files import FileCache
from service.hot.log import DEFAULT_PRODUCER_EXPIRATION_MS, LocalLog
from service.hot.log_dir import LogDir, MetaProperties, write_topic_id
from service.hot.metrics import HotMetrics
from service.hot.opening import NEW, NO_TOPIC_ID, OfflineReplica, Opener, look_into
from service.hot.state import LogOffline

_log = logging.getLogger(__name__)

NEVER_MS: Final = 2**63 - 1
_TICK_S: Final = 1.0
_PRODUCER_EXPIRY_CHECK_MS: Final = 600_000
_REMOVE_AGAIN_MS: Final = 10_000
_OPEN_AGAIN_MS: Final = 5_000

T = TypeVar("T")

LogKey = tuple[UUID, int]
"""(topic id, partition)"""


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
        on_directory_failed: Callable[[Path, StorageError], None] | None = None,
    ) -> None:
        """`checkpoint_interval_ms`: ``log.flush.offset.checkpoint.interval.ms``.

        `on_directory_failed`: told on the loop of each log directory that has failed, once. A directory that
        cannot be used is left out, its replicas are offline (Kafka `LogManager.createAndValidateLogDirs`).
        `StorageError` for the first one, which holds the metadata log, and if any is in use.
        """
        self.files = FileCache(world.disk, max_open_files)
        self.metrics = HotMetrics()
        self._world = world
        self._clock = world.clock
        self._disk = world.disk
        self._checkpoint_interval_ms = checkpoint_interval_ms
        self._opener = Opener(world, self.files, producer_expiration_ms)
        self._io_threads = io_threads
        self._on_directory_failed = on_directory_failed
        self._logs: dict[LogKey, LocalLog] = {}
        self._homes: dict[LocalLog, LogDir] = {}
        self._offline: list[OfflineReplica] = []
        self._flushes: dict[LocalLog, asyncio.Future[int]] = {}
        self._to_flush: dict[LocalLog, None] = {}
        self._checkpoints = Checkpoints(world.threads)
        self._checkpoint_soon = False
        self._taken = itertools.count()
        self._wake: asyncio.Event | None = None
        self._doomed: list[tuple[int, Path]] = []
        self._dirs: list[LogDir] = []
        self._unusable: dict[Path, DiskError] = {}
        """log directories that could not be used at this start: what is in them is not known"""
        self._failed: set[LogDir] = set()
        self._running: set[Future[Any]] = set()
        try:
            for path in log_dirs:
                self._claim_directory(path, world)
        except StorageError:
            self._release()
            raise
        self.pool = world.threads.pool("log-io", io_threads)

    def claim(self, cluster_id: str, node_id: int) -> list[MetaProperties]:
        """Note on every directory whose it is; `ConfigError` if one is another node's or cluster's."""
        claimed = []
        for home in tuple(self._dirs):
            try:
                claimed.append(home.claim(cluster_id, node_id))
            except DiskError as e:
                self._leave_out(home, e)
        return claimed

    @property
    def directories(self) -> list[Path]:
        """The log directories that could be used at this start."""
        return [home.path for home in self._dirs]

    def _claim_directory(self, path: Path, world: World) -> None:
        try:
            self._dirs.append(LogDir(path, world))
        except DiskError as e:
            if not self._dirs:
                raise
            self._note_unusable(path, e)

    def _leave_out(self, home: LogDir, error: DiskError) -> None:
        """A directory that fails before anything in it was opened; the first one's failure is raised."""
        if home is self._dirs[0]:
            raise error
        self._dirs.remove(home)
        home.close()
        self._note_unusable(home.path, error)

    def _note_unusable(self, path: Path, error: DiskError) -> None:
        self._unusable[path] = error
        _log.critical("log directory %s cannot be used and is offline with all its logs: %s", path, error)

    def logs(self) -> Mapping[LogKey, LocalLog]:
        """All logs, offline ones among them, by topic id and partition; a live view."""
        return MappingProxyType(self._logs)

    # Opening

    async def open_all(self, config_of: Callable[[str], LogConfig]) -> None:
        """Open every log in the directories, several at a time, recovering what needs it.

        `config_of`: settings of a topic by name. A log that cannot be opened is offline, and said so;
        So are those of a directory that cannot be read.
        """
        for home in tuple(self._dirs):
            try:
                found = await self._run(look_into, home)
            except DiskError as e:
                self._leave_out(home, e)
                continue
            self._checkpoints.names |= found.recovery_points.keys() | found.log_starts.keys()
            replicas = self._replicas(home, found.directories)
            stop = f"after a {'clean' if found.clean else 'hard'} stop" if replicas else "which has none yet"
            _log.info("opening %d logs in %s, %s", len(replicas), home.path, stop)
            jobs = [
                self._run(self._opener.open_replica, path, *named, config_of(named[0]), found, home)
                for path, named in replicas
            ]
            for opened in await _all_of(jobs):
                self._take_in(opened, home)
            if found.doubtful:
                await self._settle(home)

    async def _settle(self, home: LogDir) -> None:
        """What an earlier process could not flush was written again: flush it before anything rests on it."""
        _log.warning("%s: an fsync failed in it before; what was in doubt is written again", home.path)
        settled = not any(one.home is home for one in self._offline)
        for log in [log for log, at in self._homes.items() if at is home]:
            again = await self._flush_in_background(log, log.log_end_offset)
            settled &= again is None and log.failure is None
        if settled:
            await self._run(home.trust_again)

    def _run(self, job: Callable[..., T], *args: object) -> asyncio.Future[T]:
        """Have a `log-io` thread do it."""
        running = self.pool.submit(job, *args)
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        return asyncio.wrap_future(running)

    def _run_flush(self, log: LocalLog, up_to: int | None = None) -> asyncio.Future[int]:
        running, began_ms = self._run(log.flush, up_to), self._clock.monotonic_ms()
        running.add_done_callback(
            lambda done: self.metrics.flushed(done, self._clock.monotonic_ms() - began_ms)
        )
        return running

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

    def _take_in(self, opened: LocalLog | OfflineReplica | None, home: LogDir) -> None:
        if isinstance(opened, OfflineReplica):
            _log.error("%s is offline, its files are left as they are: %s", opened.path, opened.why)
            self._offline.append(opened)
        elif opened is not None:
            self._adopt(opened, home)

    def _adopt(self, log: LocalLog, home: LogDir) -> None:
        tip = log.tip
        log.watch(self._wants_flush, self._start_moved)
        other = self._logs.get((tip.topic_id, tip.partition))
        if other is not None:
            other.fail(StorageError(f"{log.dir} and {other.dir} hold the same replica"))
            log.close(clean=False)
            return
        self._logs[tip.topic_id, tip.partition] = log
        self._homes[log] = home
        if log.has_unsynced_files:
            self._wants_flush(log)

    def offline(self) -> list[tuple[TopicIdPartition, str]]:
        """Replicas that could not be opened, and why; with topic id 0 where that is not known."""
        return [(one.tip, str(one.why)) for one in self._offline]

    async def _open_again(self) -> None:
        """Try those again that the disk did not let us open; damage does not pass."""
        for one in [one for one in self._offline if not one.is_damaged]:
            named = one.tip.topic, one.tip.partition
            job = self._run(self._opener.open_replica, one.path, *named, one.config, one.known, one.home)
            opened = await job
            if one not in self._offline:
                if isinstance(opened, LocalLog):
                    opened.close(clean=False)
            elif not isinstance(opened, OfflineReplica):
                self._offline.remove(one)
                self._take_in(opened, one.home)
                _log.info("%s is open now", one.path)

    def get(self, topic_id: UUID, partition: int) -> LocalLog | None:
        return self._logs.get((topic_id, partition))

    def get_or_create(self, tip: TopicIdPartition, config: LogConfig, *, is_new: bool = True) -> LocalLog:
        """The partition's log, made empty in the directory with the fewest if there is none.

        A directory of the same name that belongs to another topic id is set aside as stray, not touched
        otherwise. `StorageError` where the disk refuses; `CorruptionError` where the partition's files are
        damaged, or may be its and cannot be read: nothing is made in their place. So it is where a directory
        could not be used, unless `is_new` says that the partition never had files.
        """
        key = tip.topic_id, tip.partition
        log = self._logs.get(key)
        if log is not None:
            return log
        for one in self._offline:
            if one.tip[1:] == tip[1:] and one.tip.topic_id in (tip.topic_id, NO_TOPIC_ID):
                kind = CorruptionError if one.is_damaged else LogOffline
                raise kind(f"{one.path} could not be opened: {one.why}")
        for path, why in self._unusable.items():
            if not is_new:
                raise LogOffline(f"its files may be in {path}, which cannot be used: {why}")
        home = self._roomiest()
        if home is None:
            raise LogOffline("no log directory is left")
        log = self._make(home.path / names.partition_dir(tip.topic, tip.partition), tip, config, home)
        self._adopt(log, home)
        return log

    def _roomiest(self) -> LogDir | None:
        """The directory with the fewest logs among those that work."""
        counts = {home: 0 for home in self._dirs if home.latch.failure is None}
        for home in self._homes.values():
            if home in counts:
                counts[home] += 1
        return min(counts, key=lambda home: counts[home], default=None)

    def _make(self, path: Path, tip: TopicIdPartition, config: LogConfig, home: LogDir) -> LocalLog:
        self._set_aside(tip)
        if (tip.topic, tip.partition) in self._checkpoints.names:
            # It speaks of a predecessor, whose offsets would make this log a damaged one after a crash.
            failed = self._checkpoints.write(self._offsets())
            if home in failed:
                raise LogOffline(f"no checkpoint could be written: {failed[home]}")
        self._disk.mkdir(path)
        try:
            write_topic_id(self._disk, path, tip.topic_id)
            log = self._opener.open(path, tip, config, NEW, home)
        except (StorageError, CorruptionError):
            self._remove(path)
            raise
        log.note_made(path / names.PARTITION_METADATA)
        return log

    def _set_aside(self, tip: TopicIdPartition) -> None:
        for key, other in list(self._logs.items()):
            if (other.tip.topic, other.tip.partition) == (tip.topic, tip.partition):
                path = self._retire(key, names.STRAY_DIR)
                _log.warning(
                    "%s holds topic id %s, not %s: set aside", path, other.tip.topic_id, tip.topic_id
                )
        for one in [one for one in self._offline if one.tip[1:] == tip[1:]]:
            self._opener.set_aside(one.path, one.tip, one.home, f"it holds topic id {one.tip.topic_id}")
            self._offline.remove(one)

    def set_aside_unknown(self, is_known: Callable[[UUID, int], bool]) -> None:
        """Rename the logs of partitions that the metadata does not have: they serve nobody and are not lost.

        A topic deleted just before a crash leaves one; so does a data directory put beside another node's
        metadata. What the disk does not let us rename stays, and is said.
        """
        for key, log in list(self._logs.items()):
            if not is_known(*key):
                try:
                    path = self._retire(key, names.STRAY_DIR)
                except DiskError as e:
                    _log.warning("%s is unknown to the metadata and stays: %s", log.dir, e)
                else:
                    _log.warning("%s-%d is unknown to the metadata: set aside as %s", *log.tip[1:], path)

    # Going away

    def delete(self, tip: TopicIdPartition) -> bool:
        """Take a log out of use; its files go after ``file.delete.delay.ms``. False if it is not here."""
        key = tip.topic_id, tip.partition
        log = self._logs.get(key)
        if log is None:
            return self._delete_offline(tip)
        due_ms = self._clock.now_ms() + log.config.file_delete_delay_ms
        try:
            self._doomed.append((due_ms, self._retire(key, names.DELETE_DIR)))
        except MissingFile:
            _log.warning("%s was gone before it was deleted", log.dir)
        except DiskError as e:
            _log.error("%s of a deleted topic keeps its name until it is removed: %s", log.dir, e)
            self._doomed.append((due_ms, log.dir))
        return True

    def _delete_offline(self, tip: TopicIdPartition) -> bool:
        for one in [one for one in self._offline if one.tip == tip]:
            self._offline.remove(one)
            self._doomed.append((self._clock.now_ms() + one.config.file_delete_delay_ms, one.path))
            return True
        return False

    def _retire(self, key: LogKey, suffix: str) -> Path:
        log = self._logs.pop(key)
        home = self._homes.pop(log, None)
        self._to_flush.pop(log, None)
        self._checkpoint_soon = True
        log.retire()
        parent = home.path if home is not None else log.dir.parent
        target = parent / names.retired_dir(log.tip.topic, log.tip.partition, self._world.new_uuid(), suffix)
        try:
            self._disk.rename(log.dir, target)
            log.moved(target)
        finally:
            log.close(clean=False)
        return target

    # Durability

    def _wants_flush(self, log: LocalLog) -> None:
        self._to_flush[log] = None
        if self._wake is not None:
            self._wake.set()

    def _start_moved(self) -> None:
        self._checkpoint_soon = True
        if self._wake is not None:
            self._wake.set()

    async def flush(self, log: LocalLog) -> None:
        """Return once everything appended to `log` until now is durable.

        Callers that come together share an fsync. `StorageError` where the disk refuses or the log is gone.
        """
        target = log.log_end_offset
        while log.recovery_point < min(target, log.log_end_offset):
            if log not in self._homes:
                raise LogOffline(f"{log.tip} is not here any more")
            running = self._flushes.get(log)
            if running is None:
                running = self._run_flush(log)
                self._flushes[log] = running
                running.add_done_callback(lambda _: self._flushes.pop(log, None))
            try:
                await asyncio.shield(running)
            except StorageError:
                self._take_directories_offline()
                raise

    async def _flush_in_background(self, log: LocalLog, up_to: int) -> LocalLog | None:
        """The log again where it is to be tried later."""
        try:
            await self._run_flush(log, up_to)
        except StorageError as e:
            self._take_directories_offline()
            if log.failure is None and log in self._homes:
                _log.error("flushing %s, to be tried again: %s", log.tip, e)
                return log
        return None

    def _take_directories_offline(self) -> None:
        """Let go of what lies in directories that have failed since we looked last."""
        for home in self._dirs:
            failure = home.latch.failure
            if failure is None or home in self._failed:
                continue
            self._failed.add(home)
            _log.critical("log directory %s failed and is offline with all its logs: %s", home.path, failure)
            for log, at in tuple(self._homes.items()):
                if at is home:
                    log.fail(failure)
            if self._on_directory_failed is not None:
                self._on_directory_failed(home.path, failure)

    async def run(self) -> None:
        """Flush, checkpoint, expire and unlink, for as long as the task lives.

        What the disk refuses is said and tried again; what it has lost takes its directory offline.
        """
        self._wake = wake = asyncio.Event()
        checkpoint_at = self._clock.monotonic_ms() + self._checkpoint_interval_ms
        expire_at = self._clock.monotonic_ms() + _PRODUCER_EXPIRY_CHECK_MS
        open_at = 0
        while True:
            again = await self._flush_waiting()
            await self._flush_due()
            now_ms = self._clock.monotonic_ms()
            if now_ms >= checkpoint_at or self._checkpoint_soon:
                self._checkpoint_soon = False
                checkpoint_at = now_ms + self._checkpoint_interval_ms
                await self._write_checkpoints()
            await self._remove_due(self._clock.now_ms())
            if now_ms >= open_at:
                open_at = now_ms + _OPEN_AGAIN_MS
                await self._open_again()
            if now_ms >= expire_at:
                expire_at = now_ms + _PRODUCER_EXPIRY_CHECK_MS
                for log in self._logs.values():
                    log.producers.expire(self._clock.now_ms())
            if not self._to_flush:
                wake.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_TICK_S):
                        await wake.wait()
            self._to_flush |= again

    async def _flush_waiting(self) -> dict[LocalLog, None]:
        """Sealed segments and side files; as many at a time as there are threads, so that nobody who waits
        for a flush has to wait for all of them. Those to be tried again."""
        waiting, self._to_flush = list(self._to_flush), {}
        again: dict[LocalLog, None] = {}
        for first in range(0, len(waiting), self._io_threads):
            logs = [log for log in waiting[first : first + self._io_threads] if log in self._homes]
            jobs = [self._flush_in_background(log, log.active_base_offset) for log in logs]
            again.update((log, None) for log in await asyncio.gather(*jobs) if log is not None)
        return again

    async def _flush_due(self) -> None:
        """``flush.ms``: logs whose unflushed records have waited that long."""
        now_ms = self._clock.now_ms()
        for log in tuple(self._logs.values()):
            overdue = now_ms - log.last_flush_ms >= log.config.flush_ms
            works = log in self._homes and log.failure is None
            if works and log.unflushed_records and (overdue or log.flush_due):
                await self._flush_in_background(log, log.log_end_offset)

    async def _write_checkpoints(self) -> Mapping[LogDir, Exception]:
        failed = await self._run(self._checkpoints.write, self._offsets())
        self._take_directories_offline()
        if any(home not in self._failed for home in failed):
            self._checkpoint_soon = True  # at the next tick
        return failed

    async def _remove_due(self, now_ms: int) -> None:
        """Unlink what has waited long enough. Starts move first: no file goes before a checkpoint says so."""
        logs = [log for log in self._logs.values() if log.has_removals(now_ms)]
        failed = await self._write_checkpoints() if logs else {}
        paths = [path for at, path in self._doomed if at <= now_ms]
        self._doomed = [(at, path) for at, path in self._doomed if at > now_ms]
        if paths:
            await self._run(self._remove_in_order, paths, False)
        for log in logs:
            if log in self._homes and self._homes[log] not in failed:
                left = await self._run(self._remove_in_order, log.take_removals(now_ms), True)
                log.put_back_removals(left, now_ms + _REMOVE_AGAIN_MS)

    def _remove_in_order(self, paths: list[Path], is_one_log: bool) -> list[Path]:
        """What is left. Of one log nothing goes before what stays: segments that are there must meet."""
        for number, path in enumerate(paths):
            if not self._remove(path) and is_one_log:
                return paths[number:]
        return []

    def _remove(self, path: Path) -> bool:
        """Remove a file or a directory that nobody needs; False where it stays, to be tried again later, of
        topics that are deleted at the next start."""
        try:
            if self._disk.stat(path).is_dir:
                remove_tree(self._disk, path)
                return True
            remove_file(self._disk, path)
            if path.suffix == names.LOG:
                # One segment after the other, for good: no crash leaves a hole between those that stay.
                fsync_dir(self._disk, path.parent)
        except MissingFile:
            return True
        except DiskError as e:
            _log.warning("%s stays: %s", path, e)
            return False
        return True

    def checkpoint(self) -> None:
        """Write recovery points and log starts of all logs. Blocks on the disk; `StorageError`."""
        for error in self._checkpoints.write(self._offsets()).values():
            raise StorageError(f"checkpoints: {error}") from error

    def _offsets(self) -> AllOffsets:
        """Per directory: recovery points, and the log starts that are not plain from the files."""
        found = {home: DirOffsets(home, {}, {}) for home in self._dirs}
        for log, home in self._homes.items():
            name = log.tip.topic, log.tip.partition
            found[home].recovery_points[name] = log.recovery_point
            tiered, moved = log.config.remote_storage_enable, log.log_start_offset > log.first_base_offset
            if tiered or moved:
                found[home].log_starts[name] = log.log_start_offset
        for one in self._offline:
            name = one.tip.topic, one.tip.partition
            for offsets, known in zip(found[one.home][1:], one.known[1:3], strict=True):
                if name in known:
                    offsets[name] = known[name]
        return AllOffsets(next(self._taken), list(found.values()))

    async def close(self, clean: bool = True, broker_epoch: int = -1) -> None:
        """Close all logs and give up the directories. With `clean` the next start needs no recovery.

        End `run` first. A directory gets no marker where anything in it is offline or could not be closed.
        """
        try:
            closing = [self._run(self._close, log, clean) for log in self._logs.values()]
            unclean = {*await _all_of(closing), *(one.home for one in self._offline)}
            self._take_directories_offline()
            if clean:
                await self._run(self._mark_clean, self._offsets(), broker_epoch, unclean | self._failed)
        finally:
            # What the cancelled background task began goes on in its thread.
            running = [asyncio.wrap_future(job) for job in tuple(self._running)]
            await asyncio.gather(*running, return_exceptions=True)
            self.pool.shutdown(wait=False)
            self._release()

    def _close(self, log: LocalLog, clean: bool) -> LogDir | None:
        """The log's directory, where it must not be marked clean."""
        clean = clean and log.failure is None
        try:
            log.close(clean)
        except (StorageError, CorruptionError) as e:
            _log.error("closing %s: %s", log.tip, e)
            clean = False
            log.close(clean=False)
        return None if clean else self._homes.get(log)

    def _mark_clean(self, offsets: AllOffsets, broker_epoch: int, unclean: set[LogDir | None]) -> None:
        failed = self._checkpoints.write(offsets)
        for home in self._dirs:
            if home in failed or home in unclean:
                _log.warning(
                    "%s is not marked clean: its logs are looked through at the next start", home.path
                )
                continue
            try:
                home.write_clean_marker(broker_epoch)
            except DiskError as e:
                _log.error("%s is not marked clean: %s", home.path, e)

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
