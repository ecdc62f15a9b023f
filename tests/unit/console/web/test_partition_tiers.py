"""A partition's line from what broker, bucket and disk say of it."""

from __future__ import annotations

from service.client.admin_models import PartitionInfo
from service.console.web.line import drawing
from service.console.web.partition_tiers import PartitionData, partition_tiers, retention_limits
from service.console.web.tier_layout import BUCKET, DISK, OFFSETS, PublishedTier, TierBlock
from service.console.web.topic_rows import TierOffsets

ONE = PartitionInfo(3, 1, (1,), (1,))
OBJECTS = (TierBlock(BUCKET, 0, 100, 10, 1, 1, 2, "a"), TierBlock(BUCKET, 100, 200, 20, 1, 2, 3, "b"))
PUBLISHED = PublishedTier(OBJECTS, 30, 2, 200, 7)


def segment(first: int, end: int, *, active: bool = False) -> TierBlock:
    return TierBlock(DISK, first, end, 5, 1, None, None if active else end, f"{first}.log", active)


DISK_BLOCKS = [segment(0, 100), segment(100, 200), segment(200, 300), segment(300, 320, active=True)]


def test_segments_below_the_local_start_are_not_counted() -> None:
    line = partition_tiers(
        ONE, PartitionData(TierOffsets(0, 100, 200, 320, 999, None), PUBLISHED, DISK_BLOCKS, True)
    )
    assert (line.disk_segments, line.disk_bytes) == (3, 15)
    assert (line.bucket_objects, line.bucket_bytes, line.manifest_version) == (2, 30, 7)
    assert (line.waiting_segments, line.waiting_bytes, line.waiting_since_ms) == (1, 5, 300)
    assert line.blocks[-1].max_ms == 999


def test_waiting_segments_are_shown_before_the_first_upload() -> None:
    line = partition_tiers(ONE, PartitionData(TierOffsets(0, 0, 0, 320, None, None), None, DISK_BLOCKS, True))
    assert (line.waiting_segments, line.bucket_objects) == (3, 0)
    assert "water-waiting" in str(drawing(line, OFFSETS, 0, 320, 0))


def test_a_topic_that_is_not_tiered_waits_for_nothing() -> None:
    line = partition_tiers(
        ONE, PartitionData(TierOffsets(0, 0, 0, 320, None, None), None, DISK_BLOCKS, False)
    )
    assert line.waiting_segments == 0
    assert "waiting" not in str(drawing(line, OFFSETS, 0, 320, 0))


def test_a_bucket_and_a_disk_that_cannot_be_read_are_drawn_by_offsets() -> None:
    line = partition_tiers(ONE, PartitionData(TierOffsets(0, 150, 200, 320, None, None), None, None, True))
    assert [(block.tier, block.first, block.end) for block in line.blocks] == [
        (BUCKET, 0, 200),
        (DISK, 150, 320),
    ]
    assert (line.bucket_bytes, line.disk_bytes, line.waiting_bytes) == (None, None, None)


def test_a_partition_whose_leader_is_away_says_so() -> None:
    line = partition_tiers(
        ONE, PartitionData(TierOffsets(None, None, None, None, None, "it has no leader"), None, None, True)
    )
    assert line.problems == ("it has no leader",)
    assert line.blocks == ()


def test_retention_counts_where_it_deletes() -> None:
    settings = {
        "retention.ms": "5",
        "retention.bytes": "-1",
        "local.retention.ms": "-2",
        "local.retention.bytes": "9",
    }
    assert retention_limits({**settings, "remote.storage.enable": "true"}) == {
        "retention.ms": 5,
        "local.retention.bytes": 9,
    }
    assert retention_limits(settings) == {"retention.ms": 5}
    assert retention_limits({**settings, "cleanup.policy": "compact"}) == {}
