"""Committed entry of one partition, and HEAD, which names it: compare them, and write HEAD.

HEAD is compared at start, at intervals, and after a change by others. Nothing is written while HEAD and our
metadata have diverged (`head_check`). Owned by the event loop; whatever blocks runs on the offload pool.
"""

from __future__ import annotations

import logging

from service.base.errors import CorruptionError
from service.remote.catalog import CatalogEntry
from service.remote.reading.object_reader import Chain
from service.tiering import next_version
from service.tiering.archive_attempt import LeaderTerm, TieringContext
from service.tiering.chain import HeadMoved, SeenHead, verdict_on
from service.tiering.head_check import MAY_GO_ON, HeadVerdict, problem
from service.tiering.ports import TieredPartition
from service.tiering.steps import CommitStep

log = logging.getLogger(__name__)


class PartitionHead:
    """HEAD of one partition, as compared and written by this process."""

    def __init__(self, partition: TieredPartition, context: TieringContext, term: LeaderTerm) -> None:
        self.published: CatalogEntry | None = None
        self.stopped: str | None = None
        """why nothing of this partition is written or deleted: HEAD and our metadata have diverged"""
        self.is_doubtful = True
        """HEAD has to be compared before anything else"""
        self.compare_due_ms = 0
        self._partition = partition
        self._context = context
        self._term = term
        self._known: CatalogEntry | None = None
        self._compared: CatalogEntry | None = None
        self._has_compared = False

    def entry(self) -> CatalogEntry | None:
        """Return the newest committed entry known here; the image may lag behind our own commits."""
        tip = self._partition.tip
        entry = self._context.catalog.entry(tip.topic_id, tip.partition)
        if entry is not None:
            self.committed(entry)
        return self._known

    def committed(self, entry: CatalogEntry) -> None:
        """Record a committed entry."""
        if self._known is None or entry.version > self._known.version:
            self._known = entry

    @property
    def has_compared(self) -> bool:
        """True once HEAD was compared with our entry since the start, or there can be no HEAD."""
        return self._has_compared or not self._is_tiered(self.entry())

    def must_compare(self, entry: CatalogEntry | None, *, is_proposed: bool) -> bool:
        """Return whether HEAD has to be compared: after a change by others, but not after our own commits,
        and at intervals. `is_proposed`: a commit of ours may have changed `entry`."""
        if not self._is_tiered(entry):
            return False
        is_news = not is_proposed and entry not in (self._compared, self.published)
        now_ms = self._context.clock.monotonic_ms()
        is_due = self.is_compared_regularly(entry) and now_ms >= self.compare_due_ms
        return self.is_doubtful or is_news or is_due

    def is_compared_regularly(self, entry: CatalogEntry | None) -> bool:
        """Return whether HEAD is compared at intervals. Where there was no HEAD yet, the first commit
        compares it."""
        return entry is not None or self.stopped is not None

    def _is_tiered(self, entry: CatalogEntry | None) -> bool:
        return entry is not None or self._partition.config.remote_storage_enable

    async def compare(self, entry: CatalogEntry | None) -> None:
        """Compare HEAD with our entry, and report the result to the partition."""
        seen = await self._context.pool.run(self._context.chains.read_head, self._partition.tip)
        self._term.check()
        verdict = verdict_on(entry, seen)
        self.is_doubtful = False
        pause_ms = self._context.settings.heads_interval_ms
        if not self._has_compared:
            # At start all HEADs are compared at once; later comparisons are spread over the interval.
            tip = self._partition.tip
            pause_ms -= hash((tip.topic_id, tip.partition)) % (pause_ms // 2 + 1)
        self.compare_due_ms = self._context.clock.monotonic_ms() + pause_ms
        self._compared, self._has_compared = entry, True
        if verdict not in MAY_GO_ON:
            self._stop(verdict, entry, seen)
            return
        if self.stopped is not None:
            log.warning("%s: HEAD and metadata agree again", self._partition.tip)
            self.stopped = None
        self._partition.archive.head_judged(None)
        if verdict is HeadVerdict.EQUAL and entry is not None:
            self._report_published(entry)
        elif entry is not None and entry == self.published:
            self.published = None  # HEAD has to be written again

    async def publish(self, entry: CatalogEntry, chain: Chain | None) -> None:
        """Have HEAD name `entry`; where `chain` is not given, check first that its manifest still exists."""
        context, tip = self._context, self._partition.tip
        seen = await context.pool.run(context.chains.read_head, tip)
        seen_ms = context.clock.monotonic_ms()
        self._term.check()
        verdict = verdict_on(entry, seen)
        if verdict not in MAY_GO_ON:
            self._stop(verdict, entry, seen)
            raise HeadMoved(f"HEAD of {tip} is not ours to write")
        if verdict is HeadVerdict.OURS_NEWER:
            if chain is None:
                chain = await self._reload_manifest(entry)
                context.metrics.heads_repaired += 1
            await self._check_fence(seen, seen_ms)
            self._term.check()
            await context.pool.run(context.chains.write_head, seen, chain.head)
            self._term.check()
        self._report_published(entry)

    async def _check_fence(self, seen: SeenHead, seen_ms: int) -> None:
        """Raise unless this process may replace `seen`, as it was read at `seen_ms`.

        A cluster that is restored from this one writes every HEAD again once it has the prefix, often one
        that names the manifest of before (invariant T21). So a HEAD that another process has written is
        replaced only if the fence was checked after it was read. For one of our own the last check may be
        older, as uploads take time; a process that has taken the prefix over since sweeps by HEAD.
        """
        context = self._context
        stamp = seen.head.stamp if seen.head is not None else None
        is_own = stamp is not None and stamp.writer == context.stamps().writer
        max_age_ms = context.clock.monotonic_ms() - seen_ms
        await context.fence.check(context.settings.fence_age_ms if is_own else max_age_ms)

    async def _reload_manifest(self, entry: CatalogEntry) -> Chain:
        """Read the committed manifest without the cache: HEAD was rolled back, so the bucket may have lost
        the manifest, too."""
        context = self._context
        context.chains.forget(entry.manifest_key)
        try:
            return await context.pool.run(next_version.load, context.chains, self._partition.tip, entry)
        except CorruptionError as e:
            self._partition.archive.head_judged(str(e))
            raise

    def _stop(self, verdict: HeadVerdict, entry: CatalogEntry | None, seen: SeenHead) -> None:
        """Stop until HEAD or our metadata change: they have diverged."""
        why = problem(verdict, self._partition.tip, entry, seen.head)
        if why != self.stopped:
            log.error("%s", why)
        self.stopped = why
        self._partition.archive.head_judged(why)

    def _report_published(self, entry: CatalogEntry) -> None:
        if self._known is not None and entry.version < self._known.version:
            return
        self.published = entry
        self._partition.archive.remote_committed(entry)
        self._context.probe(CommitStep.PUBLISHED, self._partition.tip)
