"""Oldest segment of a partition's chain: tell whether it may expire now, and when it may otherwise.

Owned by the event loop.
"""

from __future__ import annotations

from service.remote.catalog import CatalogEntry
from service.remote.format.manifest import Child
from service.tiering.aging import Aging
from service.tiering.archive_attempt import OldestSegment, TieringContext
from service.tiering.expiry import UNLIMITED, ChainSpan, Retention, plan_expiry
from service.tiering.ports import TieredPartition


class ExpiryWatch:
    """The oldest segment as last found, compared with the current retention and log start."""

    def __init__(self, partition: TieredPartition, context: TieringContext) -> None:
        self._partition = partition
        self._context = context
        self.oldest: OldestSegment | None = None
        """None while it is not known, as after a change of the chain's start"""

    @property
    def retention(self) -> Retention:
        config = self._partition.config
        return Retention(config.retention_ms, config.retention_bytes)

    def total_bytes(self, entry: CatalogEntry) -> int:
        """Return the bytes of the whole log: the remote chain, and the local segments that end beyond it.

        Without a limit of bytes (`retention.bytes` -1) only those of the chain, as nobody compares them.
        """
        if self._partition.config.retention_bytes == UNLIMITED:
            return entry.size_bytes
        return entry.size_bytes + self._partition.log.sealed.bytes_beyond(entry.end_offset)

    def aging(self, entry: CatalogEntry) -> Aging:
        """Return the current inputs of an expiry, for an offload thread."""
        log_start = self._partition.log.log_start_offset
        return Aging(self.retention, self._context.clock.now_ms(), log_start, self.total_bytes(entry))

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
        oldest, aging = self.oldest, self.aging(entry)
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

    def due_ms(self, entry: CatalogEntry | None) -> list[int]:
        """Return monotonic times at which the oldest segment may expire without any event."""
        oldest, context = self.oldest, self._context
        if entry is None or oldest is None:
            return []
        due, retention = [], self.retention
        now_ms, wall_ms = context.clock.monotonic_ms(), context.clock.now_ms()
        if retention.ms != UNLIMITED:
            due.append(now_ms + max(0, oldest.ages_from_ms + retention.ms + 1 - wall_ms))
        if retention.bytes != UNLIMITED:
            room = retention.bytes + oldest.goes_at_bytes - self.total_bytes(entry)
            if room <= self._partition.config.segment_bytes:  # else a segment is sealed first
                due.append(now_ms + context.settings.interval_ms)
        return due
