"""What the tiering room asks of the rooms above it, and what it is told at start. [P]

The broker passes its partitions in as they are; only what stands here is used of them, and only on the
event loop. Files named by a `Sealed` segment are read on offload threads: a sealed segment never changes,
and one that is deleted meanwhile stays readable through the open file it brings along.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol
from uuid import UUID

from service.base.types import Buffer, TopicIdPartition
from service.config.settings import LogConfig
from service.records.segment_indexes import IndexBytes, Walk
from service.remote.catalog import CatalogEntry
from service.tiering.planner import SegmentSpan


class LogFile(Protocol):
    """The `.log` of a sealed segment: readable as long as it is held, even if the segment is deleted."""

    @property
    def path(self) -> Path: ...
    def pread(self, size: int, position: int, /) -> bytes:
        """Bytes from `position` on, fewer than `size` at the end only."""

    def read(self, position: int, size: int, /) -> Buffer:
        """All of these bytes; `StorageError` if they are not all there."""


class Sealed(SegmentSpan, Protocol):
    """A local segment that is closed for writing (`hot` has the class). Sizes in bytes, offsets inclusive."""

    def prove_indexes(self, walk: Walk, /) -> IndexBytes:
        """Both indexes, held against the log and made anew where they are not true. For an offload thread.

        `walk` is called once, and again where they have to be made anew: its errors are raised.
        """

    def side_file(self, path: Path | None, most_bytes: int, /) -> bytes:
        """All of a file beside the log, none where it is not there. For an offload thread."""

    @property
    def sealed_at_ms(self) -> int: ...
    @property
    def txn_index_path(self) -> Path | None: ...
    @property
    def producer_snapshot_path(self) -> Path | None: ...
    @property
    def log_file(self) -> LogFile: ...


class SealedSegments(Protocol):
    """The segments of a log that are closed for writing. Each call costs O(log n) of them."""

    def watch(self, news: Callable[[], None] | None, /) -> None:
        """Call `news` when a segment was sealed, the log's start moved or its settings changed."""

    def spans(self, from_offset: int, most: int, /) -> Sequence[SegmentSpan]:
        """Up to `most` of those that end beyond `from_offset`, oldest first."""

    def totals(self, from_offset: int, end_offset: int, /) -> tuple[int, int]:
        """Number and bytes of those that end beyond `from_offset` and not beyond `end_offset`."""

    def bytes_beyond(self, offset: int, /) -> int:
        """Bytes of all segments that end beyond `offset`, the one that is written to among them."""

    def sealed_at_ms(self, base_offset: int, /) -> int:
        """When the segment that begins there was sealed."""

    def describe(self, base_offset: int, /) -> Sealed:
        """What it takes to copy the segment that begins there."""


class TieredLog(Protocol):
    """The local tier of one partition. What it is asked raises `StorageError` where it is offline."""

    @property
    def log_start_offset(self) -> int: ...
    @property
    def sealed(self) -> SealedSegments: ...


class TieredPartition(Protocol):
    """One partition that this node leads."""

    @property
    def tip(self) -> TopicIdPartition: ...
    @property
    def leader_epoch(self) -> int: ...
    @property
    def log(self) -> TieredLog: ...
    @property
    def high_watermark(self) -> int: ...
    @property
    def last_stable_offset(self) -> int: ...
    @property
    def config(self) -> LogConfig: ...
    def head_judged(self, problem: str | None) -> None:
        """HEAD was compared with our metadata. None: they agree, appends are safe.

        Otherwise why they do not: local bytes that were let go because they lie in the bucket are not any
        more, and a partition that took no appends yet goes on taking none.
        """

    def remote_committed(self, entry: CatalogEntry) -> None:
        """Take over a committed and published entry: its manifest is the remote part of the log from now
        on."""


