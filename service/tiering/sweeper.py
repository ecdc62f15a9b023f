"""Find objects that no committed chain names and no running upload will: orphans, by their keys alone.

Crashes, lost leaderships and late answers leave orphans; none is part of any log. A key is judged only by a
node that can know: the keeper, whose metadata holds all that was committed before the sweep began
(`PrefixOwner.barrier`), and only in a partition whose HEAD is what that metadata says. A key is an orphan
there if its epoch is not above the partition's, and the chain committed *after* the key was listed does not
name it. In a partition that this node leads, everything that it is not writing now is an orphan: uploads of
earlier epochs can no longer be committed, and those of the current one are guarded. A key of a partition that
another node leads may be named by a later commit, until the catalog has passed it for good:

- its epoch is below the partition's: the catalog refuses commits of that epoch;
- the manifest's version is taken;
- the chain has passed the segment's base offset, and no rewrite that lives covers its offsets: a commit that
  replaces a run needs its intent, and an intent that is gone never comes back (invariant T25);
- the segments of a page are all below the chain's start;
- or the partition has another epoch or another version since a sweep that began after the key was listed:
  whatever was made from the ones before is refused.

What a rewrite that lives covers is left alone, also where this node leads: other processes make its objects.
Entry and intent are read from one image. An intent may have begun after the image and before the listing;
so before a segment below the chain's end is judged dead, the sweep passes a barrier once more: no object that
was listed before it can be of an intent that began after it.

Each of these stays true once it is. So it does not matter how old the image is, how long an upload takes, or
what the clocks of the nodes say.

Everything else is left alone: keys that are not of this layout; deleted topics, which the eraser deletes by
their tombstones; and topics that the metadata knows neither as live nor as deleted. The last are reported:
they may be all that is left of an archive.

The order makes it safe without a clock: list, then read the guarded keys, then load the chain. A key listed
before and guarded after is skipped; one that was committed in between is in the chain. An orphan is deleted
when two sweeps at least a grace apart have both found it, and no cut is kept that is older than the first of
them (`cuts/needed_chains.py`).

A probe object is deleted when two sweeps at least a grace apart have found it; so are tails, cuts and
checkpoints that no cut needs (`cut_sweep`).

The sweep also writes a HEAD that lags, of a partition that this node does not lead: its leader may be gone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import groupby, islice
from typing import Final, NamedTuple
from uuid import UUID

from service.base.errors import CorruptionError, FirnError, StorageError
from service.base.slices import Slice
from service.base.types import TopicIdPartition
from service.remote.catalog import NO_VERSION, CatalogEntry, RewriteIntent
from service.remote.format.cut_codec import MetadataEnd
from service.remote.format.keys import (
    CUT_NAME,
    DATA_PREFIX,
    HeadKey,
    ManifestKey,
    PageKey,
    PartitionKey,
    SegmentKey,
    parse_key,
)
from service.remote.format.manifest import Child, Manifest, PageRef
from service.remote.stores.conditional import PROBE_PREFIX
from service.remote.stores.errors import StoreUnavailable
from service.remote.stores.store import ObjectInfo, ObjectStore
from service.tiering.archive_attempt import TieringContext
from service.tiering.chain import HeadMoved, SeenHead
from service.tiering.cut_sweep import CutSweep, DeadObjects
from service.tiering.cuts.needed_chains import NEVER_NAMED
from service.tiering.deleting import DELETE_BATCH, Deleted, FailureRun, delete_each
from service.tiering.erase_sweep import unnamed_orders
from service.tiering.erasing.order_objects import remove_versions
from service.tiering.erasing.remains import VersionsOf
from service.tiering.head_check import HeadVerdict, check_head
from service.tiering.prefix_fence import Displaced, NotNamed
from service.tiering.tasks import Task

log = logging.getLogger(__name__)

_SEGMENTS: Final = -1
"""Level below that of the lowest page."""
_NO_CHAIN: Final = CatalogEntry(NO_VERSION, "", 0, 0, 0, 0, 0)

MAX_REMEMBERED: Final = 200_000
"""Most orphans under observation; a bucket with more is swept in several rounds."""


class PartitionLeadership(NamedTuple):
    """Leader epoch of a partition by our image, and whether this process leads it in that epoch."""

    leader_epoch: int
    is_ours: bool


class Mark(NamedTuple):
    """Progress of the catalog with a partition. Neither value ever falls."""

    leader_epoch: int
    version: int


class UnnamedKey(NamedTuple):
    """A key that the chain does not name.

    `mark`: a commit may still name it until the catalog has passed this mark, read when the key already
    existed; None: no commit can. `may_be_rewritten`: one can under an intent that began after the image.
    """

    key: str
    mark: Mark | None = None
    may_be_rewritten: bool = False


class _Sighting(NamedTuple):
    """An orphan that earlier sweeps found. `mark` is from the second of them, so the key surely existed
    then. `dropped`: the end of metadata by which no chain names it, nor ever will; None while one may."""

    first_ms: int
    mark: Mark | None
    dropped: MetadataEnd | None


LeadershipOf = Callable[[UUID, int], PartitionLeadership | None]
"""Returns None where it is not known, or not to be judged."""
LiveTopics = Callable[[], Collection[UUID] | None]
"""Returns the topics of the committed image; None while it is not known."""


class _GroupResult(NamedTuple):
    """Result of judging a partition's keys by its chain, and why some could not be judged."""

    verdict: HeadVerdict
    orphans: list[UnnamedKey]
    problem: FirnError | None = None


