"""Rewrites of runs by a broker's own worker, of partitions that it leads: one object at a time per node.

Order (invariant T25): intent in the metadata, objects on a `rewrite` thread, report to the partition's
archiver, which publishes it in its line of tasks (`publisher`). Objects are made outside of that line: copies
and expiry go on meanwhile, and a run that they change is planned again. While one run waits to be published
the next is made. A rewrite that fails gives its intent
up; where even that fails, `SilentIntents` does it later, or the partition's next leader epoch ends it.

Owned by the event loop. The pool has the watchdog of offload calls. Its threads plan, and wait for the maker
of objects, which is another process on a node (`making_child`); that ends once there was no rewrite for
`IDLE_S`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Final, NamedTuple, TypeVar
from uuid import UUID

from service.base.errors import CorruptionError, FirnError, RequestError, StorageError
from service.base.threads import Threads
from service.base.types import TopicIdPartition
from service.remote.catalog import CatalogEntry, RewriteAnswer, RewriteIntent
from service.remote.format.segment_object import SegmentIdentity
from service.tiering import next_version
from service.tiering.archive_attempt import ArchiveAttempt, CommitRefused, Deposed, LeaderTerm, TieringContext
from service.tiering.copier import CallProgress
from service.tiering.offload_pool import OffloadPool
from service.tiering.ports import SegmentRun, TieredPartition
from service.tiering.rewriting.chain_units import run_at
from service.tiering.rewriting.making import MakeOrder, ObjectMaker
from service.tiering.rewriting.report_check import (
    NotPublished,
    RewriteRefused,
    RewriteReport,
    RunChanged,
    check_rewritable,
)
from service.tiering.rewriting.rules import ChainRun, Rule
from service.tiering.rewriting.run_object import MadeObject
from service.tiering.rewriting.upload_pace import UploadPace

log = logging.getLogger(__name__)

T = TypeVar("T")

IDLE_S: Final = 10.0
"""Time without a rewrite after which the maker may rest: to start again costs it half a second."""
_LOOK_S: Final = 0.1
PUBLISH_S: Final = 600
"""Longest wait for the publication of a run; then its intent is given up."""

Submit = Callable[[UUID, int, RewriteReport], asyncio.Future[CatalogEntry]]
"""Has the archiver of a partition publish a report (`TaskScheduler.submit_rewrite`)."""


class RewriteOutcome(Enum):
    """End of the rewrite of a run. Only DONE has changed the chain."""

    DONE = "done"
    CHANGED = "changed"
    """The chain has no such run (any more): plan again."""
    BUSY = "busy"
    """Another rewrite of the partition lives, or an erasure decides otherwise."""
    FENCED = "fenced"
    """Another node leads the partition, or this one in another epoch."""
    REFUSED = "refused"
    """The run may not be rewritten."""


class _Work(NamedTuple):
    """A rewrite that has begun, and the keys that it writes."""

    led: TieredPartition
    term: LeaderTerm
    run: ChainRun
    rule: Rule
    intent: RewriteIntent
    attempt: ArchiveAttempt

    @property
    def tip(self) -> TopicIdPartition:
        return self.led.tip


class Rewriter:
    """The worker of one node."""

    def __init__(
        self,
        context: TieringContext,
        pool: OffloadPool,
        threads: Threads,
        find: Callable[[UUID, int], TieredPartition | None],
        submit: Submit,
        withdraw: Callable[[UUID, int, UUID], None],
        maker: ObjectMaker,
    ) -> None:
        """`pool`: of `rewrite` threads. `find` as in `TieringManager`; `withdraw` takes a report back."""
        self._context = context
        self._pool = pool
        self._threads = threads
        self._find = find
        self._submit = submit
        self._withdraw = withdraw
        self._maker = maker
        self._resting: asyncio.Task[None] | None = None
        """lets the maker rest after a while"""
        self._one_at_a_time = asyncio.Lock()
        self._running: dict[tuple[UUID, int], UUID] = {}

    def running(self, topic_id: UUID, partition: int) -> UUID | None:
        """Return the rewrite of the partition that this worker makes or publishes now; None without one."""
        return self._running.get((topic_id, partition))

    async def rewrite(
        self, topic_id: UUID, partition: int, base_offset: int, last_offset: int, rule: Rule
    ) -> RewriteOutcome:
        """Rewrite the run with these offsets, inclusive, by `rule`.

        Raises `Displaced` or `NotNamed` where this node may not write to the bucket, `StorageError`,
        `CorruptionError`, and `RequestError` where the cluster does not know rewrites yet.
        """
        led = self._find(topic_id, partition)
        if led is None:
            return RewriteOutcome.FENCED
        try:
            async with self._one_at_a_time:
                work = await self._begun(led, base_offset, last_offset, rule)
                if isinstance(work, RewriteOutcome):
                    return work
                made = await self._ended_with(work, self._make(work))
            report = RewriteReport(work.intent.rewrite_id, work.run.keys, (made.entry,))
            await self._ended_with(work, self._publish(work.tip, report))
        except (RunChanged, CommitRefused):
            return RewriteOutcome.CHANGED
        except RewriteRefused as e:
            log.warning("%s: a run cannot be rewritten: %s", led.tip, e)
            return RewriteOutcome.REFUSED
        except Deposed:
            return RewriteOutcome.FENCED
        self._is_over(work)
        self._context.metrics.rewrites.bytes_read += made.bytes_read
        return RewriteOutcome.DONE

    async def _begun(
        self, led: TieredPartition, base_offset: int, last_offset: int, rule: Rule
    ) -> _Work | RewriteOutcome:
        """Begin a rewrite; return why it may not begin where the catalog says so."""
        context, tip = self._context, led.tip
        term = LeaderTerm(led)
        await context.fence.check(context.settings.fence_age_ms)
        entry = context.catalog.entry(tip.topic_id, tip.partition)
        if entry is None:
            raise RunChanged(f"{tip} has no archive")
        run = await self._pool.run(self._load_run, tip, entry, base_offset, last_offset)
        check_rewritable(run)
        term.check()
        intent = RewriteIntent(
            context.new_uuid(), base_offset, last_offset, rule.kind, term.epoch, context.clock.now_ms()
        )
        try:
            answer = await context.catalog.begin_rewrite(tip, intent)
        except StorageError:
            await self._give_up(tip, intent.rewrite_id)  # it may have begun, and would hold up the next one
            raise
        if answer is RewriteAnswer.BUSY:
            return RewriteOutcome.BUSY
        if answer is not RewriteAnswer.BEGUN:
            return RewriteOutcome.FENCED
        self._running[tip.topic_id, tip.partition] = intent.rewrite_id
        context.metrics.rewrites.running += 1
        return _Work(led, term, run, rule, intent, ArchiveAttempt(context.eraser, term))

    def _is_over(self, work: _Work) -> None:
        """Forget a rewrite that has ended."""
        place = work.tip.topic_id, work.tip.partition
        self._context.eraser.release(work.attempt.keys)
        if self._running.get(place) == work.intent.rewrite_id:  # else the next one runs already
            del self._running[place]
        self._context.metrics.rewrites.running -= 1

    def _load_run(self, tip: TopicIdPartition, entry: CatalogEntry, base: int, last: int) -> ChainRun:
        """Return the run as the chain has it now. Runs on a `rewrite` thread."""
        chains = self._context.chains
        return run_at(tip, next_version.load(chains, tip, entry).manifest, chains.loader(tip), base, last)

    async def _ended_with(self, work: _Work, step: Awaitable[T]) -> T:
        """Await a step; where that fails, end the rewrite."""
        try:
            return await step
        except (RewriteRefused, CorruptionError, StorageError) as e:
            self._note_failure(e)
            self._is_over(work)
            if not isinstance(e, (CommitRefused, Deposed, NotPublished)):  # else the chain tells what is live
                work.attempt.failed(work.tip)
            await self._give_up(work.tip, work.intent.rewrite_id)
            raise
        except BaseException:
            self._is_over(work)
            raise

    def _note_failure(self, error: FirnError) -> None:
        if not isinstance(error, (RewriteRefused, Deposed)):
            self._context.metrics.rewrites.failures += 1

    async def _make(self, work: _Work) -> MadeObject:
        context, (led, term, run, rule, intent, attempt) = self._context, work
        tip = work.tip
        if context.catalog.rewrite(tip.topic_id, tip.partition) != intent:
            raise StorageError(f"{tip}: this node's metadata does not have the rewrite that it began")
        identity = SegmentIdentity(
            cluster_id=context.cluster_id,
            topic_id=tip.topic_id,
            topic=tip.topic,
            partition=tip.partition,
            base_offset=run.base_offset,
            last_offset=run.last_offset,
            leader_epoch=intent.leader_epoch,
            uuid=context.new_uuid(),
        )
        attempt.writes(identity.key)
        local = self._local(led, run)
        order = MakeOrder(
            run, rule, identity, intent.rewrite_id, context.stamps(), context.settings.block_bytes
        )
        pace = UploadPace(context.copy_rate, context.clock, self._threads.sleep)

        def make(progress: CallProgress) -> MadeObject:
            def spend(size: int) -> None:
                term.check()
                pace.spend(size, progress)

            return self._maker.make(order, local, progress, spend)

        beside = [
            asyncio.create_task(one, name=f"rewrite-{tip}") for one in (pace.follow(), self._watch(work))
        ]
        self.close()
        try:
            return await self._pool.watch(make)
        finally:
            for task in beside:
                task.cancel()
            self._resting = asyncio.create_task(self._rest(), name="rewrite-rest")

    async def _rest(self) -> None:
        await asyncio.sleep(IDLE_S)
        await self._pool.run(self._maker.rest)

    def close(self) -> None:
        """Do not let the maker rest: it has work, or the node ends."""
        if self._resting is not None:
            self._resting.cancel()
            self._resting = None

    async def _watch(self, work: _Work) -> None:
        """Depose the work once this node does not have the partition any more: what was uploaded after its
        topic is forgotten would stay for ever."""
        while self._find(work.tip.topic_id, work.tip.partition) is work.led:
            await asyncio.sleep(_LOOK_S)
        work.term.is_deposed = True

    def _local(self, led: TieredPartition, run: ChainRun) -> tuple[SegmentRun, ...]:
        """Return the local segments that may have the run's bytes; none where the log is offline."""
        try:
            return tuple(led.log.runs.runs_between(run.base_offset, run.last_offset))
        except StorageError:
            return ()

    async def _publish(self, tip: TopicIdPartition, report: RewriteReport) -> None:
        outcome = self._submit(tip.topic_id, tip.partition, report)
        try:
            async with asyncio.timeout(PUBLISH_S):
                await asyncio.shield(outcome)
        except TimeoutError as e:
            self._withdraw(tip.topic_id, tip.partition, report.rewrite_id)
            raise NotPublished(f"{tip}: a rewritten run was not published within {PUBLISH_S} s") from e

    async def _give_up(self, tip: TopicIdPartition, rewrite_id: UUID) -> None:
        """End the intent; a later look does it where the catalog does not answer."""
        self._context.metrics.rewrites.given_up += 1
        try:
            await self._context.catalog.give_up_rewrite(tip, rewrite_id)
        except (StorageError, RequestError) as e:
            log.info("%s: rewrite %s is given up later: %s", tip, rewrite_id, e)
