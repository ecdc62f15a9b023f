"""Rewrites by workers in other processes: what the leader answers to RewriteRange.

A worker begins: the leader checks the run and asks for the intent. It makes the objects by itself, in the
bucket, shows now and then that it lives, and reports them; the leader publishes them as those of its own
worker. It ends what it cannot finish. Each step may be repeated. Owned by the event loop; whatever blocks
runs on the offload pool.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, TypeVar
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.errors import CorruptionError, RequestError, StorageError
from service.base.types import TopicIdPartition
from service.remote.catalog import CatalogEntry, RewriteAnswer, RewriteIntent, RewriteKind
from service.tiering import next_version
from service.tiering.archive_attempt import CommitRefused, Deposed, LeaderTerm, TieringContext
from service.tiering.ports import TieredPartition
from service.tiering.prefix_fence import Displaced, NotNamed
from service.tiering.rewriting.chain_units import run_at
from service.tiering.rewriting.report_check import RewriteRefused, RewriteReport, RunChanged, check_rewritable
from service.tiering.rewriting.rewriter import Submit
from service.tiering.rewriting.silent_intents import SilentIntents

T = TypeVar("T")

ANSWER_S: Final = 20
"""Longest wait of one request for the publication of a run; the worker asks again then."""


class RangeAnswer(NamedTuple):
    """Leader epoch under which the new objects are named, and version of the chain."""

    leader_epoch: int
    version: int


class OutsideRewrites:
    """Answers of one node.

    Each method raises `RequestError`: NOT_LEADER_OR_FOLLOWER where this node does not lead the partition,
    FENCED_LEADER_EPOCH where a commit or a sign of life has no intent (any more), INVALID_REQUEST where the
    run or the report is wrong, or the chain is another by now, OPERATION_NOT_ATTEMPTED while another rewrite
    lives or an erasure decides otherwise, REQUEST_TIMED_OUT where the worker is to ask again,
    KAFKA_STORAGE_ERROR where the store or the metadata does not answer.
    """

    def __init__(
        self,
        context: TieringContext,
        find: Callable[[UUID, int], TieredPartition | None],
        submit: Submit,
        silent: SilentIntents,
    ) -> None:
        self._context = context
        self._find = find
        self._submit = submit
        self._silent = silent

    async def on_a_thread(self, work: Callable[[], T]) -> T:
        """Return what `work` on a request returns, which takes too long for the loop."""
        return await self._ask(self._context.pool.run(work))

    async def begin(
        self,
        topic_id: UUID,
        partition: int,
        rewrite_id: UUID,
        kind: RewriteKind,
        base: int,
        last: int,
        erasure_id: UUID | None = None,
    ) -> RangeAnswer:
        """Begin the rewrite of the run with these offsets, inclusive. An erasure is for an order."""
        led = self._led(topic_id, partition)
        self._check_order(led, kind, erasure_id)
        entry, term = self._entry(topic_id, partition), LeaderTerm(led)
        intent = self._context.catalog.rewrite(topic_id, partition)
        if intent is None or intent.rewrite_id != rewrite_id:
            await self._ask(self._begin(led, term, entry, rewrite_id, kind, base, last))
        elif (intent.kind, intent.base_offset, intent.last_offset) != (kind, base, last):
            raise RequestError(ErrorCode.invalid_request, f"rewrite {rewrite_id} is of another run")
        self._silent.heard(led.tip, rewrite_id)
        # Read after the intent: no other rewrite has changed the run in a later version.
        return RangeAnswer(term.epoch, self._entry(topic_id, partition).version)

    def _check_order(self, led: TieredPartition, kind: RewriteKind, erasure_id: UUID | None) -> None:
        """Raise `RequestError` unless the order that an erasure names is open for the topic."""
        if (kind is RewriteKind.ERASE) != (erasure_id is not None):
            raise RequestError(ErrorCode.invalid_request, "an erasure names its order, and nothing else does")
        if erasure_id is None:
            return
        erasure = self._context.catalog.erasures().get(erasure_id)
        if erasure is None or not erasure.is_open or led.tip.topic_id not in erasure.topics:
            raise RequestError(
                ErrorCode.operation_not_attempted, f"order {erasure_id} is not open for topic {led.tip.topic}"
            )

    async def _begin(
        self,
        led: TieredPartition,
        term: LeaderTerm,
        entry: CatalogEntry,
        rewrite_id: UUID,
        kind: RewriteKind,
        base: int,
        last: int,
    ) -> None:
        context, tip = self._context, led.tip
        await context.fence.check(context.settings.fence_age_ms)

        def check() -> None:
            chains = context.chains
            manifest = next_version.load(chains, tip, entry).manifest
            run = run_at(tip, manifest, chains.loader(tip), base, last)
            check_rewritable(run)
            if kind is RewriteKind.MERGE and len(run.entries) == 1:  # it may be the result of this very merge
                raise RunChanged(f"{tip}: there is one object from {base} to {last}, nothing to merge")

        await context.pool.run(check)
        term.check()
        intent = RewriteIntent(rewrite_id, base, last, kind, term.epoch, context.clock.now_ms())
        reason = intent.malformed()
        if reason is not None:
            raise RewriteRefused(reason)
        answer = await context.catalog.begin_rewrite(tip, intent)
        if answer is RewriteAnswer.BUSY:
            raise RequestError(
                ErrorCode.operation_not_attempted,
                f"another rewrite of {tip} is under way, the chain has changed, or an erasure decides",
            )
        if answer is not RewriteAnswer.BEGUN:
            raise Deposed(f"{tip} is led by another, or in another epoch")
        if context.catalog.rewrite(tip.topic_id, tip.partition) is None:
            # Unless this node's metadata has the intent its sweeper takes the worker's objects for dead.
            raise RequestError(ErrorCode.request_timed_out, "the leader's metadata lags")

    def alive(self, topic_id: UUID, partition: int, rewrite_id: UUID) -> RangeAnswer:
        """Note that the worker lives. An intent that is gone is not begun again."""
        led = self._led(topic_id, partition)
        intent = self._context.catalog.rewrite(topic_id, partition)
        if intent is None or intent.rewrite_id != rewrite_id:
            raise _without_intent(led.tip, rewrite_id)
        self._silent.heard(led.tip, rewrite_id)
        return RangeAnswer(intent.leader_epoch, self._entry(topic_id, partition).version)

    async def commit(self, topic_id: UUID, partition: int, report: RewriteReport) -> RangeAnswer:
        """Publish the run; return once it is committed and HEAD names it."""
        led = self._led(topic_id, partition)
        entry, term = self._entry(topic_id, partition), LeaderTerm(led)
        if not report.entries:
            raise RequestError(ErrorCode.invalid_request, "no new object")
        intent = self._context.catalog.rewrite(topic_id, partition)
        if intent is not None and intent.rewrite_id == report.rewrite_id:
            self._silent.heard(led.tip, report.rewrite_id)
            entry = await self._ask(self._published(led, report))
        elif not await self._ask(self._is_committed(led, entry, report)):
            raise _without_intent(led.tip, report.rewrite_id)
        return RangeAnswer(term.epoch, entry.version)

    async def _published(self, led: TieredPartition, report: RewriteReport) -> CatalogEntry:
        report = report._replace(is_from_outside=True)
        outcome = self._submit(led.tip.topic_id, led.tip.partition, report)
        async with asyncio.timeout(ANSWER_S):
            return await asyncio.shield(outcome)

    async def _is_committed(self, led: TieredPartition, entry: CatalogEntry, report: RewriteReport) -> bool:
        """Return whether the chain has the new objects: the first answer was lost."""
        context, tip, new = self._context, led.tip, report.entries

        def look() -> bool:
            chains = context.chains
            manifest = next_version.load(chains, tip, entry).manifest
            base, last = new[0].base_offset, new[-1].last_offset
            try:
                return run_at(tip, manifest, chains.loader(tip), base, last).entries == new
            except RunChanged:
                return False

        return await context.pool.run(look)

    async def end(self, topic_id: UUID, partition: int, rewrite_id: UUID) -> RangeAnswer:
        """Give the rewrite up; what was made for it is swept."""
        led = self._led(topic_id, partition)
        entry, epoch = self._entry(topic_id, partition), led.leader_epoch
        await self._ask(self._context.catalog.give_up_rewrite(led.tip, rewrite_id))
        return RangeAnswer(epoch, entry.version)

    def _led(self, topic_id: UUID, partition: int) -> TieredPartition:
        led = self._find(topic_id, partition)
        if led is None:
            raise RequestError(
                ErrorCode.not_leader_or_follower, f"this node does not lead {topic_id}/{partition}"
            )
        return led

    def _entry(self, topic_id: UUID, partition: int) -> CatalogEntry:
        entry = self._context.catalog.entry(topic_id, partition)
        if entry is None:
            raise RequestError(ErrorCode.invalid_request, f"{topic_id}/{partition} has no archive")
        return entry

    async def _ask(self, work: Awaitable[T]) -> T:
        """Await `work`; raise its errors as the protocol's."""
        try:
            return await work
        except (Displaced, NotNamed, Deposed) as e:
            raise RequestError(ErrorCode.not_leader_or_follower, str(e)) from e
        except (RewriteRefused, CommitRefused) as e:
            raise RequestError(ErrorCode.invalid_request, str(e)) from e
        except TimeoutError as e:
            raise RequestError(ErrorCode.request_timed_out, "the run is still being published") from e
        except (StorageError, CorruptionError) as e:
            raise RequestError(ErrorCode.kafka_storage_error, str(e)) from e


def _without_intent(tip: TopicIdPartition, rewrite_id: UUID) -> RequestError:
    return RequestError(ErrorCode.fenced_leader_epoch, f"{tip} has no rewrite {rewrite_id} (any more)")
