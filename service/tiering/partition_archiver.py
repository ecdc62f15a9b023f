"""Archiver of one partition: runs one task at a time (`tasks.Task`), each safe to be interrupted anywhere.

    COMPARE_HEAD  at start, at intervals, and after a change by others: HEAD must name the committed manifest
    PUBLISH       settle a proposal without an answer: repeat the commit, write HEAD, report to the partition
    EXPIRE        drop what total retention no longer keeps: manifest, commit, HEAD; objects go after a grace
    COPY          objects, manifest, commit, HEAD; then report to the partition that its bytes are remote
    REWRITE       put the objects that a worker has made of a run in its place: manifest, commit, HEAD

Each is retried on its own after a failure: a failing expiry does not hold up copies, nor the other way round.
The first two go before anything else, because every commit replaces what HEAD names. While HEAD and our
metadata have diverged nothing is written: they are compared before anything else, and each manifest is made
after HEAD was read once more. Owned by the event loop; whatever blocks runs on the offload pool.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from service.base.errors import FirnError
from service.remote.catalog import CatalogEntry
from service.tiering.archive_attempt import CommitRefused, LeaderTerm, ManifestProposal, TieringContext
from service.tiering.chain import HeadMoved
from service.tiering.metrics import note
from service.tiering.partition_copier import BlockingTransaction, PartitionCopier
from service.tiering.partition_expiry import PartitionExpiry
from service.tiering.partition_head import PartitionHead
from service.tiering.pending_commit import PendingCommit
from service.tiering.planner import Copy, CopyPlan, SegmentSpan, priority, priority_after_failure
from service.tiering.ports import TieredPartition
from service.tiering.rewriting.publisher import PartitionRewriting
from service.tiering.steps import CommitStep
from service.tiering.tasks import Retries, Task
from service.tiering.work_queue import Priority

log = logging.getLogger(__name__)

MAINTENANCE: Priority = (0, 0, 0)
"""Priority of settling, publishing and expiry, which are short and go before any upload."""


class _ReadyTask(NamedTuple):
    """A task that has something to do, and its priority."""

    priority: Priority
    task: Task


class PartitionArchiver:
    """Archives one partition. Nothing of its state survives a restart, and nothing must."""

    def __init__(self, partition: TieredPartition, context: TieringContext) -> None:
        self.partition = partition
        self.retries = Retries()
        self.begun: list[Task] = []
        """the tasks of the last run in order: all but the last one succeeded"""
        self.due_ms: int | None = None
        """when there may be something to do without any event; None: never"""
        self.must_compare_head = True
        """the next task is to compare HEAD with our entry"""
        self.term = LeaderTerm(partition)
        self.head = PartitionHead(partition, context, self.term)
        self._context = context
        self._copier = PartitionCopier(partition, context, self.term)
        self._expiry = PartitionExpiry(partition, context, self.term)
        self.rewriting = PartitionRewriting(partition, context, self.term)
        self._pending = PendingCommit(partition.tip, context, self.term, self.head)
        self._lag = (0, 0)
        self.waits_for: BlockingTransaction | None = None
        """the open transaction that a segment waits for to be copied"""
        self._waits_since_ms = 0
        self._is_wait_logged = False

    def assess(self) -> Priority | None:
        """Return the priority of what there is to do now; None where there is nothing, and `due_ms` is valid
        then.

        Also refreshes `must_compare_head` and the metrics of this partition. Raises `StorageError` where the
        log is offline.
        """
        entry = self.head.entry()
        if self.head.stopped is not None:
            self.rewriting.failed(self.head.stopped)
        plan = self._copier.plan(entry)
        self._note_transaction(None if plan.copies else self._copier.open_transaction(entry))
        self._update_metrics(plan)
        if not self.rewriting.waits and self.retries.succeeded(Task.REWRITE):
            self._context.metrics.failing.pop((Task.REWRITE, self.partition.tip), None)
        self.must_compare_head = must_compare = self._must_compare(entry)
        is_regular = self.head.is_compared_regularly(entry) and not must_compare
        self.due_ms = self.head.compare_due_ms if is_regular else None
        ready = self._ready_tasks(entry, plan)
        if not ready and not must_compare and self.head.stopped is None and self._context.fence.may_write:
            self._schedule(entry, plan)
        return min((one.priority for one in ready), default=None)

    def _must_compare(self, entry: CatalogEntry | None) -> bool:
        return self.head.must_compare(entry, is_proposed=self._pending.proposal is not None)

    def _ready_tasks(self, entry: CatalogEntry | None, plan: CopyPlan[SegmentSpan]) -> list[_ReadyTask]:
        """Return the tasks that may run now; lower `due_ms` to when one that backs off may run."""
        ready: list[_ReadyTask] = []
        now_ms = self._context.clock.monotonic_ms()
        for one in self._open_tasks(entry, plan):
            failure = self.retries.get(one.task)
            if failure is None:
                ready.append(one)
            elif failure.not_before_ms <= now_ms:
                ready.append(_ReadyTask(priority_after_failure(one.priority, failure.wall_ms), one.task))
            else:
                self.due_ms = min(failure.not_before_ms, self.due_ms or failure.not_before_ms)
        return ready

    def _open_tasks(self, entry: CatalogEntry | None, plan: CopyPlan[SegmentSpan]) -> Iterator[_ReadyTask]:
        """Yield the tasks that have something to do; only those that others wait for, where there are
        such."""
        if self._must_compare(entry):
            yield _ReadyTask(MAINTENANCE, Task.COMPARE_HEAD)
            return
        if self.head.stopped is not None or not self._context.fence.may_write:
            return
        if self._pending.proposal is not None or (entry is not None and entry != self.head.published):
            yield _ReadyTask(MAINTENANCE, Task.PUBLISH)
            # HEAD need not name a lost manifest again where the next version keeps nothing of it.
            is_lost = self._pending.proposal is None and self.retries.get(Task.PUBLISH) is not None
            if entry is None or not is_lost or not self._expiry.takes_all(entry):
                return
            if entry.segments:
                yield _ReadyTask(MAINTENANCE, Task.EXPIRE)
                return
        if self._expiry.may_expire(entry):
            yield _ReadyTask(MAINTENANCE, Task.EXPIRE)
        if self.rewriting.waits:
            yield _ReadyTask(MAINTENANCE, Task.REWRITE)
        sealed_at_ms = self._copier.sealed_at_ms(plan)
        if sealed_at_ms is not None and not self._copier.throttle_ms():
            is_urgent = self._context.is_urgent(self.partition.tip)
            yield _ReadyTask(priority(plan, sealed_at_ms, is_urgent=is_urgent), Task.COPY)

    def _note_transaction(self, found: BlockingTransaction | None) -> None:
        """Remember what a segment waits for; log it once it has waited for an interval."""
        now_ms, before = self._context.clock.monotonic_ms(), self.waits_for
        if found is None or before is None or found[:2] != before[:2]:
            self._waits_since_ms = now_ms
            self._is_wait_logged = False
        self.waits_for = found
        is_long = now_ms - self._waits_since_ms >= self._context.settings.interval_ms
        if found is not None and is_long and not self._is_wait_logged:
            self._is_wait_logged = True
            log.warning("%s: not copied beyond offset %d: %s", self.partition.tip, found[1], found.reason)

    def _update_metrics(self, plan: CopyPlan[SegmentSpan]) -> None:
        """Update the metrics of this partition."""
        metrics, tip = self._context.metrics, self.partition.tip
        metrics.lag_segments += plan.lag_segments - self._lag[0]
        metrics.lag_bytes += plan.lag_bytes - self._lag[1]
        self._lag = plan.lag_segments, plan.lag_bytes
        note(metrics.stopped, tip, self.head.stopped)
        reason = self.head.stopped or plan.blocked or self.retries.reason
        if reason is None and self.waits_for is not None:
            reason = self.waits_for.reason
        if reason is None and plan.copies and not self._context.fence.may_write:
            reason = self._context.fence.displaced or "the prefix was not taken over yet"
        elif reason is None and plan.copies and self._copier.throttle_ms():
            reason = "remote.log.manager.copy.max.bytes.per.second is reached"
        note(metrics.reasons, tip, reason)
        note(metrics.waiting, tip, self._copier.sealed_at_ms(plan))

    def _schedule(self, entry: CatalogEntry | None, plan: CopyPlan[SegmentSpan]) -> None:
        """Set `due_ms`, as there is nothing to do now, to when that may change without any event; never later
        than before."""
        context = self._context
        now_ms = context.clock.monotonic_ms()
        due = [] if self.due_ms is None else [self.due_ms]
        if plan.copies and (wait_ms := self._copier.throttle_ms()):
            due.append(now_ms + wait_ms)
        if plan.blocked is not None or self._copier.is_held_back(entry):
            due.append(now_ms + context.settings.interval_ms)
        due += self._expiry.due_ms(entry)
        self.due_ms = min(due, default=None)

    async def run_once(self) -> None:
        """Run the task of highest priority that does not back off.

        Raises `StorageError` or `CorruptionError` when it failed, `Deposed` when this node does not lead any
        more. The last task `begun` is the one that failed; the state tells what is left to do.
        """
        self.begun = [Task.PLAN]
        entry = self.head.entry()
        self.term.begin()
        plan = self._copier.plan(entry)
        ready = self._ready_tasks(entry, plan)
        if not ready:
            return
        task = min(ready, key=lambda one: one.priority).task
        self.begun.append(task)
        if task is Task.COMPARE_HEAD:
            await self.head.compare(entry)
            return
        await self._context.fence.check(self._context.settings.fence_age_ms)
        self.term.check()
        if self._pending.proposal is not None:
            await self._pending.settle(self._pending.proposal)
        elif entry is not None and task is Task.PUBLISH:
            await self.head.publish(entry, None)
        else:
            await self._change(task, entry, plan.copies)

    async def _change(
        self, task: Task, entry: CatalogEntry | None, copies: Sequence[Copy[SegmentSpan]]
    ) -> None:
        """Expire, copy or publish a rewrite: write the next manifest, and settle it."""
        proposal: ManifestProposal | None
        failure: FirnError | None = None
        try:
            if entry is not None and task is Task.EXPIRE:
                proposal = await self._expiry.propose(entry)
            elif task is Task.REWRITE:
                proposal = await self.rewriting.propose(entry)
            else:
                proposal, failure = await self._copier.propose(entry, copies)
        except HeadMoved:
            self.head.is_doubtful = True
            raise
        if proposal is None:
            return
        if task is Task.REWRITE:
            self._expiry.forget_oldest()
        self._context.probe(CommitStep.PROPOSED, self.partition.tip)
        self.begun.append(Task.PUBLISH)
        try:
            await self._pending.settle(proposal)
        except CommitRefused:
            self.begun.pop()  # nothing to publish: the proposing task failed
            raise
        if failure is not None:
            self.begun.append(Task.COPY)
            raise failure

    @property
    def is_unsettled(self) -> bool:
        """True while the outcome of a proposal is not known."""
        return self._pending.proposal is not None

    def depose(self) -> None:
        """End the work under way before its next effect: this node does not lead the partition any more."""
        self.term.is_deposed = True
        self._copier.cancel()

    def abandon(self) -> None:
        """Remove the metrics and release the keys: this node does not lead any more. The next leader's chain
        settles proposals."""
        metrics, tip = self._context.metrics, self.partition.tip
        metrics.lag_segments -= self._lag[0]
        metrics.lag_bytes -= self._lag[1]
        self._lag = (0, 0)
        for notes in (metrics.stopped, metrics.reasons, metrics.waiting):
            notes.pop(tip, None)
        for task in Task:
            metrics.failing.pop((task, tip), None)
        self._pending.drop()
        self.rewriting.abandon()
