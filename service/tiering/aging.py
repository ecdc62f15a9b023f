"""What of a chain has expired: it is walked from its old end, and its age is doubted where clocks disagree.

Called on `offload` threads.
"""

from __future__ import annotations

from typing import NamedTuple

from service.base.types import TopicIdPartition
from service.remote.catalog import CatalogEntry
from service.remote.format.manifest import SegmentEntry, live_segments
from service.remote.reading.object_reader import Chain
from service.tiering.expiry import UNLIMITED, ChainSpan, Expiry, Retention, plan_expiry
from service.tiering.store_clock import MAX_SKEW_MS
from service.tiering.units import ClockDoubted, Oldest, Tools


class Aging(NamedTuple):
    """What decides besides the chain, as it was when the walk was begun."""

    retention: Retention
    now_ms: int
    log_start: int
    total_bytes: int


def look_for_expired(
    tools: Tools, tip: TopicIdPartition, entry: CatalogEntry, chain: Chain, aging: Aging
) -> tuple[Expiry | None, Oldest | None]:
    """What goes of `chain`, which is what `entry` names; where nothing does, its oldest segment.

    Raises `ClockDoubted` where nothing would go but for its age, and that is not to be believed.
    """
    load = tools.chains.loader(tip)
    uploaded: dict[str, int] = {}

    def uploaded_at_ms(segment: SegmentEntry) -> int:
        if segment.key not in uploaded:
            uploaded[segment.key] = tools.store.head(segment.key).last_modified_ms
        return uploaded[segment.key]

    def plan(retention: Retention) -> Expiry | None:
        return plan_expiry(
            live_segments(chain.manifest, load),
            ChainSpan(entry.start_offset, entry.end_offset),
            retention,
            now_ms=aging.now_ms,
            log_start_offset=aging.log_start,
            total_bytes=aging.total_bytes,
            uploaded_at_ms=uploaded_at_ms,
        )

    expiry = plan(aging.retention)
    if expiry is not None:
        without_time = plan(aging.retention._replace(ms=UNLIMITED))
        if expiry != without_time and (skew_ms := _distrusted_skew_ms(tools)) is not None:
            if without_time is None:
                raise ClockDoubted(
                    f"this node's clock and the store's disagree by {skew_ms} ms: "
                    f"nothing expires by its age until they agree"
                )
            expiry = without_time
        return expiry, None
    first = next(live_segments(chain.manifest, load))
    return None, Oldest(entry.start_offset, first, uploaded.get(first.key, aging.now_ms))


def _distrusted_skew_ms(tools: Tools) -> int | None:
    """By how much our clock and the store's disagree, None when little enough."""
    skew_ms = tools.store_clock.skew_ms()
    tools.metrics.clock_skew_ms = skew_ms
    return skew_ms if abs(skew_ms) > MAX_SKEW_MS else None