class ChainState(NamedTuple):
    """A partition in one image: its committed entry, and the rewrite that lives."""

    entry: CatalogEntry
    intent: RewriteIntent | None

    def is_rewritten(self, key: SegmentKey) -> bool:
        """Return whether the object may be one that is made for the rewrite."""
        one = self.intent
        return (
            one is not None
            and key.leader_epoch == one.leader_epoch
            and one.base_offset <= key.base_offset
            and key.last_offset <= one.last_offset
        )


class ListedKey(NamedTuple):
    """One key of the layout, with its parsed form."""

    key: str
    parsed: PartitionKey


class Sweeper:
    """Finds and deletes orphans. Owned by the event loop; lists and loads on the offload pool."""

    def __init__(
        self,
        context: TieringContext,
        leadership_of: LeadershipOf,
        live_topics: LiveTopics,
        cuts: CutSweep | None = None,
        versions: VersionsOf | None = None,
    ) -> None:
        """`cuts` judges what cuts leave behind; None where none are taken. `versions` removes old versions of
        orders' documents; None where the store has none."""
        self._cuts = cuts
        self._versions = versions
        self._context = context
        self._store = context.store
        self._chains = context.chains
        self._catalog = context.catalog
        self._pool = context.pool
        self._eraser = context.eraser
        self._needed = context.needed
        self._fence = context.fence
        self._metrics = context.metrics
        self._leadership_of = leadership_of
        self._live_topics = live_topics
        self._grace_ms = context.settings.grace_ms
        self._sightings: dict[str, _Sighting] = {}
        self._unknown: frozenset[UUID] = frozenset()

    async def sweep(self, now_ms: int) -> int:
        """Walk over the bucket once at monotonic `now_ms`; return how many orphans were deleted.

        Deletes none while this process is not the keeper. A partition that cannot be judged, and an object
        whose deletion is refused, hold up no other. Raises what listing raises, what a store raises that does
        not answer, and `Displaced`.
        """
        if not self._fence.is_ours:
            return 0
        await self._fence.check_before_sweep()
        self._metrics.forget(Task.SWEEP)
        settled = await self._needed.settled()
        listing = iter(self._store.list(DATA_PREFIX))
        seen: dict[str, _Sighting] = {}
        unknown: set[UUID] = set()
        deleted = 0
        failures = FailureRun()
        while chunk := await self._pool.run(_next_chunk, listing):
            if not self._fence.is_ours:
                raise NotNamed("this broker is not the prefix's keeper any more")
            overdue = []
            orphans = await self._orphans(chunk, unknown, failures)
            if doubtful := {one.key for one in orphans if one.may_be_rewritten}:
                await self._fence.check_before_sweep()
                orphans = [one for one in orphans if one.key not in doubtful]
                again = [one for one in chunk if one.key in doubtful]
                orphans += await self._orphans(again, unknown, failures)
            dropped = self._needed.dropped()  # of metadata not older than what they were judged by
            for orphan in orphans:
                before = self._sightings.get(orphan.key)
                if before is not None and self._is_overdue(orphan, before, now_ms):
                    since = before.dropped or dropped
                    if since <= settled:
                        overdue.append(orphan.key)
                        continue
                    self._needed.wait(since)
                if len(seen) < MAX_REMEMBERED:
                    seen[orphan.key] = _remembered(orphan, before, now_ms, dropped)
            if overdue:
                deleted += await self._delete(overdue, failures)
        probes = await self._pool.run(_probes, self._store)
        deleted += await self._sweep_dead(probes, seen, now_ms, failures)
        if self._cuts is not None:
            deleted += await self._sweep_dead(await self._left_by_cuts(), seen, now_ms, failures)
        orders = await self._left_by_erasures()
        deleted += await self._sweep_dead(orders, seen, now_ms, failures, self._versions)
        self._sightings = seen
        await self._report(frozenset(unknown))
        self._metrics.orphans_swept += deleted
        return deleted

    async def _delete(
        self, overdue: list[str], failures: FailureRun, versions: VersionsOf | None = None
    ) -> int:
        """Delete orphans while this process is the keeper; return how many were deleted. `versions`: theirs
        go, too."""
        await self._fence.check_keeper()
        try:
            await remove_versions(self._context, versions, overdue)
        except StoreUnavailable as e:  # a later sweep finds them again
            self._failed(overdue[0], e)
            return 0
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

    async def _left_by_cuts(self) -> Sequence[str]:
        """Return what no cut needs any more. A damaged document holds up nothing else."""
        assert self._cuts is not None
        try:
            dead = await self._cuts.find()
        except CorruptionError as e:
            dead = DeadObjects((), e)
        if dead.problem is not None:
            self._failed(CUT_NAME, dead.problem)
            log.error("not all tails can be swept: %s", dead.problem)
        return dead.keys

    async def _left_by_erasures(self) -> Sequence[str]:
        """Return documents of orders that are gone. A damaged `CUT` holds up nothing else."""
        try:
            return await unnamed_orders(self._context)
        except CorruptionError as e:
            self._failed(CUT_NAME, e)
            log.error("documents of erasures cannot be swept: %s", e)
            return ()

    async def _sweep_dead(
        self,
        keys: Iterable[str],
        seen: dict[str, _Sighting],
        now_ms: int,
        failures: FailureRun,
        versions: VersionsOf | None = None,
    ) -> int:
        """Delete those of the dead `keys` that a sweep a grace ago has found, too; return how many.
        `versions` as in `_delete`."""
        overdue = []
        for key in keys:
            before = self._sightings.get(key)
            if before is not None and now_ms - before.first_ms >= self._grace_ms:
                overdue.append(key)
            elif len(seen) < MAX_REMEMBERED:
                seen[key] = before or _Sighting(now_ms, None, NEVER_NAMED)
        deleted = 0
        for start in range(0, len(overdue), DELETE_BATCH):
            deleted += await self._delete(overdue[start : start + DELETE_BATCH], failures, versions)
        return deleted

    def _is_overdue(self, orphan: UnnamedKey, before: _Sighting, now_ms: int) -> bool:
        return now_ms - before.first_ms >= self._grace_ms and _is_final(orphan, before)

    async def _report(self, unknown: frozenset[UUID]) -> None:
        """Log unknown topics once, and again when others appear."""
        if not unknown <= self._unknown:
            await self._fence.check_before_sweep()  # some may be created since the listing
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

    async def _orphans(
        self, chunk: list[ListedKey], unknown: set[UUID], failures: FailureRun
    ) -> list[UnnamedKey]:
        orphans: list[UnnamedKey] = []
        piece = Slice()
        for (topic_id, partition), listed in groupby(chunk, lambda one: one.parsed[:2]):
            group = [one for one in listed if not self._eraser.is_guarded(one.key)]
            if piece.is_over():
                await piece.next_turn()
            live_topics = self._live_topics()
            if live_topics is not None and topic_id not in live_topics:
                if topic_id not in self._catalog.tombstones():
                    unknown.add(topic_id)  # invariant T13: what is not known is not deleted
                continue
            leadership = self._leadership_of(topic_id, partition)
            if leadership is None:
                continue
            entry = self._catalog.entry(topic_id, partition)
            state = ChainState(entry or _NO_CHAIN, self._catalog.rewrite(topic_id, partition))
            tip = TopicIdPartition(topic_id, "", partition)
            error: FirnError | None = None
            try:
                judged = await self._pool.run(self._find_unnamed, tip, entry, state, leadership, group)
                orphans += judged.orphans
                error = judged.problem
                if judged.verdict is HeadVerdict.OURS_NEWER and entry is not None and not leadership.is_ours:
                    await self._write_late_head(tip, entry)
            except (Displaced, NotNamed):
                raise
            except (CorruptionError, StorageError) as e:
                error = e
            if error is not None:
                # The names of this chain are not known; the other partitions go on.
                self._failed(tip, error)
                log.error("%s/%d cannot be swept (firn fsck, firn repair): %s", topic_id, partition, error)
            failures.note(error)
        return orphans

    async def _write_late_head(self, tip: TopicIdPartition, entry: CatalogEntry) -> None:
        """Have HEAD name the committed manifest where it still names an older one: the leader that should is
        gone."""
        seen = await self._pool.run(self._chains.read_head, tip)
        if seen.damage is not None or check_head(entry, seen.head) is not HeadVerdict.OURS_NEWER:
            return
        # Checked after HEAD was read: an heir's HEAD may be as ours was (invariant T21).
        await self._fence.check_keeper()
        if await self._pool.run(self._publish, tip, entry, seen):
            self._metrics.heads_repaired += 1

    def _publish(self, tip: TopicIdPartition, entry: CatalogEntry, seen: SeenHead) -> bool:
        """Replace `seen` by a HEAD that names `entry`; return whether it was written. Runs on an offload
        thread."""
        self._chains.forget(entry.manifest_key)
        try:
            self._chains.write_head(seen, self._chains.load(tip, entry.manifest_key).head)
        except HeadMoved:
            return False
        return True

    def _find_unnamed(
        self,
        tip: TopicIdPartition,
        entry: CatalogEntry | None,
        state: ChainState,
        leadership: PartitionLeadership,
        listed: list[ListedKey],
    ) -> _GroupResult:
        """Return how HEAD relates to our entry, and the keys that the committed chain does not name.

        Keys within an unreadable page count as named. Runs on an offload thread.
        """
        seen = self._chains.read_head(tip)
        verdict = check_head(entry, seen.head) if seen.damage is None else HeadVerdict.UNREADABLE
        if verdict is not HeadVerdict.EQUAL:
            return _GroupResult(verdict, [])  # our chain must not judge; the partition's archiver reports it
        manifest = self._chains.load(tip, entry.manifest_key).manifest if entry is not None else None
        unnamed: list[UnnamedKey] = []
        problem: FirnError | None = None
        unread: dict[str, FirnError] = {}

        def child_at(offset: int, level: int) -> Child | None:
            return self._child_at(tip, manifest, offset, level, unread)

        for key, parsed in listed:
            try:
                orphan = _orphan(key, parsed, leadership, state, child_at)
            except (CorruptionError, StorageError) as e:
                problem = e
                continue
            if orphan is not None:
                unnamed.append(orphan)
        return _GroupResult(verdict, unnamed, problem)

    def _child_at(
        self,
        tip: TopicIdPartition,
        manifest: Manifest | None,
        offset: int,
        level: int,
        unread: dict[str, FirnError],
    ) -> Child | None:
        """Return what the chain has at `offset`: its page of `level`, or a child that is not in such a page
        yet.

        Children wholly below the start offset are not named, even if an immutable page still lists them. An
        error of reading a page is raised and remembered in `unread`, so that the page is not read again for
        each key.
        """
        children: tuple[Child, ...] = manifest.children if manifest is not None else ()
        while True:
            child = next((one for one in children if one.base_offset <= offset <= one.last_offset), None)
            if child is None or manifest is None or child.last_offset < manifest.start_offset:
                return None  # pages below the start may be gone already: they are not read
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
"""Returns what the chain has at an offset and level: `Sweeper._child_at`."""


