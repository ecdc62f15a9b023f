"""Publication of rewritten runs of one partition, by its leader, in its line of tasks.

A report waits here until the partition's archiver runs `Task.REWRITE`. Then everything is checked that a
worker may have wrong: the intent is the image's and of this leader's epoch, the chain has the run's
objects *now*, each new object is in the bucket and was made for this intent (`report_check`), and a sample of
what another process has made is sound (`sample_check`). What cannot be
published is refused, and its task is over; a store that does not answer is asked again a few times, then
the worker is told and plans again: it does not wait for one partition while others could be rewritten. The
proposal is settled as every other (`pending_commit`); its commit carries the intent's id and ends
it. Owned by the event loop; whatever blocks runs on the offload pool.
"""

from __future__ import annotations

import asyncio
from typing import Final

from service.base.errors import CorruptionError, StorageError
from service.remote.catalog import CatalogEntry, RewriteIntent, RewriteKind
from service.remote.format.segment_object import OpenSegment
from service.remote.reading.object_reader import open_footer
from service.remote.stores.errors import ObjectNotFound
from service.tiering import next_version
from service.tiering.archive_attempt import (
    ArchiveAttempt,
    CommitRefused,
    Deposed,
    LeaderTerm,
    ManifestProposal,
    TieringContext,
)
from service.tiering.copier import CallProgress
from service.tiering.lifecycle import SegmentState
from service.tiering.ports import TieredPartition
from service.tiering.rewriting.chain_units import run_at
from service.tiering.rewriting.report_check import (
    NotPublished,
    RewriteRefused,
    RewriteReport,
    check_object,
    check_report,
    check_rewritable,
)
from service.tiering.rewriting.rules import ChainRun
from service.tiering.rewriting.sample_check import SampleCheck

MOST_FAILURES: Final = 5
"""Failures in a row of a step of the partition that a report waits for."""


class _Waiting:
    """A report that is not published yet, and what tells its worker."""

    def __init__(self, report: RewriteReport) -> None:
        self.report = report
        self.run: ChainRun | None = None
        """what it replaces, once that was checked"""
        self.outcome: asyncio.Future[CatalogEntry] = asyncio.get_running_loop().create_future()

    def refuse(self, error: RewriteRefused | StorageError) -> None:
        if not self.outcome.done():
            self.outcome.set_exception(error)
            self.outcome.exception()  # a worker that has gone does not ask


