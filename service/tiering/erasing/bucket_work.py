"""Leaders' part of orders in the bucket: the chains of the partitions that this node leads lose the keys.

A partition's turn comes once all its replicas have told that their logs are clean, and the archiving task
that ran then has ended: what is archived from then on has none of the keys. All objects of the chain below
the order's end are looked at (`hits.py`); runs of neighbours with a hit are written anew, one run at a time
on a node. Where a pass finds nothing more, the catalog is told `IN_BUCKET`. Nothing of this is kept: a
restart, or another leader, looks at the chain again, and finds what is clean already by its filters.

Owned by the event loop; whatever blocks runs on the offload pool.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple
from uuid import UUID

from service.base.errors import CorruptionError, RequestError, StorageError
from service.base.slices import Slice
from service.remote.catalog import (
    IN_BUCKET,
    CatalogEntry,
    ErasedPlace,
    Erasure,
    RewriteKind,
)
from service.remote.format.cut_codec import Place
from service.remote.format.manifest import Manifest, SegmentEntry
from service.remote.opened_order import OpenOrder, OrderDocuments
from service.remote.order_end import OrderEnd
from service.remote.stores.errors import UNREADABLE, raise_of_the_store
from service.remote.stores.store import ObjectStore
from service.tiering.archive_attempt import TieringContext
from service.tiering.copier import CallProgress
from service.tiering.erasing.archive_progress import ArchiveWork, OrderWork
from service.tiering.erasing.cluster_view import ErasureCluster
from service.tiering.erasing.erasure_rule import ErasureRule
from service.tiering.erasing.hits import look_at_object
from service.tiering.erasing.ports import ErasureCatalog, LedPartitions, RunWriter
from service.tiering.erasing.stretches import fits
from service.tiering.ports import TieredPartition
from service.tiering.prefix_fence import Displaced
from service.tiering.rewriting.chain_units import Unit, units_from
from service.tiering.rewriting.rewriter import RewriteOutcome
from service.tiering.tasks import is_worth_a_line

log = logging.getLogger(__name__)

_LOOK_MS: Final = 30_000
"""Orders are looked at this often without any news."""
_LOOKED_AT_ONCE: Final = 64
"""Objects that one call on a thread looks at."""
_MOST_CLEAN: Final = 200_000
"""Most objects that are known to be clean and not looked at again."""
_CANCELLED: Final = "the order was cancelled"


class _Found(NamedTuple):
    """Result of looking at a part of a chain: keys of clean objects, the first run of objects with a hit,
    the offset from which to look on, None at the end, the objects up to there with their bytes, and why some
    of them could not be read."""

    clean: tuple[str, ...]
    run: tuple[SegmentEntry, ...]
    next_offset: int | None
    bytes_read: int
    objects: int
    size: int
    unread: tuple[str, ...]


class _Pass:
    """Outcome of one pass over a chain. ``problems``: what it could not read or write anew; ``must_end``:
    there is no use in going on now."""

    def __init__(self) -> None:
        self.is_changed = False
        self.must_end = False
        self.problems: list[str] = []

    def end(self, why: str) -> None:
        """Note that there is no use in going on."""
        self.problems.append(why)
        self.must_end = True

    @property
    def words(self) -> str:
        more = f" (and {len(self.problems) - 1} more)" if len(self.problems) > 1 else ""
        return f"{self.problems[0]}{more}"


class BucketWork:
    """Work of this node in the bucket for open orders."""

    def __init__(
        self,
        context: TieringContext,
        catalog: ErasureCatalog,
        cluster: ErasureCluster,
        documents: OrderDocuments,
        partitions: LedPartitions,
        writer: RunWriter,
        run_bytes: Callable[[], int],
    ) -> None:
        """`run_bytes`: neighbours are written anew together up to that size."""
        self._context = context
        self._catalog = catalog
        self._cluster = cluster
        self._partitions = partitions
        self._writer = writer
        self._run_bytes = run_bytes
        self._documents = documents
        self._clean: dict[tuple[UUID, str], None] = {}
        """objects without a hit, the oldest first; changed on the loop alone, read on threads too"""
        self._failures: dict[tuple[UUID, Place], int] = {}
        self._woken = asyncio.Event()
        self.problems: dict[tuple[UUID, Place], str] = {}
        """why partitions that this node leads are not clean yet, by order"""
        self.work: dict[UUID, OrderWork] = context.metrics.archive_work
        """how far the open orders are in the partitions that this node leads"""

    def wake(self) -> None:
        """Look at the orders now: the metadata has changed."""
        self._woken.set()

    async def run(self) -> None:
        """Carry out orders until cancelled."""
        while True:
            self._woken.clear()
            wait_ms = await self.round()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_ms / 1000):
                    await self._woken.wait()

    async def round(self) -> int:
        """Do what can be done now; return how long to wait for the next try without any news, in ms."""
        open_orders = [one for one in self._catalog.erasures().values() if one.is_open]
        ids = {one.id for one in open_orders}
        for known in [one for one in self.problems if one[0] not in ids]:
            self.problems.pop(known)
        for known in [one for one in self._failures if one[0] not in ids]:
            self._failures.pop(known)
        for gone in [one for one in self.work if one not in ids]:
            del self.work[gone]
        self._documents.keep(self._catalog.erasures())
        wait_ms = _LOOK_MS
        if not self._context.fence.may_write or self._context.metrics.store is not None:
            return self._context.backoff_ms(1) if open_orders else wait_ms
        for erasure in open_orders:
            for partition in await self._to_do(erasure):
                wait_ms = min(wait_ms, await self._try(erasure, partition))
        return wait_ms

    async def _to_do(self, erasure: Erasure) -> list[TieredPartition]:
        """Return the partitions that this node leads and whose turn has come; note how far all of them
        are."""
        told, topics = self._catalog.erased(erasure.id), frozenset(erasure.topics)
        work, led, found = self.work.setdefault(erasure.id, OrderWork()), set[Place](), []
        piece = Slice()
        for partition in tuple(self._partitions.led()):
            if piece.is_over():
                await piece.next_turn()
            topic_id, number = place = partition.tip.topic_id, partition.tip.partition
            if topic_id not in topics:
                continue
            by, replicas = told.get(place, frozenset()), self._cluster.replicas(topic_id)
            led.add(place)
            self._note_chain(work, place, is_over=IN_BUCKET in by)
            if IN_BUCKET not in by and number < len(replicas) and by.issuperset(replicas[number]):
                found.append(partition)
        work.keep(led)
        return found

    def _note_chain(self, work: OrderWork, place: Place, *, is_over: bool) -> None:
        """Note how many objects an archive has now."""
        entry = self._catalog.entry(*place)
        objects, size = (0, 0) if entry is None else (entry.segments, entry.size_bytes)
        work.note(place, work.of(place).of_chain(objects, size, is_over=is_over))

    async def _try(self, erasure: Erasure, partition: TieredPartition) -> int:
        """Carry an order out in one chain; return how long to wait before it is tried again, in ms."""
        place = partition.tip.topic_id, partition.tip.partition
        known = erasure.id, place
        try:
            why = await self._carry_out(erasure, partition)
        except (Displaced, StorageError, CorruptionError, RequestError) as e:
            why = str(e) or type(e).__name__
        if why is None:
            self.problems.pop(known, None)
            self._failures.pop(known, None)
            return _LOOK_MS
        self.problems[known] = why
        count = self._failures[known] = self._failures.get(known, 0) + 1
        if is_worth_a_line(count):
            log.log(
                logging.INFO if count == 1 else logging.WARNING,
                "%s: order %s is not carried out in the bucket, %d times in a row, will retry: %s",
                partition.tip, erasure.id, count, why,
            )  # fmt: skip
        return self._context.backoff_ms(count)

    async def _carry_out(self, erasure: Erasure, partition: TieredPartition) -> str | None:
        """Return None once the chain is clean and the catalog knows, or nobody wants that any more; else why
        it is not."""
        if not self._is_open(erasure.id):
            return None
        place = partition.tip.topic_id, partition.tip.partition
        epoch = partition.leader_epoch
        if self._writer.running(*place) is not None or not await self._partitions.quiet(*place):
            return "a change of the partition's archive is not settled"
        if (intent := self._catalog.rewrite(*place)) is not None:
            does = "erases" if intent.kind is RewriteKind.ERASE else "merges"
            return f"a worker elsewhere {does} objects from {intent.base_offset} to {intent.last_offset}"
        order = await self._documents.open(erasure)
        end = order.end(*place)
        while True:
            if partition.leader_epoch != epoch:
                return RewriteOutcome.FENCED.value
            entry = self._catalog.entry(*place)
            if entry is None or not entry.segments:
                break
            done = await self._pass(order, partition, entry, end)
            if done.must_end or (not done.is_changed and done.problems):
                return done.words
            if not done.is_changed:
                break
        await self._context.fence.check(self._context.settings.fence_age_ms)
        if partition.leader_epoch != epoch:
            return RewriteOutcome.FENCED.value
        await self._catalog.note_erased(erasure.id, [ErasedPlace(*place, epoch)], IN_BUCKET)
        if (work := self.work.get(erasure.id)) is not None:
            self._note_chain(work, place, is_over=True)
        return None

    def _is_open(self, order_id: UUID) -> bool:
        """Return whether the order is to be carried out: it may be cancelled while that goes on."""
        erasure = self._catalog.erasures().get(order_id)
        return erasure is not None and erasure.is_open

    async def _pass(
        self, order: OpenOrder, partition: TieredPartition, entry: CatalogEntry, end: OrderEnd
    ) -> _Pass:
        """Look at a whole chain, and write anew what has a hit. What cannot be read or written anew holds up
        nothing behind it."""
        offset: int | None = entry.start_offset
        done, looked, size = _Pass(), 0, 0
        while offset is not None:
            now = self._catalog.entry(partition.tip.topic_id, partition.tip.partition)
            if now is None or not now.segments:
                return done
            if not self._is_open(order.order.id):
                done.end(_CANCELLED)
                return done
            await self._wait_for_quota()
            found = await self._context.pool.watch(partial(self._look, order, partition, now, offset, end))
            self._note_clean(order.order.id, found.clean)
            context = self._context
            context.copy_rate.spend(found.bytes_read, context.clock.monotonic_ms())
            offset = found.next_offset
            looked, size = looked + found.objects, size + found.size
            self._note_looked(order, partition, looked, size)
            done.problems += found.unread
            if found.run:
                await self._rewrite(order, partition, found.run, end, done)
            if done.must_end:
                return done
        return done

    async def _rewrite(
        self,
        order: OpenOrder,
        partition: TieredPartition,
        run: Sequence[SegmentEntry],
        end: OrderEnd,
        done: _Pass,
    ) -> None:
        """Write a run anew; where it cannot be, each of its objects by itself: one may be damaged."""
        if not self._is_open(order.order.id):
            done.end(_CANCELLED)
            return
        first, last = run[0].base_offset, run[-1].last_offset
        tip, rule = partition.tip, ErasureRule(order.keys, end)
        try:
            outcome = await self._writer.rewrite(tip.topic_id, tip.partition, first, last, rule)
            why = outcome.value
        except UNREADABLE as e:
            raise_of_the_store(e)
            outcome, why = RewriteOutcome.REFUSED, str(e)
        if outcome is RewriteOutcome.DONE:
            done.is_changed = True
            self._note_rewritten(order, partition, run)
        elif outcome is RewriteOutcome.REFUSED and len(run) > 1:
            for one in run:
                if not done.must_end:
                    await self._rewrite(order, partition, [one], end, done)
        else:
            done.problems.append(f"objects from {first} to {last} are not written anew: {why}")
            done.must_end = outcome is not RewriteOutcome.REFUSED

    def _note_looked(self, order: OpenOrder, partition: TieredPartition, looked: int, size: int) -> None:
        """Note how far a pass is; the last one, which finds nothing more, begins at the start again."""
        if (work := self.work.get(order.order.id)) is not None:
            known = work.of(place := (partition.tip.topic_id, partition.tip.partition))
            known = known._replace(looked=max(known.looked, looked), looked_size=max(known.looked_size, size))
            work.note(place, known)

    def _note_rewritten(
        self, order: OpenOrder, partition: TieredPartition, run: Sequence[SegmentEntry]
    ) -> None:
        if (work := self.work.get(order.order.id)) is not None:
            known = work.of(place := (partition.tip.topic_id, partition.tip.partition))
            done = ArchiveWork(rewritten=len(run), rewritten_size=sum(one.size for one in run))
            work.note(place, known.plus(done))

    def _note_clean(self, order_id: UUID, keys: Iterable[str]) -> None:
        self._clean.update(dict.fromkeys((order_id, key) for key in keys))
        while len(self._clean) > _MOST_CLEAN:
            self._clean.pop(next(iter(self._clean)))

    async def _wait_for_quota(self) -> None:
        """Wait until the quota of copies has room: objects that are read here count as copied."""
        context = self._context
        while wait_ms := context.copy_rate.wait_ms(context.clock.monotonic_ms()):
            await asyncio.sleep(wait_ms / 1000)

    def _look(
        self,
        order: OpenOrder,
        partition: TieredPartition,
        entry: CatalogEntry,
        offset: int,
        end: OrderEnd,
        progress: CallProgress,
    ) -> _Found:
        """Look at some objects of a chain from `offset` on. Runs on an offload thread."""
        chains = self._context.chains
        manifest = chains.load(partition.tip, entry.manifest_key).manifest
        part = _Part(self._context.store, order, end, self._clean, self._run_bytes(), progress)
        for unit in units_from(manifest, chains.loader(partition.tip), offset):
            for one in live_of(unit, manifest, offset):
                if not part.takes(one):
                    return part.found(one.base_offset if end.reaches(one) else None)
            if part.run:
                return part.found(part.run[-1].last_offset + 1)
        return part.found(None)


def live_of(unit: Unit, manifest: Manifest, offset: int) -> Iterator[SegmentEntry]:
    """Yield the live entries of a unit from the one that holds `offset` on."""
    first = max(offset, manifest.start_offset)
    return (one for one in unit.entries if one.last_offset >= first)


class _Part:
    """Part of a chain that one call looks at: it ends with the first run of objects with a hit."""

    def __init__(
        self,
        store: ObjectStore,
        order: OpenOrder,
        end: OrderEnd,
        clean: Container[tuple[UUID, str]],
        run_bytes: int,
        progress: CallProgress,
    ) -> None:
        self.run: list[SegmentEntry] = []
        self._store = store
        self._order = order
        self._end = end
        self._known = clean
        self._run_bytes = run_bytes
        self._progress = progress
        self._clean: list[str] = []
        self._looked = 0
        self._bytes_read = 0
        self._objects = 0
        self._size = 0
        self._unread: list[str] = []

    def takes(self, one: SegmentEntry) -> bool:
        """Look at the next object; return False where the part ends before it."""
        if not self._end.reaches(one) or (self.run and not fits(self.run, one, self._run_bytes)):
            return False
        order_id = self._order.order.id
        if (order_id, one.key) in self._known:
            return self._passes(one)
        if self._looked >= _LOOKED_AT_ONCE:
            return False
        self._looked += 1
        try:
            look = look_at_object(self._store, one, self._order, self._end, self._progress)
        except UNREADABLE as e:
            raise_of_the_store(e)
            if self.run:
                return False  # the next part begins with it
            self._unread.append(str(e))
            self._count(one)
            return True
        self._bytes_read += look.bytes_read
        if look.hits:
            self.run.append(one)
            self._count(one)
            return True
        self._clean.append(one.key)
        return self._passes(one)

    def _passes(self, one: SegmentEntry) -> bool:
        """Return whether a clean object belongs to this part: it does not behind a run."""
        if not self.run:
            self._count(one)
        return not self.run

    def _count(self, one: SegmentEntry) -> None:
        self._objects += 1
        self._size += one.size

    def found(self, next_offset: int | None) -> _Found:
        return _Found(
            tuple(self._clean),
            tuple(self.run),
            next_offset,
            self._bytes_read,
            self._objects,
            self._size,
            tuple(self._unread),
        )
