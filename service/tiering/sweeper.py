"""Finds objects that no committed chain names and no running upload will: orphans, by their keys alone.

Crashes, lost leaderships and late answers leave orphans; none of them is part of any log. A key is judged
only by a node that can know: the one that keeps the prefix, whose metadata holds all that was committed
before the sweep began (`House.barrier`), of a partition whose HEAD is what that metadata says. There it is an
object whose epoch (in its key) is not above the partition's, and that the chain committed *after* the key
was listed does not name. Of a partition that this node leads, all that it is not writing now is an orphan:
uploads of earlier epochs can no longer be committed, and those of ours are guarded. What another node leads
may be named by a commit that is still to come, until the catalog has passed it by for good:

- its epoch is below the partition's: the catalog takes nothing of it any more;
- the chain has gone beyond where its segment begins, or its manifest's version is taken;
- what a page lists is in another of its level, or below the chain's start;
- or the partition has got another epoch or another version since a sweep that began after the key was listed:
  whatever was made of the ones before is refused.

All of that stays true once it is, so it is no matter how old the image is by which it is found out, nor how
long an upload takes, nor what the clocks of the nodes say.

Everything else is left alone: keys that are not of this layout; deleted topics, which the eraser deletes by
their tombstones; and topics that the metadata knows neither as live nor as deleted. Those are reported: they
may be all that is left of somebody's archive.

The order makes it safe without a clock: list, then look at what is guarded, then load the chain. A key
listed before and guarded after is skipped; one that was committed in between is in the chain. An orphan is
deleted when two sweeps at least a grace apart have both found it.

An unfinished multipart upload is judged the same way, in stores that have such, with no chain to ask: what is
not finished is not named. It goes once it is older than the grace. An upload of this node that runs is
guarded, however long it takes, and one of another leader is left alone while it may be committed.

What a store was probed with goes when two sweeps at least a grace apart have found it.

A HEAD that lags, of a partition that this node does not lead, is written on the way: its leader may be gone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import groupby, islice
from typing import Final, NamedTuple
from uuid import UUID

from service.base.errors import CorruptionError, FirnError, StorageError
from service.base.slices import Slice
from service.base.types import TopicIdPartition
from service.remote.catalog import NO_VERSION, Catalog, CatalogEntry
from service.remote.format.keys import (
    DATA_PREFIX,
    HeadKey,
    ManifestKey,
    MetadataKey,
    PageKey,
    SegmentKey,
    SharedKey,
    parse_key,
    parse_segment_key,
)
from service.remote.format.manifest import Child, Manifest, PageRef
from service.remote.stores.conditional import PROBE_PREFIX
from service.remote.stores.store import ObjectInfo, ObjectStore
from service.tiering.chain import ChainStore, HeadMoved
from service.tiering.deleting import DELETE_BATCH, Deleted, FailureRun, delete_each
from service.tiering.eraser import Eraser
from service.tiering.fence import Displaced, Fence, NotNamed
from service.tiering.head_check import Verdict, judge
from service.tiering.metrics import TieringMetrics
from service.tiering.offload import OffloadPool
from service.tiering.ports import AbandonedUploads
from service.tiering.tasks import Task

log = logging.getLogger(__name__)

_SEGMENTS: Final = -1
"""The level below the lowest page's."""
_NO_CHAIN: Final = CatalogEntry(NO_VERSION, "", 0, 0, 0, 0, 0)
_GROUP_US: Final = 20
_UPLOAD_US: Final = 3
"""What it takes to judge a partition's keys, and one more for each, or one unfinished upload."""

MAX_REMEMBERED: Final = 200_000
"""Orphans under observation; a bucket with more of them is swept in several rounds."""


class Standing(NamedTuple):
    """A partition's leader epoch by our image, and whether this process leads it in that."""

    leader_epoch: int
    is_ours: bool


class Mark(NamedTuple):
    """How far the catalog has come with a partition. Neither ever falls."""

    leader_epoch: int
    version: int


class Orphan(NamedTuple):
    """A key that the chain does not name. `mark`: it may be named yet until the catalog has gone beyond what
    it was when the key was there already; None: never."""

    key: str
    mark: Mark | None = None


class _Seen(NamedTuple):
    """An orphan that earlier sweeps have found. `mark` is that of the second, so that of a moment at which
    the key was surely there."""

    first_ms: int
    mark: Mark | None


StandingOf = Callable[[UUID, int], Standing | None]
"""None where it is not known, or not to be judged."""
LiveTopics = Callable[[], Collection[UUID] | None]
"""Topics of the committed image; None while it is not known."""


class _Judged(NamedTuple):
    """A partition's keys as judged by its chain, and why some of them could not be."""

    verdict: Verdict
    orphans: list[Orphan]
    problem: FirnError | None = None


