"""Keeper's part in cuts: when they are taken, what they name, and which of them are complete.

The broker that keeps the prefix makes one attempt at a cut each interval (`asking.py`, `round.py`), proves
the tails that brokers name, adds that of the metadata, and writes the cut's document and `CUT`. What it knows
of the newest cut it reads again when it becomes keeper. A store that does not answer makes cuts void, and
stops nothing else. Owned by the event loop; calls that block run on the offload pool.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple
from uuid import UUID

from service.base.errors import CorruptionError, RequestError, StorageError
from service.base.slices import Slice
from service.base.steps import Steps, at_once
from service.base.types import TopicIdPartition
from service.remote.format.cut_codec import (
    METADATA_PLACE,
    METADATA_TOPIC_ID,
    NO_LEADER,
    Cut,
    CutRef,
    Cuts,
    MetadataEnd,
    Place,
)
from service.remote.format.keys import CutKey, parse_key
from service.remote.format.manifest_codec import ClusterFile
from service.remote.stores.errors import UNREADABLE, StoreRefused, raise_of_the_store
from service.tiering.archive_attempt import TieringContext
from service.tiering.cuts.asking import CutAsker
from service.tiering.cuts.completeness import Lack, Rows, differs, gone, lacks_of, losses_of, without_lost
from service.tiering.cuts.cut_objects import StoredCuts, read_stored, replace_stored, write_cut
from service.tiering.cuts.hold_time import HoldTime
from service.tiering.cuts.keeping import kept_of
from service.tiering.cuts.kept_documents import KeptDocuments
from service.tiering.cuts.needed_chains import NEVER_NAMED
from service.tiering.cuts.pending import PendingCuts
from service.tiering.cuts.ports import CutCluster
from service.tiering.cuts.round import AttemptPhase, CutAttempt, CutStep
from service.tiering.cuts.saved_metadata import CutMetadata, SavedMetadata
from service.tiering.cuts.tail_reading import add_proved, read_listed, read_tails
from service.tiering.cuts.tail_table import TailTable
from service.tiering.erasing.order_keeper import OrderKeeper
from service.tiering.prefix_fence import Displaced, NotNamed
from service.tiering.tasks import Task
from service.wire.cuts import CutLosses, TakeCutRequest

log = logging.getLogger(__name__)

_VOID_IN_A_ROW: Final = 3
"""After so many cuts of which no moment came the next one does without gates."""
_TRIES: Final = 8
"""Attempts at one cut, `_AGAIN_MS` apart: a broker that is busy does not answer within the hold."""
_AGAIN_MS: Final = 300
_LOOK_MS: Final = 10_000
"""Settings are looked at this often."""


class VoidCut(StorageError):
    """An attempt at a cut came to nothing: what is lacking, and that the next one will do better."""


class CutKeeper:
    """Cuts of one prefix, as one process takes them while it is the keeper."""

    def __init__(
        self,
        context: TieringContext,
        cluster: CutCluster,
        metadata: SavedMetadata,
        documents: KeptDocuments,
        note_displaced: Callable[[Displaced], None],
        orders: OrderKeeper,
    ) -> None:
        self._context = context
        self._cluster = cluster
        self._metadata = metadata
        self._documents = documents
        self._note_displaced = note_displaced
        self._orders = orders
        orders.wake = self.wake
        self._stored: StoredCuts | None = None
        """`CUT` as this process read or wrote it as keeper; None: it has to be read"""
        self._rows: Rows = {}
        """of the newest cut"""
        self._lost: tuple[CutLosses, ...] = ()
        """partitions that it says more of than chains and tails have"""
        self._knows_losses = True
        """no tail of it was refused, so what its tails lack is gone or damaged"""
        self._table = TailTable()
        self._pending = PendingCuts(context.catalog.entry)
        self._voids = 0
        self._offline: dict[Place, int] = {}
        """partitions whose leaders cannot read their logs, as of the last answers"""
        self._torn = self._tries = 0
        """cuts in a row of which no moment came, and tries at the one that is due"""
        self._hold = HoldTime()
        self._due_ms = context.clock.monotonic_ms()
        self._woken = asyncio.Event()

    # -- schedule

    def wake(self) -> None:
        """Act now: this process has become the keeper, or is it no more."""
        self._woken.set()

    async def run(self) -> None:
        """Take cuts when they are due, until cancelled."""
        clock = self._context.clock
        while True:
            settings, now_ms = self._cluster.settings(), clock.monotonic_ms()
            wait_ms, is_keeper = _LOOK_MS, self.may_cut
            metrics = self._context.metrics.cut_keeper
            metrics.interval_ms = max(settings.interval_ms, 0)
            metrics.since_ms = metrics.since_ms or self._context.clock.now_ms()
            if not is_keeper:
                self._forget()
                self._due_ms = now_ms
            elif settings.interval_ms < 0:
                await self.claim()
                await self.keep_orders()
            elif now_ms >= self._due_ms:
                self._due_ms = now_ms + settings.interval_ms
                await self.round()
                if self._tries:
                    self._due_ms = min(self._due_ms, clock.monotonic_ms() + _AGAIN_MS)
                continue
            else:
                if self._orders.is_pressed:
                    await self.keep_orders()
                self._due_ms = min(self._due_ms, now_ms + settings.interval_ms)
                wait_ms = min(self._due_ms - now_ms, _LOOK_MS)
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_ms / 1000):
                    await self._woken.wait()
            self._woken.clear()

    @property
    def may_cut(self) -> bool:
        """Return whether this process keeps the prefix of a cluster that knows cuts. Several brokers cannot
        share `CUT` in a store without conditional writes."""
        fence, cluster = self._context.fence, self._cluster
        is_safe = fence.is_conditional or len(cluster.brokers()) < 2
        return fence.is_ours and is_safe and cluster.is_enabled()

    async def claim(self) -> None:
        """Read and claim the cuts that there are, although no more are taken: their checkpoints are kept, and
        `CUT` says that chains need not be."""
        if self._stored is not None and not self._holds_otherwise(self._stored):
            return
        self._stored = None
        try:
            await self._adopt()
        except (StorageError, CorruptionError, RequestError) as e:
            log.warning("the cuts in the bucket cannot be read: %s", e)

    async def keep_orders(self) -> None:
        """Have `CUT` list the orders to erase keys, and go on with them, without a cut."""
        if not self._orders.has_orders:
            return
        try:
            stored = self._stored or await self._adopt()
            await self._orders.look(stored.cuts)
            if self._orders.differs(stored.cuts):
                self._stored = None  # until it is known what was written
                stored = await self._write(stored, None)
            self._stored = stored
            await self._orders.written(stored.cuts)
        except Displaced as e:
            self._forget()
            self._note_displaced(e)
        except (StorageError, CorruptionError, RequestError, ValueError) as e:
            self._void(e)

    def _forget(self) -> None:
        """Forget what was known as keeper: another one may write cuts now."""
        self._orders.forget()
        self._stored, self._rows, self._table, self._lost = None, {}, TailTable(), ()
        self._pending.clear()
        self._documents.clear()
        self._metadata.forget()
        self._voids = self._torn = self._tries = 0
        self._offline = {}
        self._hold.forget()
        self._context.metrics.cut_keeper.clear()
        self._context.metrics.forget(Task.CUT)

    async def round(self) -> None:
        """Make one attempt at a cut, and move on which cuts are complete. Failures are logged and counted."""
        metrics = self._context.metrics
        try:
            if metrics.store is not None:
                raise VoidCut(metrics.store)
            await self._round()
        except Displaced as e:
            self._forget()
            self._note_displaced(e)
        except (StorageError, CorruptionError, RequestError, ValueError) as e:
            self._void(e)
        else:
            self._voids = 0
            metrics.failing.pop((Task.CUT, None), None)

    def _void(self, error: Exception) -> None:
        metrics = self._context.metrics
        self._voids += 1
        metrics.cut_keeper.void += 1
        why = str(error) or type(error).__name__
        if not isinstance(error, NotNamed):
            metrics.task_errors[Task.CUT] += 1
            metrics.failing[Task.CUT, None] = why
        if self._voids & (self._voids - 1) == 0:
            # One is no fault: leaders and brokers change, and the next cut follows in seconds.
            level = logging.INFO if self._voids < _VOID_IN_A_ROW * _TRIES else logging.WARNING
            log.log(level, "a cut is void, %d in a row, the next follows: %s", self._voids, why)

    # -- one round

    async def _round(self) -> None:
        stored = self._stored or await self._adopt()
        await self._orders.look(stored.cuts)
        outcome = await self._attempt(stored)
        is_moved = await self._pending.move(self._context)
        is_due = self._is_to_be_thinned(stored) or self._holds_otherwise(stored)
        is_due = is_due or self._orders.differs(stored.cuts)
        if outcome.made is not None or is_moved or is_due:
            self._stored = None  # until it is known what was written
            stored = await self._write(stored, outcome.made)
        self._stored = stored
        self._report(stored, outcome)
        await self._orders.written(stored.cuts)

    async def _adopt(self) -> StoredCuts:
        """Read the newest cut, its tails and what kept cuts name, and write `CUT` again where there is one.

        So what an earlier keeper sends from now on is refused, and no cut can name what is deleted from now
        on.
        """
        context, documents = self._context, self._documents
        await context.fence.check_keeper()
        cluster = await context.fence.read()
        documents.clear()
        documents.begin((cluster.cluster_id, *(one.cluster_id for one in cluster.ancestors)))
        stored = await context.pool.run(read_stored, context.store, documents.owners)
        self._rows, self._table, self._lost, metadata = {}, TailTable(), (), None
        self._pending.clear()
        if (cuts := stored.cuts) is not None:
            newest = await self._newest_readable(cuts, cluster)
            if newest is not None:
                self._rows = newest.topics
                if newest.cluster_id == context.cluster_id:
                    metadata = CutMetadata(newest.metadata, newest.metadata_end, newest.metadata_epoch)
                else:
                    at_once(self._table.forget([METADATA_PLACE]))  # an ancestor's, whose log is another
                if newest.cut == cuts.newest.cut:  # else the table has what came behind its ends
                    lacks = await self._lacks(newest.topics)
                    self._pending.add(cuts.newest, lacks)
                    self._lost = self._losses(newest.topics, lacks)
            own = cuts._replace(
                cluster_id=context.cluster_id,
                stamp=context.stamps(),
                holds_chains=self._cluster.needs_chains,
            )
            # After `CUT` was read: an heir's, which has ours as its ancestor, is not to be taken for ours.
            await context.fence.check_keeper()
            stored = _won(await context.pool.run(replace_stored, context.store, stored, own))
            await documents.kept(own)
        await self._metadata.begin(metadata)
        self._stored = stored
        return stored

    async def _newest_readable(self, cuts: Cuts, cluster: ClusterFile) -> Cut | None:
        """Return the newest cut whose document can be read, its tails in the table; None where none can be.

        Of later cuts, whose documents are lost, the tails are those that were written since.
        """
        context, documents = self._context, self._documents
        for ref in reversed(cuts.kept):
            try:
                cut = await documents.open(ref)
            except UNREADABLE as e:
                raise_of_the_store(e)
                log.error("the cut before stands for cut %d, which cannot be read: %s", ref.cut, e)
                continue
            lost = await read_tails(context, self._table, cut, documents.owners)
            if cut.cut != cuts.newest.cut:
                numbers = range(cut.cut, cuts.newest.cut + 1)
                lost.update(await read_listed(context, self._table, numbers, cluster))
            # One that the store refuses may be readable later, and what is in it then counts.
            self._knows_losses = not any(isinstance(why, StoreRefused) for why in lost.values())
            for key, why in lost.items():
                log.error(
                    "%s of cut %d cannot be read, so it may lack records: %s", key, cuts.newest.cut, why
                )
            return cut
        return None

    async def _lacks(self, topics: Rows, *, is_new: bool = False) -> list[Lack]:
        return await Slice().go_on(lacks_of(self._table, topics, self._context.catalog.entry, is_new=is_new))

    def _losses(self, topics: Rows, lacks: Sequence[Lack]) -> tuple[CutLosses, ...]:
        return losses_of(topics, lacks) if self._knows_losses else ()

    async def _attempt(self, stored: StoredCuts) -> _Outcome:
        """Make one attempt. Raises `VoidCut`, and what the store raises."""
        context, cluster = self._context, self._cluster
        settings, brokers = cluster.settings(), frozenset(cluster.brokers())
        is_alone = brokers == {cluster.node_id}
        # What was seen of a partition that nobody can read now may have been answered to in another one.
        is_readable = not self._offline and not await Slice().go_on(_has_leaderless(cluster))
        is_exact = is_readable and (is_alone or self._torn < _VOID_IN_A_ROW)
        # One broker alone takes its ends in one turn of its loop, which is a moment without any gate.
        holds = is_exact and not is_alone
        hold_ms = self._hold.now_ms(settings.hold_ms, settings.longest_hold_ms)
        context.metrics.cut_keeper.hold_ms = hold_ms
        newest = None if stored.cuts is None else stored.cuts.newest
        reached = self._reached(newest)
        attempt = CutAttempt(
            brokers,
            is_exact=holds,
            hold_ms=hold_ms,
            metadata_end=reached.offset if reached.life == cluster.life else 0,
        )
        attempt_id, at_ms = context.new_uuid(), context.clock.now_ms()
        request = self._request(stored, attempt_id, hold_ms if holds else 0)
        asker = CutAsker(attempt, cluster, request, context.clock, self._rows)
        try:
            await asker.take()
            self._note_moment(attempt)
            _check(attempt)
            is_new = await self._metadata.prepare(
                self._table,
                attempt.metadata_end,
                is_wanted=context.needed.wants_cut(reached) or self._orders.wants_cut(),
            )
            is_new |= newest is None or (is_exact and not newest.is_exact) or self._orders.wants_cut()
            if not (is_new or self._pending.newest_lacks or await self._differs(attempt)):
                asker.give_up("nothing has changed")
                return _Outcome(at_ms)
            await asker.save()
            _check(attempt)
            if not (is_new or attempt.tails or await self._differs(attempt)):
                return _Outcome(at_ms)
            self._stored = None  # until it is known what was written
            return _Outcome(at_ms, await self._make(stored, attempt_id, attempt, at_ms, is_exact))
        except (StorageError, CorruptionError, ValueError) as e:
            asker.give_up(str(e))
            raise
        finally:
            self._note_offline(attempt)
            await asker.close()

    def _note_offline(self, attempt: CutAttempt) -> None:
        """Note whose logs brokers cannot read: until they can, cuts are loose, as without a leader."""
        before = self._offline
        if attempt.offline or attempt.topics:
            self._offline = attempt.offline
        if new := self._offline.keys() - before.keys():
            name_of = self._cluster.name_of
            names = sorted(f"{name_of(one[0])}-{one[1]} (broker {self._offline[one]})" for one in new)
            log.warning(
                "cuts are loose, and lack the newest records of %d partitions, as long as their leaders "
                "cannot read their logs: %s",
                len(self._offline),
                ", ".join(names[:_NAMED_OFFLINE]),
            )

    def _reached(self, newest: CutRef | None) -> MetadataEnd:
        """Return how far the metadata of the newest cut goes, which that of the next has to reach."""
        return (self._documents.oldest_metadata([newest]) if newest is not None else None) or NEVER_NAMED

    def _note_moment(self, attempt: CutAttempt) -> None:
        """Note whether all gates were closed at one moment. Brokers that are busy miss it, and may be in time
        at the next try, which follows soon, or have more time then."""
        if attempt.phase is not AttemptPhase.VOID:
            self._torn = self._tries = 0
            if attempt.is_exact:
                self._hold.was_in_time()
            return
        if attempt.has_missed:
            self._hold.missed()
        self._tries += 1
        if self._tries >= _TRIES:
            self._torn, self._tries = self._torn + 1, 0

    def _request(
        self, stored: StoredCuts, attempt_id: UUID, hold_ms: int
    ) -> Callable[[CutStep], TakeCutRequest]:
        """Return what makes the request of a step. Without gates nothing is held."""
        newest = parse_key(stored.cuts.newest.key) if stored.cuts is not None else None
        return lambda step: TakeCutRequest(
            broker_id=self._cluster.node_id,
            broker_epoch=self._cluster.broker_epoch,
            attempt_id=attempt_id,
            newest_id=newest.uuid if isinstance(newest, CutKey) else None,
            cut=stored.next_cut,
            step=int(step),
            hold_ms=hold_ms,
            lost=self._lost if step is CutStep.SAVE else (),
        )

    async def _differs(self, attempt: CutAttempt) -> bool:
        return await Slice().go_on(differs(attempt.topics, self._rows, self._context.catalog.entry))

    async def _make(
        self, stored: StoredCuts, attempt_id: UUID, attempt: CutAttempt, at_ms: int, is_exact: bool
    ) -> CutRef:
        """Prove the tails, save the metadata, and write the cut's document."""
        context, table, topics = self._context, self._table, attempt.topics
        number, follows = stored.next_cut, 0 if stored.cuts is None else stored.cuts.newest.cut
        await context.fence.check_keeper()
        await add_proved(context, table, attempt.tails, self._documents.owners, number)
        saved = await self._metadata.save(table, number)
        piece = Slice()
        await piece.go_on(table.forget(await piece.go_on(gone(table, topics, METADATA_TOPIC_ID))))
        lacks = await self._lacks(topics, is_new=True)
        lost = self._losses(topics, lacks)
        topics = await piece.go_on(without_lost(topics, lacks))
        has_all = not any(row.leader_epoch == NO_LEADER for rows in topics.values() for row in rows)
        cut = Cut(
            context.cluster_id,
            number,
            at_ms,
            is_exact and has_all,
            saved.checkpoint,
            saved.end,
            saved.epoch,
            table.live(),
            topics,
            context.stamps(),
            follows,
        )
        ref = await context.pool.run(write_cut, context.store, cut, attempt_id)
        self._documents.add(ref, cut)
        self._pending.add(ref, lacks)
        self._rows, self._lost = topics, lost
        return ref

    async def _write(self, stored: StoredCuts, made: CutRef | None) -> StoredCuts:
        """Write `CUT` with the cut that was made, and with those complete that are. Raises `VoidCut` where
        another process has written it."""
        context, before = self._context, stored.cuts
        refs = [*(() if before is None else before.kept), *(() if made is None else (made,))]
        judged = self._orders.kept(tuple(map(self._pending.judged, refs)))
        kept = kept_of(judged, context.clock.now_ms(), context.settings.grace_ms)
        erasures = self._orders.listed()
        await context.fence.check_keeper()
        oldest = self._documents.oldest_metadata(kept)
        holds_chains = self._cluster.needs_chains
        cuts = Cuts(context.cluster_id, kept, erasures, context.stamps(), oldest, holds_chains)
        written = _won(await context.pool.run(replace_stored, context.store, stored, cuts))
        self._documents.written(cuts)
        self._pending.keep(kept)
        context.needed.note_settled(oldest)
        if made is not None:
            context.metrics.cut_keeper.made[made.is_exact] += 1
        return written

    def _is_to_be_thinned(self, stored: StoredCuts) -> bool:
        """Return whether cuts are to go although no new one is made: at most once in a grace, unless
        deletions wait for it."""
        context, cuts = self._context, stored.cuts
        if cuts is None or cuts.stamp is None:
            return False
        now_ms, grace_ms = context.clock.now_ms(), context.settings.grace_ms
        is_due = now_ms - cuts.stamp.written_ms > grace_ms or context.needed.is_waited_for
        return is_due and kept_of(cuts.kept, now_ms, grace_ms) != cuts.kept

    def _holds_otherwise(self, stored: StoredCuts) -> bool:
        """Return whether `CUT` says something else than the settings of now about chains that cuts name."""
        return stored.cuts is not None and stored.cuts.holds_chains != self._cluster.needs_chains

    def _report(self, stored: StoredCuts, outcome: _Outcome) -> None:
        """Tell health and metrics up to when the bucket has everything, and what it lacks of later."""
        metrics, cuts = self._context.metrics.cut_keeper, stored.cuts
        complete = cuts.complete if cuts is not None else None
        if cuts is not None and complete is not None:
            is_all = cuts.newest.is_complete and outcome.made is None
            metrics.complete_ms = max(complete.at_ms, outcome.at_ms if is_all else 0)
        lacks, number = self._pending.newest_lacks, 0 if cuts is None else cuts.newest.cut
        name_of = self._cluster.name_of
        metrics.lacking = {
            TopicIdPartition(one.topic_id, name_of(one.topic_id), one.partition): (
                f"cut {number} is not complete before the bucket has its records below offset {one.end}"
            )
            for one in lacks[:_NAMED]
        }
        metrics.lacking_count = len(lacks)


class _Outcome(NamedTuple):
    """Outcome of an attempt at `at_ms` (wall clock); `made` is None where nothing has changed."""

    at_ms: int
    made: CutRef | None = None


_NAMED_OFFLINE: Final = 20
_NAMED: Final = 100
"""Most partitions that keep a cut from being complete and are told by name."""


def _won(written: StoredCuts | None) -> StoredCuts:
    if written is None:
        raise VoidCut("another process has written CUT since it was read")
    return written


def _check(attempt: CutAttempt) -> None:
    if attempt.phase is AttemptPhase.VOID:
        raise VoidCut(attempt.why)


def _has_leaderless(cluster: CutCluster) -> Steps[bool]:
    for one in cluster.partitions():
        yield
        if one.leader_id < 0:
            return True
    return False
