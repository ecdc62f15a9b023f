"""Protocols that the tiering room requires of the rooms above it, and its settings. [P]

The node passes its partitions in as they are; tiering uses only the members listed here, and only on the
event loop. Offload threads read the files of a `Sealed` segment: a sealed segment never changes, and one that
is deleted meanwhile stays readable through its open file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol
from uuid import UUID

from service.base.types import Buffer, TopicIdPartition
from service.config.settings import LogConfig
from service.records.segment_indexes import IndexBytes, Walk
from service.remote.catalog import Catalog, CatalogEntry, Erasure, RewriteAnswer, RewriteIntent
from service.tiering.planner import SegmentSpan


class LogFile(Protocol):
    """The `.log` of a sealed segment: readable while it is held, even if the segment is deleted."""

    @property
    def path(self) -> Path: ...
    def pread(self, size: int, position: int, /) -> bytes:
        """Return bytes from `position` on, fewer than `size` only at the end."""

    def read(self, position: int, size: int, /) -> Buffer:
        """Return exactly these bytes; raise `StorageError` if they are not all there."""


class Sealed(SegmentSpan, Protocol):
    """A local segment that is closed for writing (`hot` has the class). Sizes in bytes, offsets inclusive."""

    def prove_indexes(self, walk: Walk, /) -> IndexBytes:
        """Return both indexes, checked against the log and rebuilt where they are wrong. For an offload
        thread.

        Calls `walk` once, and again where the indexes have to be rebuilt; raises its errors.
        """

    def side_file(self, path: Path | None, most_bytes: int, /) -> bytes:
        """Return the whole file beside the log; empty where it does not exist. For an offload thread."""

    @property
    def sealed_at_ms(self) -> int: ...
    @property
    def txn_index_path(self) -> Path | None: ...
    @property
    def producer_snapshot_path(self) -> Path | None: ...
    @property
    def base_snapshot_path(self) -> Path | None: ...
    @property
    def log_file(self) -> LogFile: ...
    @property
    def log(self) -> object:
        """Return the file of the log, whatever of it is open: another one once the segment was replaced."""


class SealedSegmentSource(Protocol):
    """Segments of a log that are closed for writing. Each call costs O(log n) of them."""

    def watch(self, news: Callable[[], None] | None, /) -> None:
        """Call `news` when a segment was sealed, the log start moved or its settings changed."""

    def spans(self, from_offset: int, most: int, /) -> Sequence[SegmentSpan]:
        """Return up to `most` segments that end beyond `from_offset`, oldest first."""

    def totals(self, from_offset: int, end_offset: int, /) -> tuple[int, int]:
        """Return number and bytes of the segments that end beyond `from_offset` and not beyond
        `end_offset`."""

    def bytes_beyond(self, offset: int, /) -> int:
        """Return the bytes of all segments that end beyond `offset`, including the active one."""

    def sealed_at_ms(self, base_offset: int, /) -> int:
        """Return when the segment with this base offset was sealed."""

    def describe(self, base_offset: int, /) -> Sealed:
        """Return the sealed segment with this base offset, ready to be copied."""

    def replace_rows(self, base_offset: int, rows: Buffer, /) -> None:
        """Replace the transaction index of the segment with this base offset."""


class EpochEntries(Protocol):
    """Leader epochs of a log."""

    @property
    def entries(self) -> tuple[tuple[int, int], ...]:
        """(leader epoch, its first offset), ascending."""


class SegmentRun(Protocol):
    """One segment, as `hot.log_runs.LogRun`."""

    @property
    def file(self) -> SegmentRunFile: ...
    @property
    def base_offset(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def is_held(self) -> bool: ...
    @property
    def name(self) -> str: ...
    def position_of(self, offset: int, /) -> int:
        """Return the position of the first batch that ends at or behind `offset`."""


class SegmentRunFile(Protocol):
    """The segment's file."""

    def read(self, position: int, size: int, /) -> Buffer:
        """Return exactly these bytes; raise `StorageError` if they are not all there."""


class LocalRuns(Protocol):
    """Segments of a log as files, as `hot.log_runs.LogRuns`."""

    def runs_between(self, offset: int, last_offset: int | None, /) -> Sequence[SegmentRun]:
        """Return the segments that have offsets from `offset` to `last_offset`, oldest first."""


class TieredLog(Protocol):
    """Local tier of one partition. Its members raise `StorageError` where it is offline."""

    @property
    def epochs(self) -> EpochEntries: ...

    @property
    def log_start_offset(self) -> int: ...
    @property
    def sealed(self) -> SealedSegmentSource: ...
    @property
    def runs(self) -> LocalRuns: ...
    @property
    def oldest_open(self) -> tuple[int, int, int] | None:
        """Producer id, first offset and last timestamp (ms) of the oldest open transaction."""


