"""Finding, opening and closing the logs of log directories. Blocking, for `log-io` threads."""

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
from service.hot.file_deletion import remove
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


class Found(NamedTuple):
    """What a log directory says of its logs before they are opened.

    ``replicas``: directories, each with topic and partition. ``doomed``: those on their way to deletion.
    """

    clean: bool
    recovery_points: Offsets
    log_starts: Offsets
    cleaned: Offsets
    replicas: list[tuple[Path, tuple[str, int]]]
    doomed: list[Path]
    doubtful: bool = False
    """an fsync failed in an earlier process: what was not known to be durable is to be written again"""
    lost_power: bool = False
    """the machine was started anew: of what was not known to be durable, anything may be missing"""
    damaged: frozenset[str] = frozenset()
    """directories whose replicas were damaged before"""
    marks: Mapping[tuple[str, int], int] = MappingProxyType({})
    """high watermarks"""


class NewLog(NamedTuple):
    """A log that is to be made in ``path``."""

    path: Path
    tip: TopicIdPartition
    config: LogConfig
    home: LogDir


class OfflineReplica(NamedTuple):
    """A replica that could not be opened. ``tip``: with topic id 0 where its file does not tell it."""

    path: Path
    tip: TopicIdPartition
    config: LogConfig
    known: Found
    home: LogDir
    why: StorageError | CorruptionError

    @property
    def is_damaged(self) -> bool:
        """Whether opening it again would say the same."""
        return isinstance(self.why, CorruptionError)


def look_into(home: LogDir) -> Found:
    """The directory's marker (which is gone then), checkpoints and subdirectories."""
    clean = home.take_clean_marker()
    points, starts = home.read_offsets(RECOVERY_POINTS), home.read_offsets(LOG_START_OFFSETS)
    cleaned = home.read_offsets(CLEANER_OFFSETS)
    boot = home.read_boot()
    doubtful, lost_power = home.is_doubtful(), home.lost_power(boot)
    marks = home.read_offsets(HIGH_WATERMARKS)
    found = Found(clean, points, starts, cleaned, [], [], doubtful, lost_power, boot.damaged, marks)
    for path in [home.path / entry.name for entry in home.disk.list(home.path) if entry.is_dir]:
        named = names.parse_partition_dir(path.name)
        if path.name == names.CLUSTER_METADATA_DIR:
            continue
        if named is not None:
            found.replicas.append((path, named))
        elif path.name.endswith(names.DELETE_DIR):
            found.doomed.append(path)
        elif path.name.endswith((names.STRAY_DIR, names.FUTURE_DIR)):
            _log.warning("%s is left alone: not a replica in use", path)
    return found


class Opener:
    """Opens logs with what they all share."""

    def __init__(self, world: World, files: FileCache, producer_expiration_ms: int) -> None:
        self._world = world
        self._disk = world.disk
        self._files = files
        self.producer_expiration_ms = producer_expiration_ms

    def open(
        self, path: Path, tip: TopicIdPartition, config: LogConfig, known: Found, home: LogDir
    ) -> LocalLog:
        """As `LocalLog.open`."""
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
        )
        if not known.clean and recovery_point == 0:
            # The process that made it may have been killed before it flushed anything, its names among it.
            log.note_made(path / names.PARTITION_METADATA)
        return log

    def make_all(self, wanted: Sequence[NewLog]) -> list[LocalLog | StorageError | CorruptionError]:
        """Make new logs, or say why there is none: nothing is left of it then.

        Their topic ids are on the device, and all names, of the directories they lie in once for all: so
        nothing that is ever in them can be taken for another topic's.
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
                        remove(self._disk, [one.path])  # or it is there beside the one that is made elsewhere
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
                remove(self._disk, [new.path])
            return e
        return log

    def _make_directory(self, new: NewLog) -> None:
        try:
            self._disk.mkdir(new.path)
        except DiskError as e:
            if e.errno != EEXIST or self._holds_records(new.path):
                raise
            # What an attempt before this one could not remove after it had failed.
            self.set_aside(new.path, new.tip, new.home, "it was never finished being made")
            self._disk.mkdir(new.path)

    def open_replica(
        self, path: Path, topic: str, partition: int, config: LogConfig, known: Found, home: LogDir
    ) -> LocalLog | OfflineReplica | None:
        """The log in `path`, or why there is none; None for one that was never finished being made."""
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
        """Rename a directory that serves nobody and is not lost."""
        stray = names.retired_dir(tip.topic, tip.partition, self._world.new_uuid(), names.STRAY_DIR)
        self._disk.rename(path, home.path / stray)
        _log.warning("%s is set aside as %s: %s", path, stray, why)


def close_all(clean: bool, logs: Sequence[LocalLog]) -> list[LocalLog | None]:
    """Close logs; for each None, or itself, where its directory must not be marked clean."""
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
