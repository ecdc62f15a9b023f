"""Actions while the file systems of log directories fill up; `hot.disk_watermarks` decides the steps.

A task per directory, so that a disk that hangs blocks no other, has a `log-io` thread ask the free space of
its file system: at intervals, and sooner after many appends. Owned by the event loop.

Only produce requests of clients are rejected, before they are parsed. A directory that rejects them leads no
partition that another replica with room could lead: the controller is informed. In the reserve replicas do
not follow either. Reads, the metadata log and other appends of this node itself do not pass here.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final, Protocol
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.clock import Clock
from service.base.errors import RequestError, StorageError
from service.base.printable import printable
from service.base.rate_limited_log import RateLimitedLog
from service.base.slices import Slice
from service.base.types import TopicIdPartition
from service.config.settings import BrokerConfig
from service.controller_client.broker_lifecycle import FullDirectories
from service.hot.disk_watermarks import DiskState, DiskWatermarks, Step, assess, describe
from service.hot.manager import LogManager
from service.hot.state import LogOffline
from service.partition.metrics import ServingMetrics
from service.partition.partition import Partition
from service.replicas.partition_registry import Replicas
from service.replicas.space_reclaimer import SpaceReclaimer
from service.wire.produce import ProducePartitionResult, TopicKey

_log = logging.getLogger(__name__)

NEVER_BYTES: Final = sys.maxsize
_LEAST_PAUSE_S: Final = 0.05
_LOOKED_AT: Final = 100
"""Partitions of a request whose directory is determined; with more, all directories count."""
_REFUSED_MS: Final = 10_000
"""Time for which the disk's own ENOSPC counts; after it the next append finds out whether there is room
again.
"""
_MOVED_MS: Final = 6_000
"""Time by which the controller has moved what another replica can lead: a heartbeat, and its decision."""
_DISK_REFUSES: Final = "refused by its disk, which has no room, whatever its file system says is left"


class _Directory:
    """One log directory. ``standing``: None before the first check, and while it is offline."""

    def __init__(self, path: Path, reclaimer: SpaceReclaimer) -> None:
        self.path = path
        self.reclaimer = reclaimer
        self.standing: DiskState | None = None
        self.step = Step.FREE
        self.wake = asyncio.Event()
        self.alarm_at = NEVER_BYTES
        self.most_at = NEVER_BYTES
        self.refused_ms = 0
        """until when the disk's own ENOSPC counts"""
        self.full_since_ms: int | None = None
        """since when its leaderships are to move; None: they are not"""
        self.unknown = ""
        """last logged reason why the free space is not known"""


class RoomReporter(Protocol):
    """Interface of `ControlPlane` for directories without room."""

    @property
    def moves_leaders(self) -> bool: ...
    def room_changed(self, directories: FullDirectories) -> None: ...