class House(Protocol):
    """The brokers that share a prefix, and which of them keeps it, by this node's own image.

    One of them sweeps, deletes topics, and writes what all share. The others write what they lead. What is
    asked here is of the image as it is now, which may lag; after a `barrier` it holds all that was committed
    before.
    """

    def is_keeper(self) -> bool:
        """Whether this process is registered, unfenced, and of the lowest such id: it keeps the prefix, where
        it can."""

    def is_unfenced(self) -> bool:
        """Whether this process is registered and unfenced: who is not deletes nothing."""

    def rank(self) -> int:
        """How many unfenced brokers have a lower id than this one."""

    def broker_of(self, incarnation: UUID, /) -> int | None:
        """The id of the broker that has registered as this process; None where none has."""

    def archived(self) -> Iterable[CatalogEntry]:
        """The committed entries of all partitions."""

    def knows(self, incarnation: UUID, /) -> bool:
        """Whether this is a broker of ours: registered now, or seen so by this process before."""

    def members(self) -> tuple[UUID, ...]:
        """The incarnations of all registered brokers, sorted; none where this node shares with nobody."""

    def leader_epoch(self, topic_id: UUID, partition: int, /) -> int | None:
        """The partition's epoch, whoever leads it; None where it is not there, or nobody else may lead it."""

    def others(self) -> Iterable[TopicIdPartition]:
        """The partitions that other nodes lead, or nobody."""

    def life(self) -> int:
        """The life of the cluster that the image is of."""

    async def barrier(self) -> int:
        """An offset that was committed after this was called, and that the image holds now.

        Raises `StorageError` where that cannot be had.
        """

    def watch(self, changed: Callable[[], None], /) -> None:
        """Call `changed` whenever what `is_keeper`, `knows` or `members` say may be another."""


ChooseUploads = Callable[[Sequence[str]], Awaitable[Collection[str]]]


class AbandonedUploads(Protocol):
    """Ends unfinished multipart uploads, which no listing shows, in a store that keeps them for ever."""

    async def __call__(self, older_than_ms: int, choose: ChooseUploads) -> int:
        """Abort those of the uploads older than `older_than_ms` whose keys `choose` picks; how many.

        `choose` is awaited on the event loop, at most once, after the uploads have been listed, with the keys
        of this layout among them. Raises `StorageError`.
        """


class TieringSettings(NamedTuple):
    """Broker-wide settings; the names of Kafka's or our keys are in the comments."""

    interval_ms: int = 30_000  # remote.log.manager.task.interval.ms
    copier_threads: int = 10  # remote.log.manager.copier.thread.pool.size
    grace_ms: int = 3_600_000  # firn.remote.object.grace.ms
    sweep_interval_ms: int = 3_600_000
    backoff_initial_ms: int = 500  # remote.log.manager.task.retry.backoff.ms and its max and jitter
    backoff_max_ms: int = 30_000
    backoff_jitter: float = 0.2
    watchdog_ms: int = 120_000
    """An upload that moves no byte for so long, or a smaller call that does not return, is given up."""
    topics_debounce_ms: int = 1_000
    topics_latest_ms: int = 10_000
    """`topics.json` is written when topics have not changed for `topics_debounce_ms`, and so long after the
    first change at the latest."""
    metadata_interval_ms: int = 3_600_000  # metadata.log.max.snapshot.interval.ms
    """The metadata is copied with `topics.json`, and once per interval."""
    commit_segments: int = 16
    """So many segments at most, and no more once they have `commit_bytes`, go with one manifest."""
    commit_bytes: int = 256 << 20
    fence_age_ms: int = 10_000
    """So old may be what was seen of `cluster.json` when a unit of work begins; deletions look again."""
    block_bytes: int = 1 << 20
    """Target of the block table and size of a read: what an upload holds in memory is a few of these."""
    stop_timeout_ms: int = 5_000

    @property
    def heads_interval_ms(self) -> int:
        """How often HEAD is looked at: so often that none names a manifest whose grace is over."""
        return max(self.interval_ms, self.grace_ms // 2)