def _orphan(
    key: str,
    parsed: PartitionKey,
    leadership: PartitionLeadership,
    state: ChainState,
    child_at: ChildAt,
) -> UnnamedKey | None:
    """Return `key` as an `UnnamedKey` if the committed chain does not name it, None if it does, or a rewrite
    that lives may.

    Raises what reading the chain raises.
    """
    chain = state.entry
    epoch, is_superseded, may_be_rewritten = leadership.leader_epoch, False, False
    if isinstance(parsed, HeadKey):
        named = chain is not _NO_CHAIN or not leadership.is_ours
    elif isinstance(parsed, PageKey):
        child = child_at(parsed.base_offset, parsed.level)
        named = child is not None and child.key == key
        is_superseded = parsed.last_offset < chain.start_offset
    else:
        named = parsed.leader_epoch > epoch
        if isinstance(parsed, SegmentKey) and not named:
            child = child_at(parsed.base_offset, _SEGMENTS)
            named = (child is not None and child.key == key) or state.is_rewritten(parsed)
            may_be_rewritten = parsed.base_offset < chain.end_offset and parsed.leader_epoch == epoch
        named = named or key == chain.manifest_key
        is_superseded = _is_superseded(parsed, epoch, chain)
    if named:
        return None
    if leadership.is_ours or is_superseded:
        return UnnamedKey(key, None, may_be_rewritten and not leadership.is_ours)
    return UnnamedKey(key, Mark(epoch, chain.version))