class Listed(NamedTuple):
    """One key of the layout, and whose it is."""

    key: str
    parsed: SegmentKey | ManifestKey | PageKey | HeadKey


class Sweeper:
    """Orphans seen so far. Owned by the event loop; lists and loads on the offload pool."""

    def __init__(
        self,
        store: ObjectStore,
        chains: ChainStore,
        catalog: Catalog,
        pool: OffloadPool,
        eraser: Eraser,
        fence: Fence,
        metrics: TieringMetrics,
        standing_of: StandingOf,
        live_topics: LiveTopics,
        grace_ms: int,
        abandoned_uploads: AbandonedUploads | None = None,
    ) -> None:
        self._store = store
        self._chains = chains
        self._catalog = catalog
        self._pool = pool
        self._eraser = eraser
        self._fence = fence
        self._metrics = metrics
        self._standing_of = standing_of
        self._live_topics = live_topics
        self._grace_ms = grace_ms
        self._abandoned_uploads = abandoned_uploads
        self._first_seen: dict[str, _Seen] = {}
        self._unknown: frozenset[UUID] = frozenset()

    async def sweep(self, now_ms: int) -> int:
        """One walk over the bucket at monotonic `now_ms`; how many orphans were deleted.

        None are while this process is not the prefix's writer. A partition that cannot be judged, and an
        object that is refused, keep no other from it. Raises what listing raises, what a store raises that
        does not answer, and `Displaced`.
        """
        if not self._fence.is_ours:
            return 0
        await self._fence.before_housekeeping()
        self._metrics.forget(Task.SWEEP)
        await self._abort_uploads()
        listing = iter(self._store.list(DATA_PREFIX))
        seen: dict[str, _Seen] = {}
        unknown: set[UUID] = set()
        deleted = 0
        failures = FailureRun()
        while chunk := await self._pool.run(_next_chunk, listing):
            if not self._fence.is_ours:
                raise NotNamed("this broker does not keep the prefix any more")
            overdue = []
            for orphan in await self._orphans(chunk, unknown, failures):
                before = self._first_seen.get(orphan.key)
                if before is not None and self._is_overdue(orphan, before, now_ms):
                    overdue.append(orphan.key)
                elif len(seen) < MAX_REMEMBERED:
                    seen[orphan.key] = _remembered(orphan, before, now_ms)
            if overdue:
                deleted += await self._delete(overdue, failures)
        deleted += await self._sweep_probes(seen, now_ms, failures)
        self._first_seen = seen
        await self._report(frozenset(unknown))
        self._metrics.orphans_swept += deleted
        return deleted

    async def _delete(self, overdue: list[str], failures: FailureRun) -> int:
        """Delete orphans, while this process keeps the prefix; how many went."""
        await self._fence.check_keeper()
        done = await self._pool.run(delete_each, self._store, overdue)
        self._note_left(done)
        failures.note(done.error)
        return done.number

    def _note_left(self, done: Deleted) -> None:
        """Count and log orphans that could not be deleted; the next sweep finds them again."""
        if done.error is not None:
            self._failed(done.left[0], done.error)
            log.warning(
                "%d orphans cannot be deleted, the first is %s: %s", len(done.left), done.left[0], done.error
            )

    def _failed(self, at: TopicIdPartition | str, error: FirnError) -> None:
        self._metrics.task_errors[Task.SWEEP] += 1
        self._metrics.failing[Task.SWEEP, at] = str(error)

    async def _sweep_probes(self, seen: dict[str, _Seen], now_ms: int, failures: FailureRun) -> int:
        """Delete what a process that ended left of asking what the store can do; how many."""
        overdue = []
        for key in await self._pool.run(_probes, self._store):
            before = self._first_seen.get(key)
            if before is not None and now_ms - before.first_ms >= self._grace_ms:
                overdue.append(key)
            else:
                seen[key] = before or _Seen(now_ms, None)
        return await self._delete(overdue, failures) if overdue else 0

    def _is_overdue(self, orphan: Orphan, before: _Seen, now_ms: int) -> bool:
        if now_ms - before.first_ms < self._grace_ms:
            return False
        return orphan.mark is None or (before.mark is not None and orphan.mark != before.mark)

    async def _abort_uploads(self) -> None:
        """A store that cannot do it, or does not allow it, keeps nothing else from being swept."""
        if self._abandoned_uploads is None:
            return
        try:
            aborted = await self._abandoned_uploads(self._grace_ms, self._dead_uploads)
        except StorageError as e:
            self._metrics.task_errors[Task.ABORT_UPLOADS] += 1
            self._metrics.failing[Task.ABORT_UPLOADS, None] = str(e)
            log.warning("unfinished multipart uploads are left where they are until the next sweep: %s", e)
            return
        self._metrics.failing.pop((Task.ABORT_UPLOADS, None), None)
        self._metrics.uploads_aborted += aborted
        if aborted:
            log.info("%d abandoned multipart uploads aborted", aborted)

    async def _dead_uploads(self, keys: Sequence[str]) -> list[str]:
        """Those of `keys`, listed before this is called, that nobody uploads to for a chain any more."""
        dead = []
        piece = Slice()
        for key, segment in await self._pool.run(_segments, keys):
            if piece.charge(_UPLOAD_US):
                await piece.next_turn()
            if not self._eraser.is_guarded(key) and self._is_dead(segment):
                dead.append(key)
        return dead

    def _is_dead(self, segment: SegmentKey) -> bool:
        if segment.topic_id in self._catalog.tombstones():
            return True
        standing = self._standing_of(segment.topic_id, segment.partition)
        if standing is None or segment.leader_epoch > standing.leader_epoch:
            return False
        entry = self._catalog.entry(segment.topic_id, segment.partition) or _NO_CHAIN
        return standing.is_ours or _is_passed_by(segment, standing.leader_epoch, entry)

    async def _report(self, unknown: frozenset[UUID]) -> None:
        """Say it once, and again when others come."""
        if not unknown <= self._unknown:
            await self._fence.before_housekeeping()  # some may have been made while the bucket was listed
            live_topics = self._live_topics() or ()
            unknown = frozenset(
                one for one in unknown if one not in live_topics and one not in self._catalog.tombstones()
            )
        self._metrics.unknown_topics = len(unknown)
        if not unknown <= self._unknown:
            log.error(
                "the bucket has objects of %d topics that this node's metadata knows neither as live "
                "nor as deleted; they are not touched: %s",
                len(unknown),
                ", ".join(map(str, sorted(unknown)[:20])),
            )
        self._unknown = unknown

    async def _orphans(self, chunk: list[Listed], unknown: set[UUID], failures: FailureRun) -> list[Orphan]:
        orphans: list[Orphan] = []
        piece = Slice()
        for (topic_id, partition), listed in groupby(chunk, lambda one: one.parsed[:2]):
            group = [one for one in listed if not self._eraser.is_guarded(one.key)]
            if piece.charge(_GROUP_US + len(group)):
                await piece.next_turn()
            live_topics = self._live_topics()
            if live_topics is not None and topic_id not in live_topics:
                if topic_id not in self._catalog.tombstones():
                    unknown.add(topic_id)
                continue
            standing = self._standing_of(topic_id, partition)
            if standing is None:
                continue
            entry = self._catalog.entry(topic_id, partition)
            tip = TopicIdPartition(topic_id, "", partition)
            error: FirnError | None = None
            try:
                judged = await self._pool.run(self._unnamed, tip, entry, standing, group)
                orphans += judged.orphans
                error = judged.problem
                if judged.verdict is Verdict.OURS_NEWER and entry is not None and not standing.is_ours:
                    await self._write_late_head(tip, entry)
            except (Displaced, NotNamed):
                raise
            except (CorruptionError, StorageError) as e:
                error = e
            if error is not None:
                # What this chain names is not known; the others are not worse off for it.
                self._failed(tip, error)
                log.error("%s/%d cannot be swept (firn fsck, firn repair): %s", topic_id, partition, error)
            failures.note(error)
        return orphans

    async def _write_late_head(self, tip: TopicIdPartition, entry: CatalogEntry) -> None:
        """Have HEAD name what was committed, if it still names less: a leader that is gone did not."""
        await self._fence.check_keeper()
        if await self._pool.run(self._publish, tip, entry):
            self._metrics.heads_repaired += 1

    def _publish(self, tip: TopicIdPartition, entry: CatalogEntry) -> bool:
        """On an offload thread."""
        seen = self._chains.look(tip)
        if seen.damage is not None or judge(entry, seen.head) is not Verdict.OURS_NEWER:
            return False
        self._chains.forget(entry.manifest_key)
        try:
            self._chains.write_head(seen, self._chains.load(tip, entry.manifest_key).head)
        except HeadMoved:
            return False
        return True

    def _unnamed(
        self, tip: TopicIdPartition, entry: CatalogEntry | None, standing: Standing, listed: list[Listed]
    ) -> _Judged:
        """On an offload thread: how HEAD stands to our entry, and the keys that the committed chain does not
        name. What lies where a page cannot be read is taken for named."""
        seen = self._chains.look(tip)
        verdict = judge(entry, seen.head) if seen.damage is None else Verdict.UNREADABLE
        if verdict is not Verdict.EQUAL:
            return _Judged(verdict, [])  # ours is not the chain to judge by; the partition's own work says so
        manifest = self._chains.load(tip, entry.manifest_key).manifest if entry is not None else None
        chain = entry or _NO_CHAIN
        unnamed: list[Orphan] = []
        problem: FirnError | None = None
        unread: dict[str, FirnError] = {}

        def child_at(offset: int, level: int) -> Child | None:
            return self._child_at(tip, manifest, offset, level, unread)

        for key, parsed in listed:
            try:
                orphan = _orphan(key, parsed, standing, chain, child_at)
            except (CorruptionError, StorageError) as e:
                problem = e
                continue
            if orphan is not None:
                unnamed.append(orphan)
        return _Judged(verdict, unnamed, problem)

    def _child_at(
        self,
        tip: TopicIdPartition,
        manifest: Manifest | None,
        offset: int,
        level: int,
        unread: dict[str, FirnError],
    ) -> Child | None:
        """What the chain has at `offset`: its page of `level`, or what is not in one of those yet.

        What lies wholly below the start offset is not named, even if an immutable page still lists it. Raises
        what reading a page raises, and remembers it in `unread`, so that none is tried for each key.
        """
        children: tuple[Child, ...] = manifest.children if manifest is not None else ()
        while True:
            child = next((one for one in children if one.base_offset <= offset <= one.last_offset), None)
            if child is None or manifest is None or child.last_offset < manifest.start_offset:
                return None  # pages below the start may be gone already: they are not even looked into
            if not isinstance(child, PageRef) or child.level <= level:
                return child
            if child.key in unread:
                raise unread[child.key]
            try:
                children = self._chains.page(tip, child).children
            except (CorruptionError, StorageError) as e:
                unread[child.key] = e
                raise


