"""Decision which local segments retention deletes. [P]

Decides from facts alone; `SegmentDeletion.apply_retention` acts.

Kafka `UnifiedLog.deleteOldSegments`: from the oldest segment on, as long as one of these holds:

1. it lies wholly below the log's start;
2. the local log is larger than its limit even without this segment;
3. its greatest timestamp is older than the limit.

and never a segment that reaches to the high watermark or beyond, nor, where segments are copied to the
bucket, one that the bucket does not wholly hold (invariant T5): unless rule 1 deletes it, or it is beyond the
total retention of both tiers whatever the bucket holds, and the bucket does not take it (`OVERDUE_MS`). The
active segment is rolled before its own deletion.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from service.config.settings import LogConfig

MOST_AT_ONCE: Final = 50
"""Segments that one turn of the loop deletes."""
OVERDUE_MS: Final = 600_000
"""How long a segment beyond total retention waits to be copied. A wrong clock must not delete segments that
were never copied: if the store answers they are copied by then, and age by the store's clock.
"""


class SegmentFacts(NamedTuple):
    """``end_offset`` exclusive; ``size`` bytes; ``largest_timestamp`` ms (file time if records have none)."""

    end_offset: int
    size: int
    largest_timestamp: int


class RetentionLimits(NamedTuple):
    """Limits for the local log; negative means none. ``remote``: segments are copied to the bucket before
    their deletion. ``total``: limits of both tiers (ms, bytes), if a segment that was not copied may be
    deleted by them.
    """

    retention_ms: int
    retention_bytes: int
    remote: bool
    total: tuple[int, int] = (-1, -1)


class RetentionBounds(NamedTuple):
    """Offsets that segments must not reach beyond (exclusive), the log's start and its size in bytes.

    ``is_archive_empty``: no earlier segment is in the bucket, whose records may be younger.
    """

    start_offset: int
    high_watermark: int
    remote_end_offset: int
    size: int
    is_archive_empty: bool = False


class RetentionDecision(NamedTuple):
    """Delete the oldest ``segments`` ones for these ``reasons``; roll the active one if ``roll``."""

    segments: int
    reasons: tuple[str, ...]
    roll: bool


def limits_of(config: LogConfig, *, is_tiered: bool = False) -> RetentionLimits:
    """Return the limits of a local log by its topic's settings.

    `is_tiered`: part of the log is in the bucket, whatever the settings are now: segments that are not there
    stay here.
    """
    if "delete" not in config.cleanup_policy:
        return RetentionLimits(-1, -1, False)
    if config.remote_storage_enable and not config.remote_log_copy_disable:
        return RetentionLimits(
            config.effective_local_retention_ms, config.effective_local_retention_bytes, True
        )
    remote = is_tiered and not config.remote_log_copy_disable
    return RetentionLimits(config.retention_ms, config.retention_bytes, remote)


def decide(
    segments: Sequence[SegmentFacts],
    limits: RetentionLimits,
    bounds: RetentionBounds,
    now_ms: int,
    most: int = MOST_AT_ONCE,
) -> RetentionDecision:
    """Decide how many of `segments` (oldest first, the last is the active one) to delete now, up to `most`.

    Reads no segment behind the first one that stays.

    >>> facts = [SegmentFacts(10, 100, 0), SegmentFacts(20, 100, 900), SegmentFacts(20, 0, 900)]
    >>> decide(facts, RetentionLimits(500, -1, False), RetentionBounds(0, 20, 0, 200), 1000).segments
    1
    """
    excess = bounds.size - limits.retention_bytes
    following = bounds.size
    reasons: list[str] = []
    count = 0
    roll = False
    for slot in range(min(len(segments), most)):
        segment = segments[slot]
        following -= segment.size
        active = slot == len(segments) - 1
        reason = _why(segment, limits, bounds, excess, now_ms, active=active)
        if reason is None or segment.end_offset > bounds.high_watermark or (active and segment.size == 0):
            break
        roll = active
        held = segment.end_offset <= bounds.remote_end_offset
        if limits.remote and not held and reason != "start offset":
            if not _is_beyond_total(segment, limits, bounds, following, now_ms):
                break
            reason = "total retention"
        if reason not in reasons:
            reasons.append(reason)
        excess -= segment.size
        count += 1
    return RetentionDecision(count, tuple(reasons), roll)


def _is_beyond_total(
    segment: SegmentFacts, limits: RetentionLimits, bounds: RetentionBounds, following: int, now_ms: int
) -> bool:
    """Return whether the segment is beyond total retention, whatever the bucket holds. `following`: bytes
    behind it.

    By size if those bytes are enough alone. By time only if no earlier segment is in the bucket: the oldest
    one is deleted first, and those in the bucket may be younger.
    """
    total_ms, total_bytes = limits.total
    if 0 <= total_bytes <= following:
        return True
    return bounds.is_archive_empty and 0 <= total_ms < now_ms - segment.largest_timestamp


def _why(
    segment: SegmentFacts,
    limits: RetentionLimits,
    bounds: RetentionBounds,
    excess: int,
    now_ms: int,
    *,
    active: bool,
) -> str | None:
    if not active and segment.end_offset <= bounds.start_offset:
        return "start offset"
    if limits.retention_bytes >= 0 and segment.size > 0 and excess >= segment.size:
        return "size"
    if limits.retention_ms >= 0 and now_ms - segment.largest_timestamp > limits.retention_ms:
        return "time"
    return None
