"""What the parts of one log share: its files in order, its offsets, and whether it still works."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from service.base.disk import Disk
from service.base.errors import CorruptionError, StorageError
from service.base.types import TopicIdPartition
from service.base.world import World
from service.config.settings import LogConfig
from service.hot.epochs import LeaderEpochs
from service.hot.files import FileCache
from service.hot.producer_snapshot import SnapshotFiles
from service.hot.producers import ProducerStates
from service.hot.segments import Segments

if TYPE_CHECKING:
    from service.hot.background_append import RunAhead
    from service.hot.cleaning.swap import Swap

_log = logging.getLogger(__name__)

L = TypeVar("L", contravariant=True)


class LogOffline(StorageError):
    """The replica's files are damaged, or cannot be relied on. It serves nothing until the next start."""


class AppendInfo(NamedTuple):
    """Where a batch went; offsets inclusive. ``log_append_time``: ms, -1 under CreateTime.

    Of a duplicate: where it went the first time, with its timestamp then (as Kafka answers).
    """

    first_offset: int
    last_offset: int
    log_append_time: int
    log_start_offset: int
    duplicate: bool
    rolled: bool


class Watcher(Protocol[L]):
    """Who looks after logs: what each tells him, on the loop."""

    def wants_flush(self, log: L) -> None:
        """A segment was sealed: it waits for a flush."""

    def start_moved(self, log: L) -> None:
        """A checkpoint should tell where it begins now."""

    def has_removals(self, log: L, due_ms: int) -> None:
        """`take_removals` gives something then."""

    def configured(self, log: L) -> None:
        """Its settings are others than they were."""


class LogState:
    """One log: offsets, segments and side files. Owned by the loop.

    ``lock`` guards what a flush on another thread looks at: segments, ends and ``truncations``. ``failure``:
    why the replica is offline, None while it is not. ``cleaned_offset``: up to there the log was cleaned, -1
    where it never was to be compacted. ``gaps_below``: where offsets may be missing, as compaction takes
    them. ``swap``: a replacement of segments that is under way; ``ahead``: a run that a thread writes.
    """

    __slots__ = (
        "ahead", "at_end", "cleaned_offset", "config", "dir", "disk", "end_offset", "epochs", "failure",
        "files", "gaps_below", "local_start", "lock", "on_failure", "producers", "recovery_point", "segments",
        "snapshots", "start", "swap", "tip", "truncations", "world",
    )  # fmt: skip

    def __init__(
        self, directory: Path, tip: TopicIdPartition, config: LogConfig, world: World, files: FileCache
    ) -> None:
        self.dir = directory
        self.tip = tip
        self.config = config
        self.world = world
        self.disk: Disk = world.disk
        self.files = files
        self.lock = world.threads.lock()
        self.failure: LogOffline | None = None
        self.on_failure: Callable[[], None] | None = None
        self.truncations = 0
        self.segments: Segments
        self.epochs: LeaderEpochs
        self.producers: ProducerStates
        self.snapshots: SnapshotFiles
        self.start = 0
        self.local_start = 0
        self.end_offset = 0
        self.at_end: Callable[[int, int, int], None] | None = None
        """told of the end, and of the active segment's base and bytes, before anybody hears of a record"""
        self.recovery_point = 0
        self.cleaned_offset = -1
        self.gaps_below = 0
        self.swap: Swap | None = None
        self.ahead: RunAhead | None = None

    def reached(self, offset: int) -> None:
        """The log ends there now, and its active segment is what it is then."""
        self.end_offset = offset
        if self.at_end is not None:
            active = self.segments.active
            self.at_end(offset, active.base_offset, active.size)

    def configure(self, config: LogConfig) -> None:
        """Where it is to be compacted, offsets may be missing from now on, whatever the policy is later."""
        self.config = config
        if config.is_compacted and self.cleaned_offset < 0:
            self.cleaned_offset = self.start

    def fail(self, why: Exception | str) -> LogOffline:
        """Take the replica offline, for good; the error to raise. `on_failure` is called at once, by the
        thread that found out."""
        if self.failure is None:
            self.failure = LogOffline(f"{self.tip} is offline: {why}")
            _log.error("%s", self.failure)
            if self.on_failure is not None:
                self.on_failure()
        return LogOffline(str(self.failure))

    def corrupt(self, error: CorruptionError) -> LogOffline:
        """As `fail`, for bytes that are not what was written: they stay as they are."""
        return self.fail(f"damaged, and left as it is: {error}")

    def check(self) -> None:
        """`LogOffline` where the replica is."""
        if self.failure is not None:
            raise LogOffline(str(self.failure))