class DiskWatch:
    """Watermark steps of each log directory of a node."""

    def __init__(
        self,
        config: Callable[[], BrokerConfig],
        clock: Clock,
        replicas: Replicas,
        logs: LogManager,
        serving: ServingMetrics,
    ) -> None:
        self.is_pressed = False
        """producers to some directory have to wait, or are rejected"""
        self.alarm_at = NEVER_BYTES
        """total appended bytes at which `alarm` is to be called"""
        self._config = config
        self._clock = clock
        self._replicas = replicas
        self._logs = logs
        self._serving = serving
        self._metrics = logs.metrics
        self._is_hurried = False
        self._hurry_changed: Callable[[], None] = lambda: None
        self._give_back: Callable[[Path], Awaitable[int]] | None = None
        self._room_watcher: Callable[[], None] = lambda: None
        self._directory_ids: Mapping[Path, UUID] = {}
        self._reporter: RoomReporter | None = None
        self._followed_bytes = 0
        """bytes that followers here have appended"""
        self._changes = RateLimitedLog(_log, now=self._now_s)
        troubles = RateLimitedLog(_log, now=self._now_s)
        self._directories = {
            path: _Directory(path, SpaceReclaimer(path, replicas, logs.metrics, clock, troubles))
            for path in logs.directories
        }

    def _now_s(self) -> float:
        return self._clock.monotonic_ms() / 1000

    # Interface

    def watch(self, hurry_changed: Callable[[], None]) -> None:
        """Call `hurry_changed` when results of `hurries` may have changed, from now on."""
        self._hurry_changed = hurry_changed

    def free_caches_first(self, give_back: Callable[[Path], Awaitable[int]]) -> None:
        """Free the bytes kept only for speed before other steps, in a directory that fills up: `give_back`
        returns how many it freed."""
        self._give_back = give_back

    def report_room(self, directory_ids: Mapping[Path, UUID], reporter: RoomReporter) -> None:
        """Report directories without room to the controller, from now on."""
        self._directory_ids = directory_ids
        self._reporter = reporter

    def watch_room(self, room_changed: Callable[[], None]) -> None:
        """Call `room_changed` when results of `has_room` may have changed, from now on."""
        self._room_watcher = room_changed

    def full(self) -> list[Path]:
        """Return the directories that take no records for want of room: others are to lead their
        partitions."""
        return [path for path, home in self._directories.items() if home.full_since_ms is not None]

    def resting(self) -> list[Path]:
        """Return the directories in which replicas do not, or cannot, follow: they are not in sync."""
        return [path for path, home in self._directories.items() if self._rests(home)]

    def has_room(self, partition: Partition) -> bool:
        """Return whether the partition's directory has room for its leader's records: it is not in the
        reserve."""
        home = self._home(partition)
        return home is None or home.standing is None or not home.standing.is_in_reserve

    def followed(self, size: int) -> None:
        """Count appended bytes of a follower."""
        self._followed_bytes += size
        self.alarm_at -= size
        if self._serving.appended_bytes >= self.alarm_at:
            self.alarm()

    def refused(self, tip: TopicIdPartition) -> None:
        """Note that a write to the partition failed with ENOSPC or EDQUOT, whatever the file system reports
        as free: a quota, no inodes."""
        partition = self._replicas.get(tip.topic_id, tip.partition)
        home = None if partition is None else self._home(partition)
        if home is None:
            return
        home.refused_ms = self._clock.monotonic_ms() + _REFUSED_MS
        self.check_soon()
        self._judge_room(home)

    def hurries(self, tip: TopicIdPartition) -> bool:
        """Return whether the partition's disk fills up, so that it is copied before others."""
        if not self._is_hurried:
            return False
        partition = self._replicas.get(tip.topic_id, tip.partition)
        return partition is not None and self._step_of(partition) >= Step.UPLOADS_FIRST

    def check(self, partition: Partition) -> None:
        """Raise `RequestError` KAFKA_STORAGE_ERROR if records to `partition` are rejected for want of
        room."""
        home = self._home(partition)
        if home is None or home.step is not Step.REFUSE or home.standing is None:
            return
        self._metrics.disk_refused_batches += 1
        raise RequestError(
            ErrorCode.kafka_storage_error,
            f"the log directory of {partition.tip} is {describe(home.standing)}",
        )

    def throttle_ms(self, topics: Sequence[tuple[TopicKey, Sequence[ProducePartitionResult]]]) -> int:
        """Return how long a connection that has produced to these partitions is throttled. Counted."""
        named = ((topic, one.partition) for topic, answers in topics for one in answers)
        first = list(islice(named, _LOOKED_AT + 1))
        found = [self._replicas.get_by(topic, index) for topic, index in first]
        homes = {self._home(partition) for partition in found if partition is not None}
        if len(first) > _LOOKED_AT:
            homes.update(self._directories.values())
        standings = [home.standing for home in homes if home is not None and home.standing is not None]
        wait_ms = max((standing.throttle_ms for standing in standings), default=0)
        if wait_ms:
            self._metrics.disk_throttle_time.observe(wait_ms / 1000)
        return wait_ms

    def alarm(self) -> None:
        """Check again, as many appends have made the last check stale; reject until that is done if no room
        may be left."""
        appended = self._appended()
        for home in self._directories.values():
            if appended < home.alarm_at or home.standing is None:
                continue
            home.wake.set()
            if appended >= home.most_at:
                home.alarm_at = NEVER_BYTES
                throttle_ms = self._config().disk_throttle_max_ms
                worst = home.standing._replace(step=Step.REFUSE, throttle_ms=throttle_ms, is_in_reserve=True)
                self._set_standing(home, worst)
            else:
                home.alarm_at = home.most_at
        self._recount()

    def check_soon(self) -> None:
        """Check the free space of all directories now, as several may share a file system."""
        for home in self._directories.values():
            home.wake.set()

    def standings(self) -> Mapping[Path, DiskState]:
        """Return the state of each online directory that was checked."""
        return self._metrics.disks

    def refusal(self, path: Path) -> str:
        """Return why a directory takes no records; empty while it does."""
        home = self._directories.get(path)
        if home is None or home.standing is None or home.full_since_ms is None:
            return ""
        return _DISK_REFUSES if home.refused_ms and home.step is not Step.REFUSE else describe(home.standing)

    def _home(self, partition: Partition) -> _Directory | None:
        return self._directories.get(partition.log.dir.parent)

    def _step_of(self, partition: Partition) -> Step:
        home = self._home(partition)
        return Step.FREE if home is None else home.step

    def _appended(self) -> int:
        return self._serving.appended_bytes + self._followed_bytes

    def _rests(self, home: _Directory) -> bool:
        is_in_reserve = home.standing is not None and home.standing.is_in_reserve
        return is_in_reserve or (home.full_since_ms is not None and home.refused_ms > 0)

    def _judge_room(self, home: _Directory) -> None:
        """Update whether others are to lead a directory's partitions, and report a change."""
        before = home.full_since_ms is not None, self._rests(home)
        now_ms = self._clock.monotonic_ms()
        if home.refused_ms <= now_ms:
            home.refused_ms = 0
        if home.standing is None or (home.step is not Step.REFUSE and not home.refused_ms):
            home.full_since_ms = None
        elif home.full_since_ms is None:
            home.full_since_ms = now_ms
        if before != (home.full_since_ms is not None, self._rests(home)):
            self._room_changed()

    def _room_changed(self) -> None:
        if self._reporter is not None:
            self._reporter.room_changed(FullDirectories(self._ids(self.full()), self._ids(self.resting())))
        self._room_watcher()

    def _ids(self, paths: Sequence[Path]) -> tuple[UUID, ...]:
        return tuple(sorted(self._directory_ids[path] for path in paths if path in self._directory_ids))

    # Checks

    async def run(self) -> None:
        """Check and act until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for home in self._directories.values():
                tasks.create_task(self._watch(home), name=f"disk-watch {home.path}")

    async def _watch(self, home: _Directory) -> None:
        while True:
            home.wake.clear()
            await self._check_space(home)
            await asyncio.sleep(_LEAST_PAUSE_S)
            try:
                async with asyncio.timeout(self._config().disk_check_interval_ms / 1000 - _LEAST_PAUSE_S):
                    await home.wake.wait()
            except TimeoutError:
                continue

    async def _check_space(self, home: _Directory) -> None:
        appended = self._appended()
        try:
            space = await self._logs.space(home.path)
        except LogOffline:
            self._went_offline(home)
            return
        except StorageError as e:
            if home.unknown != str(e):
                home.unknown = str(e)
                _log.warning("what is left of %s is not known, and asked again: %s", home.path, e)
            return
        if home.unknown:
            home.unknown = ""
            _log.info("what is left of %s is known again", home.path)
        config = self._config()
        marks = marks_of(config)
        was_in_reserve = home.standing is not None and home.standing.is_in_reserve
        find = partial(assess, home.step, *space, marks, was_in_reserve=was_in_reserve)
        standing = find(is_tiered=config.remote_storage_enabled)
        if standing.step is not Step.FREE and self._give_back and await self._give_back(home.path):
            home.wake.set()  # check again before records are rejected
            return
        reclaimer, is_due = home.reclaimer, False
        if standing.step is Step.FREE or not config.remote_storage_enabled:
            reclaimer.reset()
        else:
            is_due = await reclaimer.scan()
        if standing.step is not Step.FREE and not reclaimer.copied:
            standing = find(is_tiered=False)
        home.alarm_at = appended + standing.alarm_bytes
        home.most_at = appended + standing.most_bytes
        if not marks.is_on and not marks.reserve_bytes:
            home.alarm_at = home.most_at = NEVER_BYTES
        if home.full_since_ms is not None and self._clock.monotonic_ms() - home.full_since_ms > _MOVED_MS:
            moves = self._reporter is None or self._reporter.moves_leaders
            standing = standing._replace(led=await self._count_led(home), moves_leaders=moves)
        self._set_standing(home, standing)
        if reclaimer.copied and is_due and standing.step >= Step.SHRINK:
            await reclaimer.seal(standing.step)
            await reclaimer.free(standing.to_free)

    def _set_standing(self, home: _Directory, standing: DiskState) -> None:
        before, step, known = home.step, standing.step, home.standing
        home.standing, home.step = standing, step
        self._metrics.disks[home.path] = standing
        self._recount()
        self._judge_room(home)
        if known is None or _logged_state(known) != _logged_state(standing):
            level = (
                logging.ERROR if step is Step.REFUSE else logging.WARNING if step > before else logging.INFO
            )
            if known is not None or step is not Step.FREE:
                self._changes.log(level, "log directory %s is %s", printable(home.path), describe(standing))
            self._notify_hurry(before, step)

    def _notify_hurry(self, before: Step, step: Step) -> None:
        if (before >= Step.UPLOADS_FIRST) != (step >= Step.UPLOADS_FIRST):
            self._hurry_changed()

    def _went_offline(self, home: _Directory) -> None:
        """Reset the state of a directory that is offline."""
        before, home.step, home.standing = home.step, Step.FREE, None
        home.alarm_at = home.most_at = NEVER_BYTES
        self._metrics.disks.pop(home.path, None)
        self._recount()
        self._judge_room(home)
        self._notify_hurry(before, Step.FREE)

    def _recount(self) -> None:
        homes = self._directories.values()
        self.is_pressed = any(home.step >= Step.THROTTLE for home in homes)
        self._is_hurried = any(home.step >= Step.UPLOADS_FIRST for home in homes)
        self.alarm_at = min((home.alarm_at for home in homes), default=NEVER_BYTES) - self._followed_bytes

    async def _count_led(self, home: _Directory) -> int:
        """Count the partitions of several replicas that this node leads in a directory."""
        piece, count = Slice(), 0
        for partition in self._replicas:
            if piece.is_over():
                await piece.next_turn()
            count += partition.is_leader and partition.leading is not None and self._home(partition) is home
        return count


def _logged_state(standing: DiskState) -> tuple[Step, bool, bool, bool]:
    """Return the parts of the state whose change is logged."""
    return standing.step, standing.is_in_reserve, standing.led > 0, standing.moves_leaders


def marks_of(config: BrokerConfig) -> DiskWatermarks:
    """Return the thresholds of the steps from the settings."""
    return DiskWatermarks(
        is_on=config.disk_watermarks_enable,
        percents=(
            config.disk_upload_percent,
            config.disk_shrink_percent,
            config.disk_throttle_percent,
            config.disk_refuse_percent,
        ),
        margin_percent=config.disk_margin_percent,
        counted_bytes=config.disk_counted_bytes,
        reserve_bytes=config.disk_reserve_bytes,
        throttle_max_ms=config.disk_throttle_max_ms,
    )