ChildAt = Callable[[int, int], Child | None]
"""What the chain has at an offset: `Sweeper._child_at`."""


def _orphan(
    key: str,
    parsed: SegmentKey | ManifestKey | PageKey | HeadKey,
    standing: Standing,
    chain: CatalogEntry,
    child_at: ChildAt,
) -> Orphan | None:
    """What `key` is if the committed `chain` does not name it; None where it does. Raises what reading the
    chain raises."""
    epoch, is_passed_by = standing.leader_epoch, False
    if isinstance(parsed, HeadKey):
        named = chain is not _NO_CHAIN or not standing.is_ours
    elif isinstance(parsed, PageKey):
        child = child_at(parsed.base_offset, parsed.level)
        named = child is not None and child.key == key
        is_passed_by = _is_paged(child, parsed, chain)
    else:
        named = parsed.leader_epoch > epoch
        if isinstance(parsed, SegmentKey) and not named:
            child = child_at(parsed.base_offset, _SEGMENTS)
            named = child is not None and child.key == key
        named = named or key == chain.manifest_key
        is_passed_by = _is_passed_by(parsed, epoch, chain)
    if named:
        return None
    return Orphan(key, None if standing.is_ours or is_passed_by else Mark(epoch, chain.version))


def _is_passed_by(parsed: SegmentKey | ManifestKey, leader_epoch: int, chain: CatalogEntry) -> bool:
    """Whether the catalog takes no commit any more that would name what is not named by `chain`."""
    if isinstance(parsed, SegmentKey):
        return parsed.leader_epoch < leader_epoch or parsed.base_offset < chain.end_offset
    return parsed.leader_epoch < leader_epoch or parsed.version <= chain.version


