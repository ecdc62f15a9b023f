"""Copies of one partition: which sealed segments go with the next commit; upload them, write their manifest.

Where several segments wait, their objects are uploaded one after the other and go with one manifest: up to
`TieringSettings.commit_segments`, and no further upload begins once `commit_bytes` are uploaded. If one
fails, those before it are proposed. Owned by the event loop; whatever blocks runs on the offload pool.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from service.base.errors import CorruptionError, FirnError, StorageError
from service.remote.catalog import CatalogEntry
from service.remote.format.manifest import SegmentEntry
from service.tiering import next_version
from service.tiering.archive_attempt import (
    ArchiveAttempt,
    LeaderTerm,
    ManifestProposal,
    TieringContext,
    identity_of,
)
from service.tiering.copier import CallProgress, copy_segment
from service.tiering.lifecycle import SegmentState, move
from service.tiering.planner import Copy, CopyPlan, SegmentSpan, plan_copies
from service.tiering.ports import TieredPartition
from service.tiering.steps import CommitStep
from service.tiering.transaction_proof import WrongRows

log = logging.getLogger(__name__)

_LATEST_MS: Final = 253_402_300_799_000


class BlockingTransaction(NamedTuple):
    """The oldest open transaction of a log; `last_timestamp` (ms) is that of its producer's newest record."""

    producer_id: int
    first_offset: int
    last_timestamp: int

    @property
    def reason(self) -> str:
        """Say what holds a partition back, as an operator reads it."""
        # Producers may write any timestamp, and the calendar ends.
        since = datetime.fromtimestamp(min(max(self.last_timestamp, 0), _LATEST_MS) / 1000, UTC)
        return (
            f"producer {self.producer_id} has left a transaction open since {since:%Y-%m-%d %H:%M:%S} UTC, "
            f"from offset {self.first_offset} on"
        )


