"""Expiry of one partition: tell whether the oldest segment may expire now, or when; drop what has expired.

Owned by the event loop; whatever blocks runs on the offload pool.
"""

from __future__ import annotations

from service.base.errors import CorruptionError, StorageError
from service.remote.catalog import CatalogEntry
from service.remote.format.manifest import Child
from service.tiering import next_version
from service.tiering.aging import Aging, find_expired
from service.tiering.archive_attempt import (
    ArchiveAttempt,
    LeaderTerm,
    ManifestProposal,
    OldestSegment,
    TieringContext,
)
from service.tiering.expiry import EVERYTHING, UNLIMITED, ChainSpan, Retention, plan_expiry
from service.tiering.ports import TieredPartition


class PartitionExpiry:
    """The oldest segment as last found, compared with the current retention and log start."""

    def __init__(self, partition: TieredPartition, context: TieringContext, term: LeaderTerm) -> None:
        self._partition = partition
        self._context = context
        self._term = term
        self._oldest: OldestSegment | None = None
        """None while it is not known, as after a change of the chain's start"""

    @property
    def _retention(self) -> Retention:
        config = self._partition.config
        return Retention(config.retention_ms, config.retention_bytes)

    def _total_bytes(self, entry: CatalogEntry) -> int:
        """Return the bytes of the whole log: the remote chain, and the local segments that end beyond it."""
        if self._partition.config.retention_bytes == UNLIMITED:
            return entry.size_bytes
        return entry.size_bytes + self._partition.log.sealed.bytes_beyond(entry.end_offset)

    def _aging(self, entry: CatalogEntry) -> Aging:
        """Return the current inputs of an expiry, for an offload thread."""
        log_start = self._partition.log.log_start_offset
        return Aging(self._retention, self._context.clock.now_ms(), log_start, self._total_bytes(entry))

    def takes_all(self, entry: CatalogEntry) -> bool:
        """Return whether the whole archive goes, so that its manifest need not be read."""
        gives_up = self._partition.config.gives_up_archive
        return gives_up or self._partition.log.log_start_offset >= entry.end_offset

    def may_expire(self, entry: CatalogEntry | None) -> bool:
        """Return False only when the oldest segment surely stays, and so all do."""
        if entry is None or not entry.segments:
            return False
        if self._partition.config.gives_up_archive:
            return True
        oldest, aging = self._oldest, self._aging(entry)
        if oldest is None or oldest.start_offset != entry.start_offset:
            return not aging.retention.is_unlimited or aging.log_start > entry.start_offset
        parts: list[Child] = [oldest.part]
        found = plan_expiry(
            parts,
            ChainSpan(entry.start_offset, entry.end_offset),
            aging.retention,
            now_ms=aging.now_ms,
            log_start_offset=aging.log_start,
            total_bytes=aging.total_bytes,
            uploaded_at_ms=lambda _: oldest.uploaded_at_ms,
        )
        return found.start is not None or found.problem is not None

    def forget_oldest(self) -> None:
        """Have the oldest segment read anew: a rewrite may have replaced it."""
        self._oldest = None

    def due_ms(self, entry: CatalogEntry | None) -> list[int]:
        """Return monotonic times at which the oldest segment may expire without any event."""
        oldest, context = self._oldest, self._context
        if entry is None or oldest is None:
            return []
        due, retention = [], self._retention
        now_ms, wall_ms = context.clock.monotonic_ms(), context.clock.now_ms()
        if retention.ms != UNLIMITED:
            due.append(now_ms + max(0, oldest.ages_from_ms + retention.ms + 1 - wall_ms))
        if retention.bytes != UNLIMITED:
            room = retention.bytes + oldest.goes_at_bytes - self._total_bytes(entry)
            if room <= self._partition.config.segment_bytes:  # else a segment is sealed first
                due.append(now_ms + context.settings.interval_ms)
        return due

    async def propose(self, entry: CatalogEntry) -> ManifestProposal | None:
        """Write the manifest without what has expired; where nothing has, remember the oldest segment."""
        context, tip = self._context, self._partition.tip
        leader_epoch = self._term.epoch
        takes_all = self.takes_all(entry)
        if takes_all:
            gives_up = self._partition.config.gives_up_archive
            start: int | None = EVERYTHING if gives_up else entry.end_offset
        else:
            aging = self._aging(entry)
            start, self._oldest = await context.pool.run(
                lambda: find_expired(
                    context, tip, entry, next_version.load(context.chains, tip, entry), aging
                )
            )
        if start is None:
            return None
        attempt = ArchiveAttempt(context.eraser, self._term)
        try:
            self._term.check()
            chain, commit, gone = await context.pool.run(
                lambda: next_version.drop(
                    context.chains, tip, entry, start, leader_epoch, attempt.writes, takes_all=takes_all
                )
            )
        except (StorageError, CorruptionError):
            attempt.failed(tip)
            raise
        self._oldest = None
        return ManifestProposal(
            commit,
            chain,
            (entry.manifest_key, *gone),
            attempt.keys,
            dropped_segments=entry.segments - commit.entry.segments,
            dropped_bytes=entry.size_bytes - commit.entry.size_bytes,
        )
