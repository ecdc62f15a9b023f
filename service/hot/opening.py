"""Finding, opening, making and closing the logs of log directories. Blocking, for `log-io` threads."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from errno import EEXIST
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple
from uuid import UUID

from service.base.disk import DiskError
from service.base.errors import CorruptionError, StorageError
from service.base.files import fsync_dir
from service.base.types import TopicIdPartition
from service.base.world import World
from service.config.settings import LogConfig
from service.hot import names
from service.hot.file_deletion import delete
from service.hot.files import FileCache
from service.hot.log import LocalLog
from service.hot.log_dir import (
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOG_START_OFFSETS,
    RECOVERY_POINTS,
    LogDir,
    Offsets,
    read_topic_id,
    write_topic_id,
)

_log = logging.getLogger(__name__)

NO_TOPIC_ID: Final = UUID(int=0)


class LogDirContents(NamedTuple):
    """Checkpoints, markers and subdirectories of a log directory, read before its logs are opened.

    ``replicas``: directories, each with topic and partition. ``deleted``: directories to be deleted.
    """

    clean: bool
    recovery_points: Offsets
    log_starts: Offsets
    cleaned: Offsets
    replicas: list[tuple[Path, tuple[str, int]]]
    deleted: list[Path]
    doubtful: bool = False
    """an fsync failed in an earlier process: what was not known to be durable is written again"""
    lost_power: bool = False
    """the machine was restarted: anything that was not known to be durable may be missing"""
    damaged: frozenset[str] = frozenset()
    """directories whose replicas were damaged before"""
    high_watermarks: Mapping[tuple[str, int], int] = MappingProxyType({})


class NewLog(NamedTuple):
    """A log that is to be made in ``path``."""

    path: Path
    tip: TopicIdPartition
    config: LogConfig
    home: LogDir


class OfflineReplica(NamedTuple):
    """A replica that could not be opened. ``tip``: with topic id 0 if its file does not contain it."""

    path: Path
    tip: TopicIdPartition
    config: LogConfig
    known: LogDirContents
    home: LogDir
    why: StorageError | CorruptionError

    @property
    def is_damaged(self) -> bool:
        """Return whether opening it again would fail in the same way."""
        return isinstance(self.why, CorruptionError)


def read_log_dir(home: LogDir) -> LogDirContents:
    """Read the directory's clean-shutdown marker, and unlink it; read its checkpoints and subdirectories."""
    clean = home.remove_clean_marker()
    points, starts = home.read_offsets(RECOVERY_POINTS), home.read_offsets(LOG_START_OFFSETS)
    cleaned = home.read_offsets(CLEANER_OFFSETS)
    boot = home.read_boot()
    doubtful, lost_power = home.is_doubtful(), home.lost_power(boot)
    high_watermarks = home.read_offsets(HIGH_WATERMARKS)
    found = LogDirContents(
        clean, points, starts, cleaned, [], [], doubtful, lost_power, boot.damaged, high_watermarks
    )
    for path in [home.path / entry.name for entry in home.disk.list(home.path) if entry.is_dir]:
        named = names.parse_partition_dir(path.name)
        if path.name == names.CLUSTER_METADATA_DIR:
            continue
        if named is not None:
            found.replicas.append((path, named))
        elif path.name.endswith(names.DELETE_DIR):
            found.deleted.append(path)
        elif path.name.endswith((names.STRAY_DIR, names.FUTURE_DIR)):
            _log.warning("ignoring %s: not a replica in use", path)
    return found


