"""All local logs of a node: directories, opening, making, removal (Kafka `LogManager`).

Owned by the event loop. The `log-io` pool does all that waits for the disk, in groups: recovery at start,
making and renaming directories. `log_maintenance` does the background work.

Failures are contained. A log that cannot be opened, or turns out to be damaged, is offline: it serves no
request, keeps its files, and no log is made in its place.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final
from uuid import UUID

from service.base.disk import DiskError, MissingFile, Space
from service.base.errors import CorruptionError, StorageError
from service.base.slices import Slice
from service.base.types import TopicIdPartition
from service.base.world import World
from service.config.settings import LogConfig
from service.hot import names
from service.hot.checkpoints import AllOffsets
from service.hot.cleaning.cleaner import CLEANER_NICE
from service.hot.directories import LogDirs
from service.hot.file_deletion import RetiredLog, delete, rename_all
from service.hot.files import FileCache
from service.hot.log import DEFAULT_PRODUCER_EXPIRATION_MS, LocalLog
from service.hot.log_dir import LogDir, MetaProperties
from service.hot.log_io import LogIo
from service.hot.log_maintenance import LogMaintenance
from service.hot.log_registry import LogKey, LogRegistry
from service.hot.metrics import HotMetrics
from service.hot.offline_replicas import OfflineReplicas
from service.hot.opening import (
    LogDirContents,
    LogOpener,
    NewLog,
    OfflineReplica,
    close_logs,
    read_log_dir,
)
from service.hot.state import LogOffline
from service.records.scan import BatchScan

_log = logging.getLogger(__name__)

_OPENED_AT_A_TIME: Final = 64

IsNew = Callable[[TopicIdPartition], bool]

Made = LocalLog | StorageError | CorruptionError
"""A log, or why it could not be made."""


class LogManager:
    """The logs in ``log.dirs``. The constructor locks the directories; `open_all` opens the logs."""

    def __init__(
        self,
        log_dirs: Iterable[Path],
        world: World,
        *,
        essential: Path | None = None,
        checkpoint_interval_ms: int = 60_000,
        high_watermark_interval_ms: int = 5_000,
        producer_expiration_ms: int = DEFAULT_PRODUCER_EXPIRATION_MS,
        io_threads: int = 2,
        max_open_files: int = 256,
        on_directory_failed: Callable[[Path, StorageError], None] | None = None,
    ) -> None:
        """`checkpoint_interval_ms`: ``log.flush.offset.checkpoint.interval.ms``.
        `high_watermark_interval_ms`: ``replica.high.watermark.checkpoint.interval.ms``.
        `on_directory_failed`: called once on the loop for each log directory that fails. `essential`, and the
        errors raised: see `LogDirs`.
        """
        self.files = FileCache(world.disk, max_open_files)
        self.metrics = HotMetrics()
        self._world = world
        self._clock, self._disk = world.clock, world.disk
        self._opener = LogOpener(world, self.files, producer_expiration_ms)
        self._registry = LogRegistry()
        self.get = self._registry.get
        self._offline = OfflineReplicas()
        self._dirs = LogDirs(log_dirs, world, essential)
        self.is_online, self.registered = self._dirs.is_online, self._dirs.registered
        self.previous_epoch = self._dirs.previous_epoch
        self._io = LogIo(world.threads, io_threads)
        self.on_thread = self._io.run  # for callers with a large read
        self._append_io = LogIo(world.threads, io_threads, "log-append")
        self._cleaner_io = LogIo(world.threads, io_threads, "log-cleaner", nice=CLEANER_NICE)
        self._maintenance = LogMaintenance(
            self._io,
            self._cleaner_io,
            world,
            self._registry,
            self._dirs,
            self.metrics,
            checkpoint_interval_ms=checkpoint_interval_ms,
            high_watermark_interval_ms=high_watermark_interval_ms,
            producer_expiration_ms=producer_expiration_ms,
            open_again=self._open_again,
            on_directory_failed=on_directory_failed,
        )
        self.run, self.cleaner = self._maintenance.run, self._maintenance.cleaner
        self.flush = self._maintenance.flusher.flush
        self.durable_start = self._maintenance.durable_start
        self._checkpoints = self._maintenance.checkpoints
        self.checkpoint_starts = self._checkpoints.write  # `durable_start` then returns the result
        self.lower_recovery_point = self._checkpoints.lower_recovery_point
        self._high_watermarks = self._maintenance.high_watermarks
        self.high_watermark = self._high_watermarks.get
        self.checkpoint_high_watermarks = self._high_watermarks.follow

    def set_producer_expiration(self, expiration_ms: int) -> None:
        """Set ``producer.id.expiration.ms``, from the next expiry on."""
        self._opener.producer_expiration_ms = self._maintenance.producer_expiration_ms = expiration_ms

    def claim(self, cluster_id: str, node_id: int, *, keeps_ends: bool = False) -> dict[Path, MetaProperties]:
        """Write cluster and node id to each directory; `ConfigError` if one is another node's or cluster's.
        `keeps_ends`: for a broker of a cluster, which checks them after a kill."""
        return self._dirs.claim(cluster_id, node_id, keeps_ends=keeps_ends)

    @property
    def directories(self) -> list[Path]:
        """The log directories that could be used at this start."""
        return self._dirs.paths

    def logs(self) -> Mapping[LogKey, LocalLog]:
        """All logs, also offline ones, by topic id and partition; a live view."""
        return MappingProxyType(self._registry.logs)

    def by_directory(self) -> list[tuple[LocalLog, Path]]:
        """All logs, also offline ones, each with its log directory."""
        return [(log, home.path) for log, home in self._registry.homes.items()]

    async def space(self, path: Path) -> Space:
        """Return the space of a log directory's file system; `StorageError` if the directory is offline."""
        self._dirs.check_online(path)
        return await self._io.run(self._disk.space, path)

    # Opening

    async def open_all(self, config_of: Callable[[str], LogConfig]) -> None:
        """Open every log in the directories, several at a time, and recover those that need it.

        `config_of`: settings of a topic by name. A log that cannot be opened is offline, with a log line; so
        are all logs of a directory that cannot be read.
        """
        for home in tuple(self._dirs.in_use):
            try:
                found = await self._io.run(read_log_dir, home)
            except DiskError as e:
                self._dirs.leave_out(home, e)
                continue
            self._maintenance.offsets.add(home)
            self._checkpoints.files.loaded(home, found.recovery_points, found.log_starts, found.cleaned)
            self._high_watermarks.loaded(home, found.high_watermarks, (named for _, named in found.replicas))
            for path in found.deleted:
                self._io.run(delete, self._disk, [path])
            stop = f"after a {'clean' if found.clean else 'hard'} stop"
            stop = stop if found.replicas else "which has none yet"
            _log.info("opening %d logs in %s, %s", len(found.replicas), home.path, stop)
            settings = {topic: config_of(topic) for topic in sorted({one for _, (one, _) in found.replicas})}
            wanted = [(path, *named, settings[named[0]]) for path, named in found.replicas]
            # One that needs recovery takes a thread for itself.
            group = _OPENED_AT_A_TIME if found.clean else 1
            for opened in await self._io.run_all(partial(self._open_group, found, home), wanted, group):
                self._add_opened(opened, home)
            if found.doubtful:
                await self._settle(home)
            await self._note_boot(home)
        self._dirs.check_kept({(one.tip.topic_id, one.tip.partition) for one in self._offline})

    async def _note_boot(self, home: LogDir) -> None:
        """Have the directory say in which run of the machine it is in use, once all is open or damaged."""
        unopened = [one for one in self._offline if one.home is home]
        if all(one.is_damaged for one in unopened):
            await self._io.run(home.note_boot, [one.path.name for one in unopened])

    def _open_group(
        self, found: LogDirContents, home: LogDir, wanted: Sequence[tuple[Path, str, int, LogConfig]]
    ) -> list[LocalLog | OfflineReplica | None]:
        return [self._opener.open_replica(*one, found, home) for one in wanted]

    async def _settle(self, home: LogDir) -> None:
        """Flush data that an earlier process could not flush and that was written again, before its use."""
        _log.warning("%s: an fsync failed in it before; data in doubt was written again", home.path)
        settled = home not in self._offline.homes()
        for log in self._registry.logs_in(home):
            done = await self._maintenance.flusher.flush_quietly(log, log.log_end_offset)
            settled &= done and log.failure is None
        if settled:
            await self._io.run(home.trust_again)

    def _add_opened(self, opened: LocalLog | OfflineReplica | None, home: LogDir) -> None:
        if isinstance(opened, OfflineReplica):
            _log.error("%s is offline, its files are left as they are: %s", opened.path, opened.why)
            name = opened.tip.topic, opened.tip.partition
            self._offline.add(opened)
            self._maintenance.offsets.keep(name, home, opened.known[1:4])
        elif opened is not None:
            self._adopt(opened, home)

    def _adopt(self, log: LocalLog, home: LogDir) -> None:
        tip = log.tip
        other = self.get(tip.topic_id, tip.partition)
        if other is not None and other.log_end_offset and log.log_end_offset:
            other.fail(StorageError(f"{log.dir} and {other.dir} hold the same replica"))
            log.close(clean=False)
            return
        if other is not None:
            # It was made in a directory that failed just then, and again in another one.
            spare, kept = (other, log) if log.log_end_offset else (log, other)
            _log.warning("ignoring %s: it is empty, %s is the replica", spare.dir, kept.dir)
            if spare is other:
                self._retire(other, names.STRAY_DIR)
            spare.close(clean=False)
            if spare is log:
                return
        self._registry.add(log, home)
        home.keep(log.state)
        log.listen(self._maintenance)
        self._maintenance.configured(log)
        if log.durability.has_unsynced_files:
            self._maintenance.needs_flush(log)

    def offline(self) -> list[tuple[TopicIdPartition, str]]:
        """Replicas that could not be opened, and why; with topic id 0 if it is unknown."""
        return [(one.tip, str(one.why)) for one in self._offline]

    def _not_offline(self, one: OfflineReplica) -> None:
        self._offline.discard(one)
        name = one.tip.topic, one.tip.partition
        if self._registry.named(name) is None:
            self._maintenance.offsets.forget(name, one.home)
            self._high_watermarks.forget(name, one.home)

    async def _open_again(self) -> None:
        """Retry logs that the disk did not let us open; damaged ones stay offline."""
        for one in [one for one in self._offline if not one.is_damaged]:
            name = one.tip.topic, one.tip.partition
            reopen = partial(self._opener.open_replica, one.path, *name, one.config, one.known, one.home)
            opened = await self._io.run(reopen)
            if not self._offline.holds(one):
                if isinstance(opened, LocalLog):
                    opened.close(clean=False)
            elif not isinstance(opened, OfflineReplica):
                self._not_offline(one)
                self._add_opened(opened, one.home)
                _log.info("%s is open now", one.path)
        for home in [one for one in self._dirs.in_use if one.is_boot_due and one not in self._dirs.failed]:
            await self._note_boot(home)

    def append_on_thread(self, log: LocalLog, data: memoryview, run: BatchScan) -> Coroutine[Any, Any, bool]:
        """Append a run as `LogAppender.append_on_thread` does, on a `log-append` thread."""
        return log.appender.append_on_thread(self._append_io, data, run)

    # Making

    async def create(
        self, wanted: Sequence[tuple[TopicIdPartition, LogConfig]], is_new: IsNew = lambda _: True
    ) -> list[Made]:
        """Return the partitions' logs; those that do not exist are made in the directory with the fewest.

        A directory of the same name with another topic id is renamed as stray. Instead of a log:
        `StorageError` if the disk refuses; `CorruptionError` if the partition's files are damaged, or may be
        its own and cannot be read: no log is made in their place. Likewise if a directory could not be used,
        unless `is_new` returns that the partition never had files. One call at a time.
        """
        missing = [(tip, config) for tip, config in wanted if self.get(tip.topic_id, tip.partition) is None]
        made = dict(await self._create_missing(missing, is_new)) if missing else {}
        return [self.get(tip.topic_id, tip.partition) or made[tip] for tip, _ in wanted]

    async def _create_missing(
        self, wanted: Sequence[tuple[TopicIdPartition, LogConfig]], is_new: IsNew
    ) -> list[tuple[TopicIdPartition, Made]]:
        found: list[tuple[TopicIdPartition, Made]] = []
        new: list[NewLog] = []
        piece = Slice()
        for tip, config in wanted:
            if piece.is_over():
                await piece.next_turn()
            try:
                self._offline.check(tip)
                if not is_new(tip):
                    self._dirs.check_complete()
                await self._make_way(tip)
                new.append(self._place(tip, config))
            except (StorageError, CorruptionError) as e:
                found.append((tip, e))
        named = [(one.tip.topic, one.tip.partition) for one in new]
        written = self._checkpoints.files.names
        if any(name in written or self._high_watermarks.may_contain(name) for name in named):
            # They contain a predecessor, whose offsets would make this log a damaged one after a crash.
            failed = {**await self._checkpoints.write(), **await self._high_watermarks.write()}
            for one in new:
                if one.home in failed:
                    self._registry.counts[one.home] -= 1
                    found.append((one.tip, LogOffline(f"no checkpoint was written: {failed[one.home]}")))
            new = [one for one in new if one.home not in failed]
        for one, made in zip(new, await self._io.run_all(self._opener.make_all, new), strict=True):
            if piece.is_over():
                await piece.next_turn()
            self._registry.counts[one.home] -= 1
            if isinstance(made, LocalLog):
                self._adopt(made, one.home)
            else:
                self._dirs.has_refused(one.home)
            found.append((one.tip, made))
        self._maintenance.take_directories_offline()
        return found

    async def _make_way(self, tip: TopicIdPartition) -> None:
        """Set aside directories of other topic ids that have the name of a log to be made."""
        other = self._registry.named((tip.topic, tip.partition))
        if other is not None:
            (path,) = await self._retire_all([other], names.STRAY_DIR)
            if isinstance(path, DiskError):
                raise path
            _log.warning("%s holds topic id %s, not %s: set aside", path, other.tip.topic_id, tip.topic_id)
        for one in self._offline.named(tip):
            why = f"it holds topic id {one.tip.topic_id}"
            await self._io.run(self._opener.set_aside, one.path, one.tip, one.home, why)
            self._not_offline(one)

    def _place(self, tip: TopicIdPartition, config: LogConfig) -> NewLog:
        home = self._dirs.for_a_new_log(self._registry.counts)
        self._registry.counts[home] += 1
        return NewLog(home.path / names.partition_dir(tip.topic, tip.partition), tip, config, home)

    async def set_aside_unknown(self, is_known: Callable[[UUID, int], bool]) -> None:
        """Rename the logs of partitions that the metadata does not have, so that their files are kept.

        A topic deleted just before a crash leaves one; so does a data directory put beside another node's
        metadata. Those that cannot be renamed stay, with a log line.
        """
        unknown = [log for key, log in self._registry.logs.items() if not is_known(*key)]
        for log, path in zip(unknown, await self._retire_all(unknown, names.STRAY_DIR), strict=True):
            if isinstance(path, DiskError):
                _log.warning("%s is unknown to the metadata, and cannot be renamed: %s", log.dir, path)
            else:
                _log.warning("%s-%d is unknown to the metadata: set aside as %s", *log.tip[1:], path)

    # Going away

    async def delete(self, tips: Sequence[TopicIdPartition]) -> None:
        """Take logs out of use; their files are deleted after ``file.delete.delay.ms``. Ignores unknown
        ones."""
        now_ms = self._clock.now_ms()
        doomed = []
        for tip in tips:
            log = self.get(tip.topic_id, tip.partition)
            if log is not None:
                doomed.append(log)
                continue
            for one in [one for one in self._offline.named(tip) if one.tip == tip]:
                self._not_offline(one)
                self._maintenance.deletion.schedule(one.path, now_ms + one.config.file_delete_delay_ms)
        for log, path in zip(doomed, await self._retire_all(doomed, names.DELETE_DIR), strict=True):
            due_ms = now_ms + log.config.file_delete_delay_ms
            if isinstance(path, MissingFile):
                _log.warning("%s was gone before it was deleted", log.dir)
            elif isinstance(path, DiskError):
                _log.error("%s of a deleted topic keeps its name until its deletion: %s", log.dir, path)
                self._maintenance.deletion.schedule(log.dir, due_ms)
            else:
                self._maintenance.deletion.schedule(path, due_ms)

    async def _retire_all(self, logs: Sequence[LocalLog], suffix: str) -> list[Path | DiskError]:
        """Take logs out of use and rename their directories; returns the new paths, or errors."""
        retired = []
        piece = Slice()
        for log in logs:
            if piece.is_over():
                await piece.next_turn()
            retired.append(self._retire(log, suffix))
        await self._maintenance.deletion.wait_for(set(logs))
        await self.cleaner.wait_for(logs)
        found = await self._io.run_all(partial(rename_all, self._disk), retired)
        for (log, target), path in zip(retired, found, strict=True):
            if piece.is_over():
                await piece.next_turn()
            if path == target:
                log.moved(target)
            log.close(clean=False)
        return found

    def _retire(self, log: LocalLog, suffix: str) -> RetiredLog:
        tip = log.tip
        home = self._registry.remove(log)
        home.forget(log.state)
        self._maintenance.forget(log, home)
        log.durability.close()
        name = names.retired_dir(tip.topic, tip.partition, self._world.new_uuid(), suffix)
        return RetiredLog(log, home.path / name)

    async def close(self, clean: bool = True, broker_epoch: int = -1) -> None:
        """Close all logs and unlock the directories. With `clean` the next start needs no recovery.

        End `run` first. A directory gets no marker if a log in it is offline or could not be closed.
        """
        homes = self._registry.homes
        for under_way in self._append_io, self._checkpoints, self._high_watermarks:
            await under_way.finish()
        try:
            if clean:
                await self._high_watermarks.write_changed()
                failed = await self._checkpoints.write()
                safe = [log for log, home in homes.items() if home not in failed and not log.failure]
                await self._maintenance.deletion.delete_rest(safe)
            closed = await self._io.run_all(partial(close_logs, clean), list(homes))
            unclean = {*(homes.get(log) for log in closed if log), *self._offline.homes()}
            self._maintenance.take_directories_offline()
            if clean:
                offsets = self._maintenance.offsets.snapshot_all(homes)
                await self._io.run(self._mark_clean, offsets, broker_epoch, unclean | self._dirs.failed)
        finally:
            await self._cleaner_io.finish()
            await self._io.finish()
            self._dirs.close()

    def _mark_clean(self, offsets: AllOffsets, broker_epoch: int, unclean: set[LogDir | None]) -> None:
        self._dirs.mark_clean(broker_epoch, unclean | self._checkpoints.files.write(offsets).keys())