class PartitionCopier:
    """Plans and uploads the segments of one partition; only the progress of an upload is state."""

    def __init__(self, partition: TieredPartition, context: TieringContext, term: LeaderTerm) -> None:
        self._partition = partition
        self._context = context
        self._term = term
        self._progress: CallProgress | None = None

    def cancel(self) -> None:
        """End the upload under way."""
        if self._progress is not None:
            self._progress.cancelled = True

    # -- plan ------------------------------------------------------------------------------------------------

    @property
    def _is_enabled(self) -> bool:
        config = self._partition.config
        return config.remote_storage_enable and not config.remote_log_copy_disable

    @property
    def _limit(self) -> int:
        """The end of what can never be truncated again."""
        return min(self._partition.high_watermark, self._partition.last_stable_offset)

    def plan(self, entry: CatalogEntry | None) -> CopyPlan[SegmentSpan]:
        """Return what goes with the next commit, and the whole lag."""
        if not self._is_enabled:
            return CopyPlan((), 0, 0, None)
        start, end = (entry.start_offset, entry.end_offset) if entry is not None else (0, 0)
        log = self._partition.log
        floor = max(end, log.log_start_offset) if start == end else end
        plan = plan_copies(
            log.sealed.spans(floor, self._context.settings.commit_segments),
            chain_start=start,
            chain_end=end,
            log_start_offset=log.log_start_offset,
            high_watermark=self._partition.high_watermark,
            last_stable_offset=self._partition.last_stable_offset,
        )
        if not plan.copies:
            return plan
        segments, size = log.sealed.totals(floor, self._limit)
        return plan._replace(lag_segments=segments, lag_bytes=size)

    def sealed_at_ms(self, plan: CopyPlan[SegmentSpan]) -> int | None:
        """Return when the oldest segment that can be copied was sealed, None for none."""
        if not plan.copies:
            return None
        return self._partition.log.sealed.sealed_at_ms(plan.copies[0].segment.base_offset)

    def is_held_back(self, entry: CatalogEntry | None) -> bool:
        """Return whether a sealed segment waits for the high watermark to pass it."""
        if not self._is_enabled:
            return False
        end_offset = entry.end_offset if entry is not None else 0
        return bool(self._partition.log.sealed.spans(max(end_offset, self._limit), 1))

    def open_transaction(self, entry: CatalogEntry | None) -> BlockingTransaction | None:
        """Return the transaction that a sealed and committed segment waits for, None where none does."""
        mark, limit = self._partition.high_watermark, self._limit
        if limit == mark or not self._is_enabled:
            return None
        log = self._partition.log
        waiting = log.sealed.spans(max(entry.end_offset if entry is not None else 0, limit), 1)
        oldest = log.oldest_open
        if oldest is None or not waiting or waiting[0].last_offset >= mark:
            return None
        return BlockingTransaction._make(oldest)

    def throttle_ms(self) -> int:
        """Return how long ``remote.log.manager.copy.max.bytes.per.second`` delays the next copy."""
        return self._context.copy_rate.wait_ms(self._context.clock.monotonic_ms())

    # -- copy ------------------------------------------------------------------------------------------------

    async def propose(
        self, entry: CatalogEntry | None, copies: Sequence[Copy[SegmentSpan]]
    ) -> tuple[ManifestProposal, FirnError | None]:
        """Upload the first of `copies`, and as many more as go with the same commit; write their manifest.

        Also return the error that ended the uploads, if one did.
        """
        context, tip = self._context, self._partition.tip
        leader_epoch = self._term.epoch
        attempt = ArchiveAttempt(context.eraser, self._term)
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
        except (StorageError, CorruptionError):
            attempt.failed(tip)
            raise
        retired = (entry.manifest_key,) if entry is not None else ()
        proposal = ManifestProposal(commit, chain, retired, attempt.keys, copied=tuple(uploaded))
        return proposal, failure

    def _is_commit_full(self, uploaded: Sequence[SegmentEntry]) -> bool:
        is_large = sum(one.size for one in uploaded) >= self._context.settings.commit_bytes
        return self._term.is_deposed or is_large or self.throttle_ms() > 0

    async def _upload(
        self, copy: Copy[SegmentSpan], leader_epoch: int, attempt: ArchiveAttempt
    ) -> SegmentEntry:
        """Upload one object, once its transaction index was built anew where that is wrong."""
        try:
            return await self._upload_once(copy, leader_epoch, attempt)
        except WrongRows as e:
            self._term.check()
            log.warning("%s: building a transaction index anew: %s", self._partition.tip, e)
            self._partition.log.sealed.replace_rows(copy.segment.base_offset, e.rows)
            return await self._upload_once(copy, leader_epoch, attempt)

    async def _upload_once(
        self, copy: Copy[SegmentSpan], leader_epoch: int, attempt: ArchiveAttempt
    ) -> SegmentEntry:
        """Upload one object. An object that fails was never proposed, and is deleted after the grace."""
        context, tip = self._context, self._partition.tip
        segment = self._partition.log.sealed.describe(copy.segment.base_offset)
        history = self._partition.log.epochs.entries
        identity = identity_of(tip, copy, leader_epoch, context.cluster_id, context.new_uuid())
        alone = ArchiveAttempt(context.eraser, self._term)
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
                    history,
                )
            )
            if self._partition.log.sealed.describe(copy.segment.base_offset).log is not segment.log:
                # An erasure has replaced it: the copy has records that are gone here.
                raise StorageError(f"the segment at {copy.segment.base_offset} has changed, copied again")
            move(state, SegmentState.UPLOADED)
            context.probe(CommitStep.UPLOADED, tip)
        except (StorageError, CorruptionError):
            move(state, SegmentState.ABANDONED)
            alone.failed(tip)
            raise
        attempt.keys += alone.keys
        return entry

    def _register_upload(self, progress: CallProgress) -> CallProgress:
        """Remember the progress of an upload that begins, so that `cancel` can end it. Runs on an offload
        thread."""
        self._progress = progress
        self._term.check()
        return progress