class LogOpener:
    """Opens and makes logs, with the dependencies that they share."""

    def __init__(self, world: World, files: FileCache, producer_expiration_ms: int) -> None:
        self._world = world
        self._disk = world.disk
        self._files = files
        self.producer_expiration_ms = producer_expiration_ms

    def open(
        self, path: Path, tip: TopicIdPartition, config: LogConfig, known: LogDirContents, home: LogDir
    ) -> LocalLog:
        """Open a log as `LocalLog.open` does."""
        recovery_point = known.recovery_points.get(tip[1:], 0)
        log = LocalLog.open(
            path,
            tip,
            config,
            world=self._world,
            recovery_point=recovery_point,
            log_start_offset=known.log_starts.get(tip[1:], 0),
            clean=known.clean,
            doubtful=known.doubtful,
            lost_power=known.lost_power and path.name not in known.damaged,
            cleaned_offset=known.cleaned.get(tip[1:], -1),
            files=self._files,
            latch=home.latch,
            producer_expiration_ms=self.producer_expiration_ms,
            high_watermark=known.high_watermarks.get(tip[1:]),
        )
        if not known.clean and recovery_point == 0:
            # The process that made it may have been killed before it flushed the directory's names.
            log.durability.note_created(path / names.PARTITION_METADATA)
        return log

    def make_all(self, wanted: Sequence[NewLog]) -> list[LocalLog | StorageError | CorruptionError]:
        """Make new logs; returns each log, or its error, and then leaves no files of it.

        Topic ids and names are durable before the first record, with one fsync for each log directory: so no
        record can be taken for another topic's.
        """
        made = [self._make(one) for one in wanted]
        for home in {
            one.home: None for one, log in zip(wanted, made, strict=True) if isinstance(log, LocalLog)
        }:
            try:
                fsync_dir(self._disk, home.path)
            except DiskError as e:
                home.latch.note(e)
                for slot, (one, log) in enumerate(zip(wanted, made, strict=True)):
                    if one.home is home and isinstance(log, LocalLog):
                        log.close(clean=False)
                        delete(
                            self._disk, [one.path]
                        )  # else it is here beside the one that is made elsewhere
                        made[slot] = e
        return made

    def _make(self, new: NewLog) -> LocalLog | StorageError | CorruptionError:
        is_made = False
        try:
            self._make_directory(new)
            is_made = True
            log = LocalLog.make(
                new.path,
                new.tip,
                new.config,
                world=self._world,
                files=self._files,
                latch=new.home.latch,
                producer_expiration_ms=self.producer_expiration_ms,
            )
            write_topic_id(self._disk, new.path, new.tip.topic_id)
        except (StorageError, CorruptionError) as e:
            new.home.latch.note(e)
            if is_made:
                delete(self._disk, [new.path])
            return e
        return log

    def _make_directory(self, new: NewLog) -> None:
        try:
            self._disk.mkdir(new.path)
        except DiskError as e:
            if e.errno != EEXIST or self._holds_records(new.path):
                raise
            # An earlier attempt failed, and could not remove the directory either.
            self.set_aside(new.path, new.tip, new.home, "it was never finished being made")
            self._disk.mkdir(new.path)

    def open_replica(
        self, path: Path, topic: str, partition: int, config: LogConfig, known: LogDirContents, home: LogDir
    ) -> LocalLog | OfflineReplica | None:
        """Open the log in `path`; returns it, or why it cannot be opened, or None if it was never fully
        made."""
        tip = TopicIdPartition(NO_TOPIC_ID, topic, partition)
        try:
            topic_id = read_topic_id(self._disk, path)
            if topic_id is None:
                if self._holds_records(path):
                    raise CorruptionError(f"{path / names.PARTITION_METADATA} is missing or empty")
                self.set_aside(path, tip, home, "it has no topic id and holds nothing")
                return None
            tip = tip._replace(topic_id=topic_id)
            return self.open(path, tip, config, known, home)
        except (StorageError, CorruptionError) as e:
            home.latch.note(e)
            return OfflineReplica(path, tip, config, known, home, e)

    def _holds_records(self, path: Path) -> bool:
        return any(entry.size and entry.name.endswith(names.LOG) for entry in self._disk.list(path))

    def set_aside(self, path: Path, tip: TopicIdPartition, home: LogDir, why: str) -> None:
        """Rename a directory that is not in use, so that its files are kept."""
        stray = names.retired_dir(tip.topic, tip.partition, self._world.new_uuid(), names.STRAY_DIR)
        self._disk.rename(path, home.path / stray)
        _log.warning("%s is set aside as %s: %s", path, stray, why)


def close_logs(clean: bool, logs: Sequence[LocalLog]) -> list[LocalLog | None]:
    """Close logs; returns for each None, or the log if its directory must not be marked clean."""
    return [None if _close(log, clean) else log for log in logs]


def _close(log: LocalLog, clean: bool) -> bool:
    clean = clean and log.failure is None
    try:
        log.close(clean)
    except (StorageError, CorruptionError) as e:
        _log.error("closing %s: %s", log.tip, e)
        clean = False
        log.close(clean=False)
    return clean