class ArchiveState(Protocol):
    """State of a partition's archive on the node that leads it."""

    def head_judged(self, problem: str | None) -> None:
        """Report the comparison of HEAD with our metadata: None where they agree and appends are safe.

        Otherwise `problem` says how they differ: local bytes that were deletable because the bucket has them
        are not any more, and a partition that did not take appends yet still takes none.
        """

    def remote_committed(self, entry: CatalogEntry) -> None:
        """Adopt a committed and published entry: its manifest is now the remote part of the log."""


class TieredPartition(Protocol):
    """One partition that this node leads."""

    @property
    def archive(self) -> ArchiveState: ...

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

    on_stable: Callable[[], None] | None
    """called when `last_stable_offset` rises; None where nobody waits for that"""


class RewriteCatalog(Catalog, Protocol):
    """The catalog with what tiering needs of rewrites, as in `remote.catalog.NodeCatalog`."""

    def rewrite(self, topic_id: UUID, partition: int, /) -> RewriteIntent | None:
        """Return the partition's live intent in this node's image."""

    async def begin_rewrite(self, tip: TopicIdPartition, intent: RewriteIntent, /) -> RewriteAnswer:
        """Put the intent into the metadata."""

    async def give_up_rewrite(self, tip: TopicIdPartition, rewrite_id: UUID, /) -> None:
        """Remove the intent with this id, if it is the partition's."""

    def erasures(self) -> Mapping[UUID, Erasure]:
        """Return the orders in this node's image, done ones among them."""


class PrefixOwner(Protocol):
    """The cluster that owns a prefix: its brokers, and which of them is the keeper, by this node's own image.

    The keeper sweeps, deletes topics, and writes the shared objects. The other brokers write the partitions
    that they lead. Methods read the current image, which may lag; after a `barrier` it holds all that was
    committed before.
    """

    def is_keeper(self) -> bool:
        """Return whether this process is registered and the unfenced broker of lowest id: it should be the
        keeper."""

    def is_unfenced(self) -> bool:
        """Return whether this process is registered and unfenced: a fenced broker deletes nothing."""

    def rank(self) -> int:
        """Return how many unfenced brokers have a lower id than this one."""

    def broker_of(self, incarnation: UUID, /) -> int | None:
        """Return the id of the broker that registered with this incarnation; None where none has."""

    def archived(self) -> Iterable[CatalogEntry]:
        """Return the committed entries of all partitions."""

    def knows(self, incarnation: UUID, /) -> bool:
        """Return whether the incarnation is a broker of this cluster: registered now, or seen by this process
        before."""

    def members(self) -> tuple[UUID, ...]:
        """Return the incarnations of all registered brokers, sorted; empty where this node shares the prefix
        with no other."""

    def leader_epoch(self, topic_id: UUID, partition: int, /) -> int | None:
        """Return the partition's epoch, whichever broker leads it; None where it does not exist, or only this
        node leads."""

    def others(self) -> Iterable[TopicIdPartition]:
        """Return the partitions that this node does not lead."""

    def life(self) -> int:
        """Return the cluster's life to which the image belongs."""

    async def barrier(self) -> int:
        """Return an offset that was committed after the call began and that the image holds now.

        Raises `StorageError` where it cannot get one.
        """

    def watch(self, changed: Callable[[], None], /) -> None:
        """Call `changed` whenever the results of `is_keeper`, `knows` or `members` may have changed."""


class TieringSettings(NamedTuple):
    """Broker-wide settings; comments name the config key, Kafka's or ours."""

    interval_ms: int = 30_000  # remote.log.manager.task.interval.ms
    copier_threads: int = 10  # remote.log.manager.copier.thread.pool.size
    grace_ms: int = 3_600_000  # firn.remote.object.grace.ms
    sweep_interval_ms: int = 3_600_000
    backoff_initial_ms: int = 500  # remote.log.manager.task.retry.backoff.ms and its max and jitter
    backoff_max_ms: int = 30_000
    backoff_jitter: float = 0.2
    watchdog_ms: int = 120_000
    """Time after which an upload that moves no byte, or a smaller call that does not return, is cancelled."""
    topics_debounce_ms: int = 1_000
    topics_latest_ms: int = 10_000
    """`topics.json` is written when topics have not changed for `topics_debounce_ms`, at the latest this long
    after the first change."""
    metadata_interval_ms: int = 3_600_000  # metadata.log.max.snapshot.interval.ms
    """The metadata is copied with `topics.json`, and once per interval."""
    commit_segments: int = 16
    """Most segments of one manifest; no further upload begins once `commit_bytes` are uploaded."""
    commit_bytes: int = 256 << 20
    fence_age_ms: int = 10_000
    """Greatest age of the `cluster.json` read on which a task may begin; deletions read it again."""
    block_bytes: int = 1 << 20
    """Target of the block table and size of a read: an upload holds a few of these in memory."""
    stop_timeout_ms: int = 5_000

    @property
    def heads_interval_ms(self) -> int:
        """Interval of HEAD comparisons: short enough that no HEAD names a manifest whose grace is over."""
        return max(self.interval_ms, self.grace_ms // 2)