def _is_superseded(parsed: SegmentKey | ManifestKey, leader_epoch: int, chain: CatalogEntry) -> bool:
    """Return whether the catalog refuses every further commit that could name the key, which `chain` does not
    name, as no rewrite covers it."""
    if isinstance(parsed, SegmentKey):
        return parsed.leader_epoch < leader_epoch or parsed.base_offset < chain.end_offset
    return parsed.leader_epoch < leader_epoch or parsed.version <= chain.version


def _remembered(orphan: UnnamedKey, before: _Sighting | None, now_ms: int, dropped: MetadataEnd) -> _Sighting:
    if before is None:
        return _Sighting(now_ms, None, dropped if orphan.mark is None else None)
    if before.dropped is None and _is_final(orphan, before):
        return before._replace(dropped=dropped)
    return before._replace(mark=before.mark or orphan.mark)


def _is_final(orphan: UnnamedKey, before: _Sighting) -> bool:
    """Return whether no later commit can name the orphan."""
    return orphan.mark is None or (before.mark is not None and orphan.mark != before.mark)


def _next_chunk(listing: Iterator[ObjectInfo]) -> list[ListedKey]:
    """Return the keys of the layout among the next ones; none only at the end of the listing. Runs on an
    offload thread."""
    while infos := list(islice(listing, DELETE_BATCH)):
        if chunk := [one for info in infos if (one := _listed(info.key)) is not None]:
            return chunk
    return []


def _probes(store: ObjectStore) -> list[str]:
    """Return keys of probe objects, at most one deletion batch. Runs on an offload thread."""
    return [info.key for info in islice(store.list(PROBE_PREFIX), DELETE_BATCH)]


def _listed(key: str) -> ListedKey | None:
    """Return the key with its parsed form; None for a key that is not a partition's, and so never an
    orphan."""
    parsed = parse_key(key)
    return ListedKey(key, parsed) if isinstance(parsed, PartitionKey) else None
