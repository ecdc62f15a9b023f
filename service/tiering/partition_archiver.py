"""Archiver of one partition: runs one task at a time (`tasks.Task`), each safe to be interrupted anywhere.

    COMPARE_HEAD  at start, at intervals, and after a change by others: HEAD must name the committed manifest
    PUBLISH       settle a proposal without an answer: repeat the commit, write HEAD, report to the partition
    EXPIRE        drop what total retention no longer keeps: manifest, commit, HEAD; objects go after a grace
    COPY          objects, manifest, commit, HEAD; then report to the partition that its bytes are remote

Each is retried on its own after a failure: a failing expiry does not hold up copies, nor the other way round.
The first two go before anything else, because every commit replaces what HEAD names.

Where several segments wait, their objects are uploaded one after the other and go with one manifest: up to
`TieringSettings.commit_segments`, and no further upload begins once `commit_bytes` are uploaded. If one
fails, those before it are committed.

Nothing is written while HEAD and our metadata have diverged (`head_check`): they are compared before anything
else, and each manifest is made after HEAD was read once more. Only the catalog tells what is committed.
Everything before the commit may be lost or repeated: it leaves orphans, never damage. Everything after it is
repeated until it succeeds, here or after the next start. Owned by the event loop; whatever blocks runs on the
offload pool.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from service.base.errors import CorruptionError, FirnError, StorageError
from service.remote.catalog import CatalogEntry, CatalogResult
from service.remote.format.manifest import SegmentEntry
from service.remote.reading.object_reader import Chain
from service.tiering import next_version
from service.tiering.aging import find_expired
from service.tiering.archive_attempt import (
    NO_SEGMENTS,
    ArchiveAttempt,
    CommitRefused,
    Deposed,
    ManifestProposal,
    SegmentTotals,
    TieringContext,
    identity_of,
)
from service.tiering.chain import HeadMoved, SeenHead, verdict_on
from service.tiering.copier import CallProgress, copy_segment
from service.tiering.expiry import EVERYTHING
from service.tiering.expiry_watch import ExpiryWatch
from service.tiering.head_check import MAY_GO_ON, HeadVerdict, problem
from service.tiering.lifecycle import SegmentState, move
from service.tiering.metrics import note
from service.tiering.planner import Copy, CopyPlan, SegmentSpan, plan_copies, priority, priority_after_failure
from service.tiering.ports import TieredPartition
from service.tiering.steps import CommitStep
from service.tiering.tasks import Retries, Task, TaskFailure
from service.tiering.work_queue import Priority

log = logging.getLogger(__name__)

MAINTENANCE: Priority = (0, 0, 0)
"""Priority of settling, publishing and expiry, which are short and go before any upload."""


class _ReadyTask(NamedTuple):
    """A task that has something to do, and its priority."""

    priority: Priority
    task: Task

    def after_failure(self, failure: TaskFailure) -> _ReadyTask:
        """Return the task with the priority that it has after `failure`."""
        return _ReadyTask(priority_after_failure(self.priority, failure.wall_ms), self.task)


def _priority_of(one: _ReadyTask) -> Priority:
    return one.priority


class PartitionArchiver:
    """Archives one partition. Nothing of its state survives a restart, and nothing must."""

    def __init__(self, partition: TieredPartition, context: TieringContext) -> None:
        self.partition = partition
        self.retries = Retries()
        self.begun: list[Task] = []
        """the tasks of the last run in order: all but the last one succeeded"""
        self.published: CatalogEntry | None = None
        self.stopped: str | None = None
        """why nothing of this partition is written or deleted: HEAD and our metadata have diverged"""
        self.due_ms: int | None = None
        """when there may be something to do without any event; None: never"""
        self.is_deposed = False
        """this node does not lead the partition any more: nothing further is begun"""
        self._context = context
        self._epoch = partition.leader_epoch
        """the leader epoch in which the current run began"""
        self._upload_progress: CallProgress | None = None
        self._known: CatalogEntry | None = None
        self._proposal: ManifestProposal | None = None
        self._expiry = ExpiryWatch(partition, context)
        self._lag = (0, 0)
        self._is_head_doubtful = True
        self._compare_due_ms = 0
        self._compared_entry: CatalogEntry | None = None
        self._has_compared = False

    def assess(self) -> Priority | None:
        """Return the priority of what there is to do now; None where there is nothing, and `due_ms` is valid
        then.

        Also refreshes the metrics of this partition. Raises `StorageError` where the log is offline.
        """
        entry = self._entry()
        plan = self._plan(entry)
        self._update_metrics(plan)
        must_compare = self._must_compare(entry)
        self.due_ms = (
            self._compare_due_ms if self._is_compared_regularly(entry) and not must_compare else None
        )
        ready = self._ready_tasks(entry, plan)
        if not ready and not must_compare and self.stopped is None and self._context.fence.may_write:
            self._schedule(entry, plan)
        return min(map(_priority_of, ready), default=None)

    def _ready_tasks(self, entry: CatalogEntry | None, plan: CopyPlan[SegmentSpan]) -> list[_ReadyTask]:
        """Return the tasks that may run now; lower `due_ms` to when one that backs off may run."""
        ready: list[_ReadyTask] = []
        now_ms = self._context.clock.monotonic_ms()
        for one in self._open_tasks(entry, plan):
            failure = self.retries.get(one.task)
            if failure is None:
                ready.append(one)
            elif failure.not_before_ms <= now_ms:
                ready.append(one.after_failure(failure))
            else:
                self.due_ms = min(failure.not_before_ms, self.due_ms or failure.not_before_ms)
        return ready

    def _open_tasks(self, entry: CatalogEntry | None, plan: CopyPlan[SegmentSpan]) -> Iterator[_ReadyTask]:
        """Yield the tasks that have something to do; only those that others wait for, where there are
        such."""
        if self._must_compare(entry):
            yield _ReadyTask(MAINTENANCE, Task.COMPARE_HEAD)
            return
        if self.stopped is not None or not self._context.fence.may_write:
            return
        if self._proposal is not None or self._is_unpublished(entry):
            yield _ReadyTask(MAINTENANCE, Task.PUBLISH)
            # HEAD need not name a lost manifest again where the next version keeps nothing of it.
            is_lost = self._proposal is None and self.retries.get(Task.PUBLISH) is not None
            if entry is None or not is_lost or not self._expiry.takes_all(entry):
                return
            if entry.segments:
                yield _ReadyTask(MAINTENANCE, Task.EXPIRE)
                return
        if self._expiry.may_expire(entry):
            yield _ReadyTask(MAINTENANCE, Task.EXPIRE)
        sealed_at_ms = self._sealed_at_ms(plan)
        if sealed_at_ms is not None and not self._copy_throttle_ms():
            is_urgent = self._context.is_urgent(self.partition.tip)
            yield _ReadyTask(priority(plan, sealed_at_ms, is_urgent=is_urgent), Task.COPY)

    def _sealed_at_ms(self, plan: CopyPlan[SegmentSpan]) -> int | None:
        """Return when the oldest segment that can be copied was sealed, None for none."""
        if not plan.copies:
            return None
        return self.partition.log.sealed.sealed_at_ms(plan.copies[0].segment.base_offset)

    def _update_metrics(self, plan: CopyPlan[SegmentSpan]) -> None:
        """Update the metrics of this partition."""
        metrics, tip = self._context.metrics, self.partition.tip
        metrics.lag_segments += plan.lag_segments - self._lag[0]
        metrics.lag_bytes += plan.lag_bytes - self._lag[1]
        self._lag = plan.lag_segments, plan.lag_bytes
        note(metrics.blocked, tip, plan.blocked)
        note(metrics.stopped, tip, self.stopped)
        reason = self.stopped or plan.blocked or self.retries.reason
        if reason is None and plan.copies and not self._context.fence.may_write:
            reason = self._context.fence.displaced or "the prefix was not taken over yet"
        elif reason is None and plan.copies and self._copy_throttle_ms():
            reason = "remote.log.manager.copy.max.bytes.per.second is reached"
        note(metrics.reasons, tip, reason)
        note(metrics.waiting, tip, self._sealed_at_ms(plan))

    def _schedule(self, entry: CatalogEntry | None, plan: CopyPlan[SegmentSpan]) -> None:
        """Set `due_ms`, as there is nothing to do now, to when that may change without any event; never later
        than before."""
        context = self._context
        now_ms = context.clock.monotonic_ms()
        due = [] if self.due_ms is None else [self.due_ms]
        if plan.copies and (wait_ms := self._copy_throttle_ms()):
            due.append(now_ms + wait_ms)
        if plan.blocked is not None or self._is_held_back(entry):
            due.append(now_ms + context.settings.interval_ms)
        due += self._expiry.due_ms(entry)
        self.due_ms = min(due, default=None)

    def _is_held_back(self, entry: CatalogEntry | None) -> bool:
        """Return whether a sealed segment waits for the high watermark to pass it."""
        if not self._is_copy_enabled:
            return False
        partition = self.partition
        end_offset = entry.end_offset if entry is not None else 0
        return bool(partition.log.sealed.spans(max(end_offset, self._limit), 1))

    async def run_once(self) -> None:
        """Run the task of highest priority that does not back off.

        Raises `StorageError` or `CorruptionError` when it failed, `Deposed` when this node does not lead any
        more. The last task `begun` is the one that failed; the state tells what is left to do.
        """
        self.begun = [Task.PLAN]
        entry, self._epoch = self._entry(), self.partition.leader_epoch
        self._check_led()
        plan = self._plan(entry)
        ready = self._ready_tasks(entry, plan)
        if not ready:
            return
        task = min(ready, key=_priority_of).task
        self.begun.append(task)
        if task is Task.COMPARE_HEAD:
            await self._compare_head(entry)
            return
        await self._context.fence.check(self._context.settings.fence_age_ms)
        self._check_led()
        if self._proposal is not None:
            await self._settle(self._proposal)
        elif entry is not None and task is Task.PUBLISH:
            await self._publish(entry, None)
        elif entry is not None and task is Task.EXPIRE:
            await self._expire(entry)
        else:
            await self._copy(entry, plan.copies)

    def depose(self) -> None:
        """End the work under way before its next effect: this node does not lead the partition any more."""
        self.is_deposed = True
        if self._upload_progress is not None:
            self._upload_progress.cancelled = True

    def _check_led(self) -> None:
        """Raise `Deposed` where this node does not lead any more. Called before each effect, from offload
        threads too."""
        if self.is_deposed or self.partition.leader_epoch != self._epoch:
            raise Deposed(f"{self.partition.tip} is led by another, or in another epoch than {self._epoch}")

    def abandon(self) -> None:
        """Remove the metrics and release the keys: this node does not lead any more. The next leader's chain
        settles proposals."""
        metrics, tip = self._context.metrics, self.partition.tip
        metrics.lag_segments -= self._lag[0]
        metrics.lag_bytes -= self._lag[1]
        self._lag = (0, 0)
        for notes in (metrics.blocked, metrics.stopped, metrics.reasons, metrics.waiting):
            notes.pop(tip, None)
        for task in Task:
            metrics.failing.pop((task, tip), None)
        if self._proposal is not None:
            self._context.eraser.release(self._proposal.written)
            self._proposal = None

    def _entry(self) -> CatalogEntry | None:
        """Return the newest committed entry known here; the image may lag behind our own commits."""
        tip = self.partition.tip
        entry = self._context.catalog.entry(tip.topic_id, tip.partition)
        if entry is not None and (self._known is None or entry.version > self._known.version):
            self._known = entry
        return self._known

    @property
    def must_compare_head(self) -> bool:
        """True if the next task is to compare HEAD with our entry."""
        return self._must_compare(self._entry())

    @property
    def has_compared_head(self) -> bool:
        """True once HEAD was compared with our entry since the start, or there can be no HEAD."""
        return self._has_compared or not self._is_tiered(self._entry())

    def _must_compare(self, entry: CatalogEntry | None) -> bool:
        """Return whether HEAD has to be compared: after a change by others, but not after our own commits,
        and at intervals."""
        if not self._is_tiered(entry):
            return False
        is_news = self._proposal is None and entry not in (self._compared_entry, self.published)
        is_due = (
            self._is_compared_regularly(entry) and self._context.clock.monotonic_ms() >= self._compare_due_ms
        )
        return self._is_head_doubtful or is_news or is_due

    def _is_tiered(self, entry: CatalogEntry | None) -> bool:
        return entry is not None or self.partition.config.remote_storage_enable

    def _is_compared_regularly(self, entry: CatalogEntry | None) -> bool:
        """Return whether HEAD is compared at intervals. Where there was no HEAD yet, the first commit
        compares it."""
        return entry is not None or self.stopped is not None

    def _is_unpublished(self, entry: CatalogEntry | None) -> bool:
        return entry is not None and entry != self.published

    @property
    def _is_copy_enabled(self) -> bool:
        config = self.partition.config
        return config.remote_storage_enable and not config.remote_log_copy_disable

    @property
    def _limit(self) -> int:
        """The end of what can never be truncated again."""
        return min(self.partition.high_watermark, self.partition.last_stable_offset)

    def _plan(self, entry: CatalogEntry | None) -> CopyPlan[SegmentSpan]:
        """Return what goes with the next commit, and the whole lag."""
        if not self._is_copy_enabled:
            return CopyPlan((), 0, 0, None)
        start, end = (entry.start_offset, entry.end_offset) if entry is not None else (0, 0)
        log = self.partition.log
        floor = max(end, log.log_start_offset) if start == end else end
        plan = plan_copies(
            log.sealed.spans(floor, self._context.settings.commit_segments),
            chain_start=start,
            chain_end=end,
            log_start_offset=log.log_start_offset,
            high_watermark=self.partition.high_watermark,
            last_stable_offset=self.partition.last_stable_offset,
        )
        if not plan.copies:
            return plan
        segments, size = log.sealed.totals(floor, self._limit)
        return plan._replace(lag_segments=segments, lag_bytes=size)

    # -- copy ------------------------------------------------------------------------------------------------

    async def _copy(self, entry: CatalogEntry | None, copies: Sequence[Copy[SegmentSpan]]) -> None:
        """Upload the first of `copies`, and as many more as go with the same commit; then commit those."""
        context, tip = self._context, self.partition.tip
        leader_epoch = self._epoch
        attempt = ArchiveAttempt(context.eraser, self._check_led)
        uploaded: list[SegmentEntry] = []
        failure: FirnError | None = None
        for copy in copies:
            if uploaded and self._is_commit_full(uploaded):
                break
            try:
                uploaded.append(await self._upload(copy, leader_epoch, attempt))
            except (StorageError, CorruptionError) as e:
                if not uploaded:
                    raise
                failure = e
                break
        try:
            chain, commit = await context.pool.run(
                lambda: next_version.append(
                    context.chains, tip, entry, tuple(uploaded), leader_epoch, attempt.writes
                )
            )
        except (StorageError, CorruptionError) as e:
            attempt.failed(tip, self._grace_over())
            self._doubt_head(e)
            raise
        retired = (entry.manifest_key,) if entry is not None else ()
        state = move(SegmentState.UPLOADED, SegmentState.PROPOSED)
        self._proposal = ManifestProposal(
            commit, chain, tuple(uploaded), NO_SEGMENTS, retired, attempt.keys, state
        )
        context.probe(CommitStep.PROPOSED, tip)
        await self._settle(self._proposal)
        if failure is not None:
            self.begun.append(Task.COPY)
            raise failure

    def _is_commit_full(self, uploaded: Sequence[SegmentEntry]) -> bool:
        is_large = sum(one.size for one in uploaded) >= self._context.settings.commit_bytes
        return self.is_deposed or is_large or self._copy_throttle_ms() > 0

    def _copy_throttle_ms(self) -> int:
        """Return how long ``remote.log.manager.copy.max.bytes.per.second`` delays the next copy."""
        return self._context.copy_rate.wait_ms(self._context.clock.monotonic_ms())

    async def _upload(
        self, copy: Copy[SegmentSpan], leader_epoch: int, attempt: ArchiveAttempt
    ) -> SegmentEntry:
        """Upload one object. An object that fails was never proposed, and is deleted after the grace."""
        context, tip = self._context, self.partition.tip
        segment = self.partition.log.sealed.describe(copy.segment.base_offset)
        identity = identity_of(tip, copy, leader_epoch, context.cluster_id, context.new_uuid())
        alone = ArchiveAttempt(context.eraser, self._check_led)
        alone.writes(identity.key)
        context.copy_rate.spend(copy.segment.size, context.clock.monotonic_ms())
        state = move(SegmentState.PLANNED, SegmentState.UPLOADING)
        try:
            context.probe(CommitStep.BEFORE_UPLOAD, tip)
            entry = await context.pool.watch(
                lambda progress: copy_segment(
                    context.store,
                    Copy(segment, copy.from_offset),
                    identity,
                    self._register_upload(progress),
                    context.settings.block_bytes,
                    context.stamps(),
                )
            )
            move(state, SegmentState.UPLOADED)
            context.probe(CommitStep.UPLOADED, tip)
        except (StorageError, CorruptionError):
            move(state, SegmentState.ABANDONED)
            alone.failed(tip, self._grace_over())
            raise
        attempt.keys += alone.keys
        return entry

    def _register_upload(self, progress: CallProgress) -> CallProgress:
        """Remember the progress of an upload that begins, so that `depose` can cancel it. Runs on an offload
        thread."""
        self._upload_progress = progress
        self._check_led()
        return progress

    def _load(self, entry: CatalogEntry) -> Chain:
        """Return the committed manifest, checked against the catalog. Runs on an offload thread."""
        return next_version.load(self._context.chains, self.partition.tip, entry)

    def _doubt_head(self, error: FirnError) -> None:
        """Have HEAD compared again where it was not the published one."""
        self._is_head_doubtful = self._is_head_doubtful or isinstance(error, HeadMoved)

    # -- commit, HEAD, callback ------------------------------------------------------------------------------

    async def _settle(self, proposal: ManifestProposal) -> None:
        context, tip = self._context, self.partition.tip
        if self.begun[-1] is not Task.PUBLISH:
            self.begun.append(Task.PUBLISH)
        self._check_led()
        if proposal.state is SegmentState.PROPOSED:
            result = await context.commits.commit(proposal.commit)
            if result is not CatalogResult.COMMITTED:
                self._refused(proposal, result)
            proposal.state = move(proposal.state, SegmentState.COMMITTED)
            context.probe(CommitStep.COMMITTED, tip)
        entry = proposal.commit.entry
        if self._known is None or entry.version >= self._known.version:
            self._known = entry
        is_newest = self._entry() == entry
        if is_newest:
            await self._publish(entry, proposal.chain)
            context.probe(CommitStep.HEAD_WRITTEN, tip)
        # Otherwise another leader has committed a later version meanwhile, and HEAD is its to write.
        proposal.state = move(proposal.state, SegmentState.PUBLISHED)
        self._proposal = None
        self._count_commit(proposal, is_newest)

    def _refused(self, proposal: ManifestProposal, result: CatalogResult) -> None:
        """Drop the proposal and raise `CommitRefused`.

        Nothing is deleted here: an earlier call whose answer was lost may have committed, and later versions
        may name these objects. The sweeper decides by the chain.
        """
        proposal.state = move(proposal.state, SegmentState.ABANDONED)
        self._proposal = None
        self._context.eraser.release(proposal.written)
        if self.begun[-2] is not Task.PLAN:
            self.begun.pop()  # nothing to publish: the proposing task failed
        if result is CatalogResult.FENCED:
            self._context.metrics.fenced_commits += 1
        raise CommitRefused(f"commit of {proposal.commit.entry.manifest_key}: {result.value}")

    def _count_commit(self, proposal: ManifestProposal, is_newest: bool) -> None:
        context, metrics = self._context, self._context.metrics
        context.eraser.release(proposal.written)
        if is_newest:
            context.eraser.schedule(self.partition.tip, proposal.retired, self._grace_over())
        metrics.manifests_written += 1
        metrics.segments_copied += len(proposal.copied)
        metrics.bytes_copied += sum(segment.size for segment in proposal.copied)
        metrics.segments_dropped += proposal.dropped.segments
        metrics.bytes_dropped += proposal.dropped.bytes

    def _report_published(self, entry: CatalogEntry) -> None:
        if self._known is not None and entry.version < self._known.version:
            return
        self.published = entry
        self.partition.archive.remote_committed(entry)
        self._context.probe(CommitStep.PUBLISHED, self.partition.tip)

    # -- HEAD ------------------------------------------------------------------------------------------------

    async def _compare_head(self, entry: CatalogEntry | None) -> None:
        """Compare HEAD with our entry, and report the result to the partition."""
        seen = await self._context.pool.run(self._context.chains.read_head, self.partition.tip)
        self._check_led()
        verdict = verdict_on(entry, seen)
        self._is_head_doubtful = False
        pause_ms = self._context.settings.heads_interval_ms
        if not self._has_compared:
            # At start all HEADs are compared at once; later comparisons are spread over the interval.
            tip = self.partition.tip
            pause_ms -= hash((tip.topic_id, tip.partition)) % (pause_ms // 2 + 1)
        self._compare_due_ms = self._context.clock.monotonic_ms() + pause_ms
        self._compared_entry, self._has_compared = entry, True
        if verdict not in MAY_GO_ON:
            self._stop(verdict, entry, seen)
            return
        if self.stopped is not None:
            log.warning("%s: HEAD and metadata agree again", self.partition.tip)
            self.stopped = None
        self.partition.archive.head_judged(None)
        if verdict is HeadVerdict.EQUAL and entry is not None:
            self._report_published(entry)
        elif entry is not None and entry == self.published:
            self.published = None  # HEAD has to be written again

    def _stop(self, verdict: HeadVerdict, entry: CatalogEntry | None, seen: SeenHead) -> None:
        """Stop until HEAD or our metadata change: they have diverged."""
        why = problem(verdict, self.partition.tip, entry, seen.head)
        if why != self.stopped:
            log.error("%s", why)
        self.stopped = why
        self.partition.archive.head_judged(why)

    async def _publish(self, entry: CatalogEntry, chain: Chain | None) -> None:
        """Have HEAD name `entry`; where `chain` is not given, check first that its manifest still exists."""
        context, tip = self._context, self.partition.tip
        seen = await context.pool.run(context.chains.read_head, tip)
        self._check_led()
        verdict = verdict_on(entry, seen)
        if verdict not in MAY_GO_ON:
            self._stop(verdict, entry, seen)
            raise HeadMoved(f"HEAD of {tip} is not ours to write")
        if verdict is HeadVerdict.OURS_NEWER:
            if chain is None:
                chain = await self._reload_manifest(entry)
                context.metrics.heads_repaired += 1
            # The last check may be long ago, as uploads take time; a process that has taken the prefix over
            # since sweeps by HEAD.
            await context.fence.check(context.settings.fence_age_ms)
            self._check_led()
            await context.pool.run(context.chains.write_head, seen, chain.head)
            self._check_led()
        self._report_published(entry)

    async def _reload_manifest(self, entry: CatalogEntry) -> Chain:
        """Read the committed manifest without the cache: HEAD was rolled back, so the bucket may have lost
        the manifest, too."""
        context = self._context
        context.chains.forget(entry.manifest_key)
        try:
            return await context.pool.run(self._load, entry)
        except CorruptionError as e:
            self.partition.archive.head_judged(str(e))
            raise

    # -- expire ----------------------------------------------------------------------------------------------

    async def _expire(self, entry: CatalogEntry) -> None:
        """Drop what has expired; where nothing has, remember the oldest segment."""
        context, tip = self._context, self.partition.tip
        leader_epoch = self._epoch
        aging = self._expiry.aging(entry)
        takes_all = self._expiry.takes_all(entry)
        if takes_all:
            gives_up = self.partition.config.gives_up_archive
            start: int | None = EVERYTHING if gives_up else entry.end_offset
        else:
            start, self._expiry.oldest = await context.pool.run(
                lambda: find_expired(context, tip, entry, self._load(entry), aging)
            )
        if start is None:
            return
        attempt = ArchiveAttempt(context.eraser, self._check_led)
        try:
            self._check_led()
            chain, commit, gone = await context.pool.run(
                lambda: next_version.drop(
                    context.chains, tip, entry, start, leader_epoch, attempt.writes, takes_all=takes_all
                )
            )
        except (StorageError, CorruptionError) as e:
            attempt.failed(tip, self._grace_over())
            self._doubt_head(e)
            raise
        self._expiry.oldest = None
        left = commit.entry
        self._proposal = ManifestProposal(
            commit=commit,
            chain=chain,
            copied=(),
            dropped=SegmentTotals(entry.segments - left.segments, entry.size_bytes - left.size_bytes),
            retired=(entry.manifest_key, *gone),
            written=attempt.keys,
            state=SegmentState.PROPOSED,
        )
        context.probe(CommitStep.PROPOSED, tip)
        await self._settle(self._proposal)

    def _grace_over(self) -> int:
        return self._context.clock.monotonic_ms() + self._context.settings.grace_ms
