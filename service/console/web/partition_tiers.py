"""Tier layout of one partition, from data of broker, bucket, disk and settings. [P]"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from service.client.admin_models import PartitionInfo
from service.console.web.tier_layout import BUCKET, DISK, PublishedTier, TierBlock, TierLayout
from service.console.web.topic_rows import TierOffsets

TIERED_KEY: Final = "remote.storage.enable"
_RETENTION: Final = ("retention.ms", "retention.bytes")
_LOCAL_RETENTION: Final = ("local.retention.ms", "local.retention.bytes")


class PartitionData(NamedTuple):
    """Data about one partition; None: not read from the bucket, or not on this machine's disk."""

    borders: TierOffsets
    published: PublishedTier | None
    on_disk: list[TierBlock] | None
    is_tiered: bool


def partition_tiers(one: PartitionInfo, data: PartitionData) -> TierLayout:
    """Return the partition's layout, with a problem if its leader does not answer."""
    base = TierLayout(one.partition, one.leader, one.replicas, one.isr, is_tiered=data.is_tiered)
    borders = data.borders
    if borders.start is None or borders.end is None:
        return replace(base, problems=(borders.problem or "its leader does not tell its start offset",))
    start, end = borders.start, borders.end
    local_start = start if borders.local_start is None else min(max(borders.local_start, start), end)
    bucket_end = min(max(borders.bucket_end or start, start), end)
    found = replace(base, start=start, local_start=local_start, bucket_end=bucket_end, end=end)
    return _with_disk(_with_bucket(found, data.published), data.on_disk, borders.newest_ms)


def _with_bucket(line: TierLayout, published: PublishedTier | None) -> TierLayout:
    if published is not None:
        return replace(
            line,
            blocks=tuple(block for block in published.blocks if block.end > line.start),
            bucket_bytes=published.size,
            bucket_objects=published.objects,
            manifest_version=published.version,
        )
    if line.bucket_end > line.start:
        return replace(
            line, blocks=(TierBlock(BUCKET, line.start, line.bucket_end, None, None, None, None, ""),)
        )
    return replace(line, bucket_bytes=0, bucket_objects=0)


def _with_disk(line: TierLayout, on_disk: list[TierBlock] | None, newest_ms: int | None) -> TierLayout:
    if on_disk is None:
        if line.end <= line.local_start:
            return line
        whole = TierBlock(DISK, line.local_start, line.end, None, None, None, newest_ms, "")
        return replace(line, blocks=(*line.blocks, whole))
    # Segments below the local start are no longer part of the log and await deletion.
    kept = [
        block._replace(max_ms=newest_ms) if block.is_active and block.max_ms is None else block
        for block in on_disk
        if block.is_active or block.end > line.local_start
    ]
    waiting = [
        block for block in kept if line.is_tiered and not block.is_active and block.end > line.bucket_end
    ]
    return replace(
        line,
        blocks=(*line.blocks, *kept),
        disk_bytes=sum(block.size or 0 for block in kept),
        disk_segments=len(kept),
        waiting_bytes=sum(block.size or 0 for block in waiting),
        waiting_segments=len(waiting),
        waiting_since_ms=min((block.max_ms for block in waiting if block.max_ms is not None), default=None),
    )


def retention_limits(settings: Mapping[str, str | None]) -> dict[str, int]:
    """Return retention settings as numbers, without -1 (no bound) and -2 (as the whole log's)."""
    names = _RETENTION + (_LOCAL_RETENTION if settings.get(TIERED_KEY) == "true" else ())
    numbers = {name: _number(settings.get(name)) for name in names}
    if "delete" not in (settings.get("cleanup.policy") or "delete"):
        return {}
    return {name: value for name, value in numbers.items() if value >= 0}


def _number(value: str | None) -> int:
    return int(value) if value is not None and value.isascii() and value.isdecimal() else -1