def _is_paged(child: Child | None, parsed: PageKey, chain: CatalogEntry) -> bool:
    """Whether no next version makes the page any more: `child`, what lies there, is in one of its level, or
    lies there no more."""
    if child is None:
        return parsed.base_offset < chain.start_offset
    return isinstance(child, PageRef) and child.level == parsed.level


def _remembered(orphan: Orphan, before: _Seen | None, now_ms: int) -> _Seen:
    if before is None:
        return _Seen(now_ms, None)
    return _Seen(before.first_ms, before.mark or orphan.mark)


def _next_chunk(listing: Iterator[ObjectInfo]) -> list[Listed]:
    """On an offload thread: keys of the layout among the next ones; none at the end of the listing alone."""
    while infos := list(islice(listing, DELETE_BATCH)):
        if chunk := [one for info in infos if (one := _listed(info.key)) is not None]:
            return chunk
    return []


def _probes(store: ObjectStore) -> list[str]:
    """On an offload thread: keys that the store was probed with, as many as are deleted at a time."""
    return [info.key for info in islice(store.list(PROBE_PREFIX), DELETE_BATCH)]


def _segments(keys: Sequence[str]) -> list[tuple[str, SegmentKey]]:
    """On an offload thread: those of segments; nothing else is ever uploaded in parts."""
    return [(key, segment) for key in keys if (segment := parse_segment_key(key)) is not None]


def _listed(key: str) -> Listed | None:
    """The key with what it names, None for what is not a partition's (and so never an orphan)."""
    parsed = parse_key(key)
    return None if parsed is None or isinstance(parsed, (SharedKey, MetadataKey)) else Listed(key, parsed)
