"""What of a chain has expired: it is walked from its old end, and its age is doubted where clocks disagree.

Called on `offload` threads.
"""

from __future__ import annotations

from typing import NamedTuple

from service.base.errors import StorageError
from service.base.types import TopicIdPartition
from service.remote.catalog import CatalogEntry
from service.remote.format.manifest import Child
from service.remote.reading.object_reader import Chain
from service.tiering.archive_attempt import ClockDoubted, Oldest, Tools
from service.tiering.expiry import UNLIMITED, ChainSpan, ExpiryPlan, Retention, plan_expiry
from service.tiering.store_clock import MAX_SKEW_MS


class Aging(NamedTuple):
    """What decides besides the chain, as it was when the walk was begun."""

    retention: Retention
    now_ms: int
    log_start: int
    total_bytes: int


class Expired(NamedTuple):
    """What goes of a chain: what lies below `start`. None where nothing does, and `oldest` stays."""

    start: int | None
    oldest: Oldest | None


def look_for_expired(
    tools: Tools, tip: TopicIdPartition, entry: CatalogEntry, chain: Chain, aging: Aging
) -> Expired:
    """Find what goes of `chain`, which is what `entry` names.

    What cannot be read, and an age that is not to be believed, keep nothing that goes without it. Where
    nothing else goes they are raised: `ClockDoubted`, or what reading raised.
    """
    load = tools.chains.loader(tip)
    uploaded: dict[str, int] = {}

    def uploaded_at_ms(part: Child) -> int:
        if part.key not in uploaded:
            uploaded[part.key] = tools.store.head(part.key).last_modified_ms
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
            return Expired(None, None)
        return Expired(None, Oldest(entry.start_offset, first, uploaded.get(first.key, aging.now_ms)))
    without_time = plan(aging.retention._replace(ms=UNLIMITED))
    if found.start == without_time.start:
        return Expired(found.start, None)
    try:
        _trust_clock(tools)
    except StorageError:
        if without_time.start is None:
            raise
        return Expired(without_time.start, None)
    return Expired(found.start, None)


def _trust_clock(tools: Tools) -> None:
    """Return where our clock and the store's agree; otherwise `ClockDoubted`, or what the store raised."""
    skew_ms = tools.store_clock.skew_ms()
    tools.metrics.clock_skew_ms = skew_ms
    if abs(skew_ms) > MAX_SKEW_MS:
        raise ClockDoubted(
            f"this node's clock and the store's disagree by {skew_ms} ms: "
            f"nothing expires by its age until they agree"
        )
