"""The log directories of a node: those in use, and those that could not be used at this start.

Owned by the event loop. The contents of a directory that cannot be used are unknown, so no log that it may
hold is made elsewhere.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Final
from uuid import UUID

from service.base.disk import DiskError
from service.base.errors import StorageError
from service.base.world import World
from service.hot.log_dir import LogDir, MetaProperties, encode_uuid
from service.hot.meta_properties_ensemble import check_directory_ids
from service.hot.state import LogOffline

_log = logging.getLogger(__name__)

_REFUSED_MS: Final = 60_000


class LogDirs:
    """The directories of ``log.dirs``; the constructor locks them."""

    def __init__(self, paths: Iterable[Path], world: World, essential: Path | None = None) -> None:
        """Leave out directories that cannot be used (Kafka `LogManager.createAndValidateLogDirs`).

        `StorageError` if that is the `essential` one, which holds the metadata log (None: the first one), if
        none can be used, or if another process holds one.
        """
        self.in_use: list[LogDir] = []
        self.failed: set[LogDir] = set()
        """directories of `in_use` that have failed since"""
        self._unusable: dict[Path, DiskError] = {}
        self._clock = world.clock
        self._refused_ms: dict[LogDir, int] = {}
        """until when new logs are made in other directories first"""
        every = tuple(paths)
        self._essential = essential or every[0]
        try:
            for path in every:
                self._lock(path, world)
            if not self.in_use:
                raise next(iter(self._unusable.values()))
        except StorageError:
            self.close()
            raise

    def _lock(self, path: Path, world: World) -> None:
        try:
            self.in_use.append(LogDir(path, world))
        except DiskError as e:
            if path == self._essential:
                raise
            self._note_unusable(path, e)

    @property
    def paths(self) -> list[Path]:
        return [home.path for home in self.in_use]

    def claim(self, cluster_id: str, node_id: int, *, keeps_ends: bool = False) -> dict[Path, MetaProperties]:
        """Claim the directories as `LogManager.claim` does."""
        claimed: dict[Path, MetaProperties] = {}
        for home in tuple(self.in_use):
            try:
                taken = {meta.directory_id for meta in claimed.values()}
                claimed[home.path] = home.claim(cluster_id, node_id, taken)
            except DiskError as e:
                self.leave_out(home, e)
        check_directory_ids(claimed)
        if keeps_ends:
            for home in self.in_use:
                home.keep_ends(claimed[home.path].directory_id)
        return claimed

    def previous_epoch(self) -> int:
        """Return the previous broker process's epoch if all that it acknowledged is here; -1 if that is
        unknown. To be called once, before any log is opened. Blocks."""
        epochs = {home.previous_epoch() for home in self.in_use}
        epoch = epochs.pop() if len(epochs) == 1 and not self._unusable else -1
        for home in self.in_use:
            if home.kept is not None and (epoch < 0 or home.kept.epoch != epoch):
                home.kept.reset()
        return epoch

    def registered(self, epoch: int) -> None:
        """Note this broker process's epoch with the kept log ends."""
        for home in self.in_use:
            if home.kept is not None:
                home.kept.registered(epoch)

    def check_kept(self, offline: Collection[tuple[UUID, int]]) -> None:
        """Check the ends of all logs, which are open now, except those `offline`. `StorageError` if one ends
        below what the previous process acknowledged, as this one has registered with its epoch."""
        for home in self.in_use:
            missing = {} if home.kept is None else home.kept.missing(offline)
            for (topic_id, partition), end in missing.items():
                assert home.kept is not None
                what = f"partition {partition} of topic id {encode_uuid(topic_id)} in {home.path}"
                why = f"{what} does not reach {end.end_offset}, where it ended before this start"
                home.kept.distrust(why)
                raise StorageError(f"{why}. Start again: the broker then registers as after a loss of power")

    def leave_out(self, home: LogDir, error: DiskError) -> None:
        """Leave out a directory that fails before any of its logs was opened; raises the failure of the
        essential one, and of the last one."""
        if home.path == self._essential or len(self.in_use) == 1:
            raise error
        self.in_use.remove(home)
        home.close()
        self._note_unusable(home.path, error)

    def _note_unusable(self, path: Path, error: DiskError) -> None:
        self._unusable[path] = error
        _log.critical("log directory %s cannot be used and is offline with all its logs: %s", path, error)

    def check_complete(self) -> None:
        """Raise `LogOffline` if a directory is left out: it may hold any log that was made before."""
        for path, why in self._unusable.items():
            raise LogOffline(f"its files may be in {path}, which cannot be used: {why}")

    def is_online(self, path: Path) -> bool:
        """Return whether a directory is in use and has not failed."""
        return any(home.path == path and home not in self.failed for home in self.in_use)

    def check_online(self, path: Path) -> None:
        """Raise `LogOffline` if the directory was left out, or has failed."""
        if not self.is_online(path):
            raise LogOffline(f"log directory {path} is offline")

    def for_a_new_log(self, counts: Mapping[LogDir, int]) -> LogDir:
        """Return the working directory with the fewest logs; the first one of several (Kafka
        `LogManager.nextLogDirs`). One that has just refused a log comes last, as Kafka tries them in turn.
        `LogOffline` if none works.
        """
        working = [home for home in self.in_use if home.latch.failure is None]
        if not working:
            raise LogOffline("no log directory is left")
        now_ms = self._clock.monotonic_ms()
        return min(working, key=lambda home: (self._refused_ms.get(home, now_ms) > now_ms, counts[home]))

    def has_refused(self, home: LogDir) -> None:
        """Note that a log could not be made in `home`: prefer other directories for a while."""
        self._refused_ms[home] = self._clock.monotonic_ms() + _REFUSED_MS

    def newly_failed(self) -> list[tuple[LogDir, StorageError]]:
        """Return the directories that have failed since the last call, and their errors."""
        found: list[tuple[LogDir, StorageError]] = []
        for home in self.in_use:
            failure = home.latch.failure
            if failure is not None and home not in self.failed:
                self.failed.add(home)
                found.append((home, failure))
        return found

    def mark_clean(self, broker_epoch: int, unclean: Collection[LogDir | None]) -> None:
        """Write the clean-shutdown marker, except in directories that are `unclean`. Blocks."""
        for home in self.in_use:
            if home in unclean:
                _log.warning("%s is not marked clean: the next start recovers its logs", home.path)
                continue
            try:
                home.write_clean_marker(broker_epoch)
            except DiskError as e:
                home.latch.note(e)
                _log.error("%s is not marked clean: %s", home.path, e)

    def close(self) -> None:
        """Unlock the directories."""
        for home in self.in_use:
            home.close()
