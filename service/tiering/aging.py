"""Find the part of a chain that has expired, from its old end; check the clock before age decides.

Called on `offload` threads.
"""

from __future__ import annotations

from typing import NamedTuple

from service.base.errors import StorageError
from service.base.types import TopicIdPartition
from service.remote.catalog import CatalogEntry
from service.remote.format.manifest import Child
from service.remote.reading.object_reader import Chain
from service.tiering.archive_attempt import ClockDoubted, OldestSegment, TieringContext
from service.tiering.expiry import UNLIMITED, ChainSpan, ExpiryPlan, Retention, plan_expiry
from service.tiering.store_clock import MAX_SKEW_MS


class Aging(NamedTuple):
    """Inputs of an expiry besides the chain, as of its begin."""

    retention: Retention
    now_ms: int
    log_start: int
    total_bytes: int


class ExpiryFinding(NamedTuple):
    """Result of a search: everything below `start` goes; None where nothing does, and `oldest` is the first
    that stays."""

    start: int | None
    oldest: OldestSegment | None


def find_expired(
    context: TieringContext, tip: TopicIdPartition, entry: CatalogEntry, chain: Chain, aging: Aging
) -> ExpiryFinding:
    """Find what goes of `chain`, which `entry` names.

    A page or an upload time that cannot be read, or a clock that is wrong, does not hold up what expires for
    other reasons. Where nothing else expires the error is raised: `ClockDoubted`, or what the read raised.
    """
    load = context.chains.loader(tip)
    uploaded: dict[str, int] = {}

    def uploaded_at_ms(part: Child) -> int:
        if part.key not in uploaded:
            uploaded[part.key] = context.store.head(part.key).last_modified_ms
        return uploaded[part.key]

    def plan(retention: Retention) -> ExpiryPlan[Child]:
        return plan_expiry(
            chain.manifest.children,
            ChainSpan(entry.start_offset, entry.end_offset),
            retention,
            now_ms=aging.now_ms,
            log_start_offset=aging.log_start,
            total_bytes=aging.total_bytes,
            dropped_bytes=chain.manifest.dropped_bytes,
            uploaded_at_ms=uploaded_at_ms,
            children=lambda page: load(page).children,
        )

    found = plan(aging.retention)
    if found.start is None:
        if found.problem is not None:
            raise found.problem
        first = found.first
        if first is None:
            return ExpiryFinding(None, None)
        return ExpiryFinding(
            None, OldestSegment(entry.start_offset, first, uploaded.get(first.key, aging.now_ms))
        )
    without_time = plan(aging.retention._replace(ms=UNLIMITED))
    if found.start == without_time.start:
        return ExpiryFinding(found.start, None)
    try:
        _trust_clock(context)
    except StorageError:
        if without_time.start is None:
            raise
        return ExpiryFinding(without_time.start, None)
    return ExpiryFinding(found.start, None)


def _trust_clock(context: TieringContext) -> None:
    """Raise `ClockDoubted` unless our clock and the store's agree (invariant T14); raises what the store
    raises."""
    skew_ms = context.store_clock.skew_ms()
    context.metrics.clock_skew_ms = skew_ms
    if abs(skew_ms) > MAX_SKEW_MS:
        raise ClockDoubted(
            f"this node's clock and the store's disagree by {skew_ms} ms: "
            f"nothing expires by its age until they agree"
        )