class PartitionRewriting:
    """The report of one partition that waits to be published, at most one at a time."""

    def __init__(self, partition: TieredPartition, context: TieringContext, term: LeaderTerm) -> None:
        self._partition = partition
        self._context = context
        self._term = term
        self._waiting: _Waiting | None = None

    @property
    def waits(self) -> bool:
        """True while a report waits to be published."""
        return self._waiting is not None

    def failed(self, why: str, count: int = MOST_FAILURES) -> None:
        """Tell the worker that a step of the partition has failed `count` times in a row; often enough, it is
        not to wait any longer. What it has made may be proposed already, and is left to the sweeper."""
        if self._waiting is not None and count >= MOST_FAILURES:
            self._end(NotPublished(f"{self._partition.tip}: a rewritten run is not published: {why}"))

    def submit(self, report: RewriteReport) -> asyncio.Future[CatalogEntry]:
        """Have `report` published; the future has the entry that was committed. The same report again gives
        the same future.

        It raises `RewriteRefused` where it cannot be published, `NotPublished` where that fails for now,
        `Deposed` where this node does not lead any more, `CommitRefused` where the catalog has refused it.
        Raises `RewriteRefused` while another waits whose intent lives.
        """
        waiting, tip = self._waiting, self._partition.tip
        if waiting is not None and waiting.report.rewrite_id != report.rewrite_id:
            intent = self._context.catalog.rewrite(tip.topic_id, tip.partition)
            if intent is None or intent.rewrite_id != waiting.report.rewrite_id:
                self.withdraw(waiting.report.rewrite_id)
        if self._waiting is None:
            self._waiting = _Waiting(report)
        elif self._waiting.report != report:
            raise RewriteRefused(f"rewrite {self._waiting.report.rewrite_id} is being published")
        return self._waiting.outcome

    def withdraw(self, rewrite_id: object) -> None:
        """Forget the report, unless its proposal is under way: nobody waits for it any more."""
        waiting = self._waiting
        if waiting is not None and waiting.report.rewrite_id == rewrite_id:
            self._end(RewriteRefused("it was withdrawn"))

    def abandon(self) -> None:
        """Refuse what waits: this node does not lead the partition any more."""
        self._end(Deposed(f"{self._partition.tip} is led by another, or in another epoch"))

    def _end(self, error: RewriteRefused | StorageError) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.refuse(error)

    async def propose(self, entry: CatalogEntry | None) -> ManifestProposal | None:
        """Write the manifest in which the new objects replace the run's; None where the report is refused.

        Raises what the store raises, `CorruptionError` where the chain cannot be read, and `HeadMoved`.
        """
        waiting = self._waiting
        assert waiting is not None
        try:
            return await self._propose(entry, waiting)
        except RewriteRefused as e:
            self._context.metrics.rewrites.refused += 1
            self._end(e)
            return None

    async def _propose(self, entry: CatalogEntry | None, waiting: _Waiting) -> ManifestProposal:
        context, tip, report = self._context, self._partition.tip, waiting.report
        intent = self._intent(report)
        if entry is None:
            raise RewriteRefused(f"{tip} has no archive")
        committed = entry
        attempt = ArchiveAttempt(context.eraser, self._term)
        epoch = self._term.epoch

        def write(progress: CallProgress) -> next_version.Replacement:
            waiting.run = self._check(committed, intent, report, progress)
            return next_version.replace(
                context.chains, tip, committed, report.entries, epoch, attempt.writes, report.rewrite_id
            )

        try:
            self._term.check()
            chain, commit, gone = await context.pool.watch(write)
        except (StorageError, CorruptionError):
            attempt.failed(tip)
            raise
        return ManifestProposal(
            commit,
            chain,
            (committed.manifest_key, *gone),
            attempt.keys,
            ended=lambda state: self._settled(waiting, intent.kind, commit.entry, state),
        )

    def _intent(self, report: RewriteReport) -> RewriteIntent:
        tip = self._partition.tip
        intent = self._context.catalog.rewrite(tip.topic_id, tip.partition)
        if intent is None or intent.rewrite_id != report.rewrite_id:
            raise RewriteRefused(f"{tip} has no rewrite {report.rewrite_id} under way (any more)")
        if intent.leader_epoch != self._term.epoch:
            raise RewriteRefused(f"rewrite {report.rewrite_id} began in leader epoch {intent.leader_epoch}")
        return intent

    def _check(
        self, entry: CatalogEntry, intent: RewriteIntent, report: RewriteReport, progress: CallProgress
    ) -> ChainRun:
        """Return the run that it replaces. Raises `RewriteRefused` unless the report may be published. Runs
        on an offload thread."""
        context, tip = self._context, self._partition.tip
        manifest = next_version.load(context.chains, tip, entry).manifest
        run = run_at(tip, manifest, context.chains.loader(tip), intent.base_offset, intent.last_offset)
        check_rewritable(run)
        check_report(report, intent, run)
        opened = []
        for one in report.entries:
            progress.advance(1)
            try:
                footer = open_footer(context.store, one.key)
            except (ObjectNotFound, CorruptionError) as e:
                raise RewriteRefused(str(e)) from e
            check_object(one, footer, report, intent, context.cluster_id)
            opened.append(OpenSegment(one, footer))
        if report.is_from_outside:
            SampleCheck(context.store, run, intent.kind, progress).check(opened, context.new_uuid().int)
        return run

    def _settled(
        self, waiting: _Waiting, kind: RewriteKind, entry: CatalogEntry, state: SegmentState
    ) -> None:
        """Tell the worker how its proposal ended."""
        if self._waiting is waiting:
            self._waiting = None
        if state is SegmentState.PUBLISHED:
            self._count(waiting, kind)
            if not waiting.outcome.done():
                waiting.outcome.set_result(entry)
        elif state is SegmentState.ABANDONED:
            waiting.refuse(CommitRefused(f"the catalog refused version {entry.version}"))
        else:
            waiting.refuse(Deposed(f"{self._partition.tip} is led by another, or in another epoch"))

    def _count(self, waiting: _Waiting, kind: RewriteKind) -> None:
        metrics, run = self._context.metrics.rewrites, waiting.run
        assert run is not None
        metrics.runs[kind] += 1
        metrics.objects_before[kind] += len(run.entries)
        metrics.objects_after[kind] += len(waiting.report.entries)
        metrics.bytes_before[kind] += run.size
        metrics.bytes_after[kind] += sum(entry.size for entry in waiting.report.entries)
