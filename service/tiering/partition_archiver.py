"""The tiering work of one partition: one task at a time (`tasks.Task`), each safe to be cut off anywhere.

    COMPARE_HEAD  at start, now and then, and after a change by others: HEAD must name the committed manifest
    PUBLISH       a proposal that is not answered yet: ask again, then HEAD, then tell the partition
    EXPIRE        drop what total retention no longer keeps: manifest, commit, HEAD; objects go after a grace
    COPY          objects, manifest, commit, HEAD; only then does the partition hear that its bytes are remote

Each is tried again by itself after a failure: expiry that fails leaves copies their turn, and the other way
round. The first two come before anything else, because whatever is committed replaces what HEAD names.

Where several segments wait, their objects are uploaded one after the other and go with one manifest: up to
`TieringSettings.commit_segments`, and no further upload is begun once `commit_bytes` are there. If one fails,
those before it are committed.

Nothing is written while HEAD says something else than our metadata (`judgement`): the first look comes
before anything else, and each manifest is made from a HEAD that was read right before. What is committed is
told by the catalog alone. Everything before the commit may be lost or repeated: it leaves orphans behind,
never damage. Everything after it is done again until it succeeds, here or after the next start. Owned by
the event loop; whatever blocks runs on the offload pool.
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
from service.tiering.aging import look_for_expired
from service.tiering.archive_attempt import (
    NOTHING,
    Attempt,
    CommitRefused,
    Deposed,
    Proposal,
    Sum,
    Tools,
    identity_of,
)
from service.tiering.chain import HeadMoved, SeenHead, verdict_on
from service.tiering.copier import Progress, copy_segment
from service.tiering.expiry import EVERYTHING
from service.tiering.expiry_watch import ExpiryWatch
from service.tiering.head_check import MAY_GO_ON, Verdict, problem
from service.tiering.lifecycle import SegmentState, move
from service.tiering.metrics import note
from service.tiering.planner import Copy, CopyPlan, SegmentSpan, plan_copies, priority, priority_after_failure
from service.tiering.ports import TieredPartition
from service.tiering.steps import Step
from service.tiering.tasks import Failure, Retries, Task
from service.tiering.work_queue import Priority

log = logging.getLogger(__name__)

MAINTENANCE: Priority = (0, 0, 0)
"""Settling, publishing and expiry are short and go before any upload."""


class _Ready(NamedTuple):
    """A task that has something to do, and how pressing it is."""

    priority: Priority
    task: Task

    def after(self, failure: Failure) -> _Ready:
        """The task as pressing as it is after it failed."""
        return _Ready(priority_after_failure(self.priority, failure.wall_ms), self.task)


def _pressing(one: _Ready) -> Priority:
    return one.priority


class PartitionWork:
    """State between two tasks. Nothing here survives a restart, and nothing here must."""

    def __init__(self, partition: TieredPartition, tools: Tools) -> None:
        self.partition = partition
        self.retries = Retries()
        self.begun: list[Task] = []
        """the tasks of the last turn in order: all but the last one came to their end"""
        self.published: CatalogEntry | None = None
        self.stopped: str | None = None
        """why nothing of this partition is written or deleted: HEAD and our metadata are of two pasts"""
        self.due_ms: int | None = None
        """when there may be something to do although nothing is told of; None: never"""
        self.is_gone = False
        """this node does not lead the partition any more: nothing further is begun"""
        self._tools = tools
        self._epoch = partition.leader_epoch
        """the leader epoch in which the unit of work under way was begun"""
        self._upload_progress: Progress | None = None
        self._known: CatalogEntry | None = None
        self._proposal: Proposal | None = None
        self._expiry = ExpiryWatch(partition, tools)
        self._lag = (0, 0)
        self._is_head_doubtful = True
        self._look_due_ms = 0
        self._looked: CatalogEntry | None = None
        self._has_looked = False

    def assess(self) -> Priority | None:
        """Whether there is something to do now, and how pressing it is; otherwise `due_ms` is right.

        Also refreshes what the metrics say of this partition. `StorageError` where the log is offline.
        """
        entry = self._entry()
        plan = self._plan(entry)
        self._count(plan)
        must_look = self._must_look(entry)
        self.due_ms = self._look_due_ms if self._is_watched(entry) and not must_look else None
        ready = self._ready(entry, plan)
        if not ready and not must_look and self.stopped is None and self._tools.fence.may_write:
            self._note_due(entry, plan)
        return min(map(_pressing, ready), default=None)

    def _ready(self, entry: CatalogEntry | None, plan: CopyPlan[SegmentSpan]) -> list[_Ready]:
        """The tasks that may be done now; `due_ms` is no later than when one that waits may be."""
        ready: list[_Ready] = []
        now_ms = self._tools.clock.monotonic_ms()
        for one in self._open(entry, plan):
            failure = self.retries.get(one.task)
            if failure is None:
                ready.append(one)
            elif failure.not_before_ms <= now_ms:
                ready.append(one.after(failure))
            else:
                self.due_ms = min(failure.not_before_ms, self.due_ms or failure.not_before_ms)
        return ready

    def _open(self, entry: CatalogEntry | None, plan: CopyPlan[SegmentSpan]) -> Iterator[_Ready]:
        """The tasks that have something to do, those alone that others wait for where there are such."""
        if self._must_look(entry):
            yield _Ready(MAINTENANCE, Task.COMPARE_HEAD)
            return
        if self.stopped is not None or not self._tools.fence.may_write:
            return
        if self._proposal is not None or self._is_unpublished(entry):
            yield _Ready(MAINTENANCE, Task.PUBLISH)
            # HEAD need not name a manifest again that is gone, where the next one names nothing of it.
            is_lost = self._proposal is None and self.retries.get(Task.PUBLISH) is not None
            if entry is None or not is_lost or not self._expiry.takes_all(entry):
                return
            if entry.segments:
                yield _Ready(MAINTENANCE, Task.EXPIRE)
                return
        if self._expiry.may_expire(entry):
            yield _Ready(MAINTENANCE, Task.EXPIRE)
        sealed_at_ms = self._sealed_at_ms(plan)
        if sealed_at_ms is not None and not self._copies_wait_ms():
            is_hurried = self._tools.hurries(self.partition.tip)
            yield _Ready(priority(plan, sealed_at_ms, is_hurried=is_hurried), Task.COPY)

    def _sealed_at_ms(self, plan: CopyPlan[SegmentSpan]) -> int | None:
        """When the oldest segment that can be copied was sealed, None for none."""
        if not plan.copies:
            return None
        return self.partition.log.sealed.sealed_at_ms(plan.copies[0].segment.base_offset)

    def _count(self, plan: CopyPlan[SegmentSpan]) -> None:
        """Tell the metrics."""
        metrics, tip = self._tools.metrics, self.partition.tip
        metrics.lag_segments += plan.lag_segments - self._lag[0]
        metrics.lag_bytes += plan.lag_bytes - self._lag[1]
        self._lag = plan.lag_segments, plan.lag_bytes
        note(metrics.blocked, tip, plan.blocked)
        note(metrics.stopped, tip, self.stopped)
        reason = self.stopped or plan.blocked or self.retries.reason
        if reason is None and plan.copies and not self._tools.fence.may_write:
            reason = self._tools.fence.displaced or "the prefix was not taken over yet"
        elif reason is None and plan.copies and self._copies_wait_ms():
            reason = "remote.log.manager.copy.max.bytes.per.second is reached"
        note(metrics.reasons, tip, reason)
        note(metrics.waiting, tip, self._sealed_at_ms(plan))

    def _note_due(self, entry: CatalogEntry | None, plan: CopyPlan[SegmentSpan]) -> None:
        """There is nothing to do now: `due_ms` is when that may change without anybody telling, at the latest
        when it was before."""
        tools = self._tools
        now_ms = tools.clock.monotonic_ms()
        due = [] if self.due_ms is None else [self.due_ms]
        if plan.copies and (wait_ms := self._copies_wait_ms()):
            due.append(now_ms + wait_ms)
        if plan.blocked is not None or self._is_held_back(entry):
            due.append(now_ms + tools.settings.interval_ms)
        due += self._expiry.due_ms(entry)
        self.due_ms = min(due, default=None)

    def _is_held_back(self, entry: CatalogEntry | None) -> bool:
        """Whether segments are sealed that may not go before the high watermark has passed them."""
        if not self._is_copied:
            return False
        partition = self.partition
        end_offset = entry.end_offset if entry is not None else 0
        return bool(partition.log.sealed.spans(max(end_offset, self._limit), 1))

    async def turn(self) -> None:
        """Do the most pressing task of those that do not wait after a failure.

        Raises `StorageError` or `CorruptionError` when it failed, `Deposed` when this node does not lead any
        more; the last one `begun` is the one that failed, and the state says what is left to do.
        """
        self.begun = [Task.PLAN]
        entry, self._epoch = self._entry(), self.partition.leader_epoch
        self._check_led()
        plan = self._plan(entry)
        ready = self._ready(entry, plan)
        if not ready:
            return
        task = min(ready, key=_pressing).task
        self.begun.append(task)
        if task is Task.COMPARE_HEAD:
            await self._look(entry)
            return
        await self._tools.fence.check(self._tools.settings.fence_age_ms)
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
        """This node does not lead the partition any more: what is under way ends before its next effect."""
        self.is_gone = True
        if self._upload_progress is not None:
            self._upload_progress.cancelled = True

    def _check_led(self) -> None:
        """Before each effect, from offload threads too. `Deposed`."""
        if self.is_gone or self.partition.leader_epoch != self._epoch:
            raise Deposed(f"{self.partition.tip} is led by another, or in another epoch than {self._epoch}")

    def abandon(self) -> None:
        """This node leads the partition no more. What was proposed is for the next leader's chain to tell."""
        metrics, tip = self._tools.metrics, self.partition.tip
        metrics.lag_segments -= self._lag[0]
        metrics.lag_bytes -= self._lag[1]
        self._lag = (0, 0)
        for notes in (metrics.blocked, metrics.stopped, metrics.reasons, metrics.waiting):
            notes.pop(tip, None)
        for task in Task:
            metrics.failing.pop((task, tip), None)
        if self._proposal is not None:
            self._tools.eraser.release(self._proposal.written)
            self._proposal = None

    def _entry(self) -> CatalogEntry | None:
        """The newest committed entry that is known here; the image may lag behind our own commits."""
        tip = self.partition.tip
        entry = self._tools.catalog.entry(tip.topic_id, tip.partition)
        if entry is not None and (self._known is None or entry.version > self._known.version):
            self._known = entry
        return self._known

    @property
    def is_to_be_looked_at(self) -> bool:
        """Whether the next unit of work is to compare HEAD with our entry."""
        return self._must_look(self._entry())

    @property
    def was_looked_at(self) -> bool:
        """Whether HEAD has been compared with our entry since the start, where there can be one."""
        return self._has_looked or not self._is_tiered(self._entry())

    def _must_look(self, entry: CatalogEntry | None) -> bool:
        """A change by others, as the image tells it, calls for another look; our own commits do not."""
        if not self._is_tiered(entry):
            return False
        is_news = self._proposal is None and entry not in (self._looked, self.published)
        is_due = self._is_watched(entry) and self._tools.clock.monotonic_ms() >= self._look_due_ms
        return self._is_head_doubtful or is_news or is_due

    def _is_tiered(self, entry: CatalogEntry | None) -> bool:
        return entry is not None or self.partition.config.remote_storage_enable

    def _is_watched(self, entry: CatalogEntry | None) -> bool:
        """Whether HEAD is looked at now and then. Where none was written yet, the first commit looks."""
        return entry is not None or self.stopped is not None

    def _is_unpublished(self, entry: CatalogEntry | None) -> bool:
        return entry is not None and entry != self.published

    @property
    def _is_copied(self) -> bool:
        config = self.partition.config
        return config.remote_storage_enable and not config.remote_log_copy_disable

    @property
    def _limit(self) -> int:
        """The end of what can never be truncated again."""
        return min(self.partition.high_watermark, self.partition.last_stable_offset)

    def _plan(self, entry: CatalogEntry | None) -> CopyPlan[SegmentSpan]:
        """What goes with the next commit, and the whole lag."""
        if not self._is_copied:
            return CopyPlan((), 0, 0, None)
        start, end = (entry.start_offset, entry.end_offset) if entry is not None else (0, 0)
        log = self.partition.log
        floor = max(end, log.log_start_offset) if start == end else end
        plan = plan_copies(
            log.sealed.spans(floor, self._tools.settings.commit_segments),
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
        tools, tip = self._tools, self.partition.tip
        leader_epoch = self._epoch
        attempt = Attempt(tools.eraser, self._check_led)
        uploaded: list[SegmentEntry] = []
        failure: FirnError | None = None
        for copy in copies:
            if uploaded and self._is_enough(uploaded):
                break
            try:
                uploaded.append(await self._upload(copy, leader_epoch, attempt))
            except (StorageError, CorruptionError) as e:
                if not uploaded:
                    raise
                failure = e
                break
        try:
            chain, commit = await tools.pool.run(
                lambda: next_version.append(
                    tools.chains, tip, entry, tuple(uploaded), leader_epoch, attempt.writes
                )
            )
        except (StorageError, CorruptionError) as e:
            attempt.failed(tip, self._grace_over())
            self._doubt_head(e)
            raise
        retired = (entry.manifest_key,) if entry is not None else ()
        state = move(SegmentState.UPLOADED, SegmentState.PROPOSED)
        self._proposal = Proposal(commit, chain, tuple(uploaded), NOTHING, retired, attempt.keys, state)
        tools.probe(Step.PROPOSED, tip)
        await self._settle(self._proposal)
        if failure is not None:
            self.begun.append(Task.COPY)
            raise failure

    def _is_enough(self, uploaded: Sequence[SegmentEntry]) -> bool:
        is_large = sum(one.size for one in uploaded) >= self._tools.settings.commit_bytes
        return self.is_gone or is_large or self._copies_wait_ms() > 0

    def _copies_wait_ms(self) -> int:
        """How long ``remote.log.manager.copy.max.bytes.per.second`` has the next copy wait."""
        return self._tools.copy_rate.wait_ms(self._tools.clock.monotonic_ms())

    async def _upload(self, copy: Copy[SegmentSpan], leader_epoch: int, attempt: Attempt) -> SegmentEntry:
        """One object. What fails was never proposed, and may go after the grace."""
        tools, tip = self._tools, self.partition.tip
        segment = self.partition.log.sealed.describe(copy.segment.base_offset)
        identity = identity_of(tip, copy, leader_epoch, tools.cluster_id, tools.new_uuid())
        alone = Attempt(tools.eraser, self._check_led)
        alone.writes(identity.key)
        tools.copy_rate.spend(copy.segment.size, tools.clock.monotonic_ms())
        state = move(SegmentState.PLANNED, SegmentState.UPLOADING)
        try:
            tools.probe(Step.BEFORE_UPLOAD, tip)
            entry = await tools.pool.watch(
                lambda progress: copy_segment(
                    tools.store,
                    Copy(segment, copy.from_offset),
                    identity,
                    self._watched(progress),
                    tools.settings.block_bytes,
                    tools.stamps(),
                )
            )
            move(state, SegmentState.UPLOADED)
            tools.probe(Step.UPLOADED, tip)
        except (StorageError, CorruptionError):
            move(state, SegmentState.ABANDONED)
            alone.failed(tip, self._grace_over())
            raise
        attempt.keys += alone.keys
        return entry

    def _watched(self, progress: Progress) -> Progress:
        """On an offload thread: an upload that begins, which `depose` ends."""
        self._upload_progress = progress
        self._check_led()
        return progress

    def _load(self, entry: CatalogEntry) -> Chain:
        """On an offload thread: the committed manifest, which must be what the catalog says."""
        return next_version.load(self._tools.chains, self.partition.tip, entry)

    def _doubt_head(self, error: FirnError) -> None:
        """HEAD is looked at again where it was not what was published."""
        self._is_head_doubtful = self._is_head_doubtful or isinstance(error, HeadMoved)

    # -- commit, HEAD, callback ------------------------------------------------------------------------------

    async def _settle(self, proposal: Proposal) -> None:
        tools, tip = self._tools, self.partition.tip
        if self.begun[-1] is not Task.PUBLISH:
            self.begun.append(Task.PUBLISH)
        self._check_led()
        if proposal.state is SegmentState.PROPOSED:
            result = await tools.commits.commit(proposal.commit)
            if result is not CatalogResult.COMMITTED:
                self._refused(proposal, result)
            proposal.state = move(proposal.state, SegmentState.COMMITTED)
            tools.probe(Step.COMMITTED, tip)
        entry = proposal.commit.entry
        if self._known is None or entry.version >= self._known.version:
            self._known = entry
        is_newest = self._entry() == entry
        if is_newest:
            await self._publish(entry, proposal.chain)
            tools.probe(Step.HEAD_WRITTEN, tip)
        # Otherwise somebody has committed a later version meanwhile, and HEAD is theirs.
        proposal.state = move(proposal.state, SegmentState.PUBLISHED)
        self._proposal = None
        self._account(proposal, is_newest)

    def _refused(self, proposal: Proposal, result: CatalogResult) -> None:
        """Nothing is deleted here: an earlier call whose answer was lost may have committed, and later
        versions may name these objects. The sweeper looks at the chain and knows."""
        proposal.state = move(proposal.state, SegmentState.ABANDONED)
        self._proposal = None
        self._tools.eraser.release(proposal.written)
        if self.begun[-2] is not Task.PLAN:
            self.begun.pop()  # there is nothing to publish: the task that proposed it waits
        if result is CatalogResult.FENCED:
            self._tools.metrics.fenced_commits += 1
        raise CommitRefused(f"commit of {proposal.commit.entry.manifest_key}: {result.value}")

    def _account(self, proposal: Proposal, is_newest: bool) -> None:
        tools, metrics = self._tools, self._tools.metrics
        tools.eraser.release(proposal.written)
        if is_newest:
            tools.eraser.schedule(self.partition.tip, proposal.retired, self._grace_over())
        metrics.manifests_written += 1
        metrics.segments_copied += len(proposal.copied)
        metrics.bytes_copied += sum(segment.size for segment in proposal.copied)
        metrics.segments_dropped += proposal.dropped.segments
        metrics.bytes_dropped += proposal.dropped.bytes

    def _tell(self, entry: CatalogEntry) -> None:
        if self._known is not None and entry.version < self._known.version:
            return
        self.published = entry
        self.partition.remote_committed(entry)
        self._tools.probe(Step.PUBLISHED, self.partition.tip)

    # -- HEAD ------------------------------------------------------------------------------------------------

    async def _look(self, entry: CatalogEntry | None) -> None:
        """Compare HEAD with our entry, and let the partition know what that means for it."""
        seen = await self._tools.pool.run(self._tools.chains.look, self.partition.tip)
        self._check_led()
        verdict = verdict_on(entry, seen)
        self._is_head_doubtful = False
        pause_ms = self._tools.settings.heads_interval_ms
        if not self._has_looked:
            # All are looked at in one go at a start, and not in one go again and again.
            tip = self.partition.tip
            pause_ms -= hash((tip.topic_id, tip.partition)) % (pause_ms // 2 + 1)
        self._look_due_ms = self._tools.clock.monotonic_ms() + pause_ms
        self._looked, self._has_looked = entry, True
        if verdict not in MAY_GO_ON:
            self._stop(verdict, entry, seen)
            return
        if self.stopped is not None:
            log.warning("%s: HEAD and metadata agree again", self.partition.tip)
            self.stopped = None
        self.partition.head_judged(None)
        if verdict is Verdict.EQUAL and entry is not None:
            self._tell(entry)
        elif entry is not None and entry == self.published:
            self.published = None  # it is to be written again

    def _stop(self, verdict: Verdict, entry: CatalogEntry | None, seen: SeenHead) -> None:
        """Two pasts: do nothing more until HEAD or our metadata change."""
        why = problem(verdict, self.partition.tip, entry, seen.head)
        if why != self.stopped:
            log.error("%s", why)
        self.stopped = why
        self.partition.head_judged(why)

    async def _publish(self, entry: CatalogEntry, chain: Chain | None) -> None:
        """Have HEAD name `entry`; `chain` where it is at hand, otherwise its manifest is looked at first."""
        tools, tip = self._tools, self.partition.tip
        seen = await tools.pool.run(tools.chains.look, tip)
        self._check_led()
        verdict = verdict_on(entry, seen)
        if verdict not in MAY_GO_ON:
            self._stop(verdict, entry, seen)
            raise HeadMoved(f"HEAD of {tip} is not ours to write")
        if verdict is Verdict.OURS_NEWER:
            if chain is None:
                chain = await self._still_there(entry)
                tools.metrics.heads_repaired += 1
            # Long ago, maybe, as uploads take their time; and whoever took the prefix over sweeps by HEAD.
            await tools.fence.check(tools.settings.fence_age_ms)
            self._check_led()
            await tools.pool.run(tools.chains.write_head, seen, chain.head)
            self._check_led()
        self._tell(entry)

    async def _still_there(self, entry: CatalogEntry) -> Chain:
        """The committed manifest, read anew: HEAD lost what it said, so the bucket may have lost more."""
        tools = self._tools
        tools.chains.forget(entry.manifest_key)
        try:
            return await tools.pool.run(self._load, entry)
        except CorruptionError as e:
            self.partition.head_judged(str(e))
            raise

    # -- expire ----------------------------------------------------------------------------------------------

    async def _expire(self, entry: CatalogEntry) -> None:
        """Drop what has expired; where nothing has, the oldest segment is known from now on."""
        tools, tip = self._tools, self.partition.tip
        leader_epoch = self._epoch
        aging = self._expiry.aging(entry)
        takes_all = self._expiry.takes_all(entry)
        if takes_all:
            gives_up = self.partition.config.gives_up_archive
            start: int | None = EVERYTHING if gives_up else entry.end_offset
        else:
            start, self._expiry.oldest = await tools.pool.run(
                lambda: look_for_expired(tools, tip, entry, self._load(entry), aging)
            )
        if start is None:
            return
        attempt = Attempt(tools.eraser, self._check_led)
        try:
            self._check_led()
            chain, commit, gone = await tools.pool.run(
                lambda: next_version.drop(
                    tools.chains, tip, entry, start, leader_epoch, attempt.writes, takes_all=takes_all
                )
            )
        except (StorageError, CorruptionError) as e:
            attempt.failed(tip, self._grace_over())
            self._doubt_head(e)
            raise
        self._expiry.oldest = None
        left = commit.entry
        self._proposal = Proposal(
            commit=commit,
            chain=chain,
            copied=(),
            dropped=Sum(entry.segments - left.segments, entry.size_bytes - left.size_bytes),
            retired=(entry.manifest_key, *gone),
            written=attempt.keys,
            state=SegmentState.PROPOSED,
        )
        tools.probe(Step.PROPOSED, tip)
        await self._settle(self._proposal)

    def _grace_over(self) -> int:
        return self._tools.clock.monotonic_ms() + self._tools.settings.grace_ms
