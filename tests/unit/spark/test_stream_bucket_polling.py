"""Polling of the bucket by a stream, on a manual clock."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from service.base.clock import ManualClock
from service.base.errors import ConfigError
from service.remote.format.manifest import ManifestLimits
from service.spark.plan.archive import ArchiveReader
from service.spark.plan.memory import PlanCache
from service.spark.stream.offsets import StreamPosition, encode_position
from service.spark.stream.options import parse_stream
from service.spark.stream.plan import StreamPlan
from service.spark.stream.progress import Lag, lag
from tests.unit.spark.bucket import Bucket
from tests.unit.spark.test_stream_identity import made_again, ranges_of

Opened = Callable[..., StreamPlan]


@pytest.fixture
def bucket() -> Bucket:
    """`flights` has four partitions of 100 records."""
    bucket = Bucket()
    bucket.topic("flights", 4)
    for partition in range(4):
        bucket.add("flights", partition)
    bucket.store.reset()
    return bucket


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def opened(bucket: Bucket, clock: ManualClock) -> Opened:
    def opened(**options: object) -> StreamPlan:
        given = {"subscribe": "flights", "startingOffsets": "earliest", **options}
        parsed = parse_stream({"url": "file:///none", **{k: str(v) for k, v in given.items()}})
        cache = PlanCache()
        return StreamPlan(parsed, lambda: ArchiveReader(bucket.store, cache=cache, threads=2), clock)

    return opened


def requests(bucket: Bucket) -> int:
    """Since they were last counted."""
    count = sum(bucket.store.gets.values())
    bucket.store.reset()
    return count


ONE_LOOK = 1 + 4
"""`topics.json`, and each partition's HEAD."""


def test_an_idle_stream_looks_once_in_its_interval_however_often_it_is_asked(
    bucket: Bucket, opened: Opened, clock: ManualClock
) -> None:
    stream = opened()
    position = stream.latest(stream.initial())
    requests(bucket)
    for _ in range(600):
        clock.advance(100)
        assert stream.latest(position) == position
        stream.report()
    # A minute.
    assert requests(bucket) == 12 * ONE_LOOK


def test_with_no_interval_each_trigger_looks_once(bucket: Bucket, opened: Opened) -> None:
    stream = opened(refreshInterval=0)
    position = stream.latest(stream.initial())
    bucket.add("flights", 2)
    requests(bucket)
    end = stream.latest(position)
    stream.report()
    stream.plan(position, end)
    assert requests(bucket) == ONE_LOOK + 1  # the manifest that is new


def test_a_run_of_available_now_looks_once_and_freshly(
    bucket: Bucket, opened: Opened, clock: ManualClock
) -> None:
    stream = opened(maxOffsetsPerTrigger=200)
    stream.fix_target()
    position = stream.initial()
    for _ in range(3):
        end = stream.latest(position)
        stream.plan(position, end)
        position = end
    assert sum(position.offsets.values()) == 400
    assert requests(bucket) == ONE_LOOK + 4
    bucket.add("flights", 0)
    stream.fix_target()
    assert stream.latest(position).offsets["flights", 0] == 200


def test_new_records_are_seen_after_the_refresh_interval(
    bucket: Bucket, opened: Opened, clock: ManualClock
) -> None:
    stream = opened(refreshInterval="20s")
    position = stream.latest(stream.initial())
    bucket.add("flights", 3)
    clock.advance(19_999)
    assert stream.latest(position) == position
    clock.advance(1)
    assert stream.latest(position).offsets["flights", 3] == 200


def test_a_batch_after_a_restart_is_planned_from_what_is_there(bucket: Bucket, opened: Opened) -> None:
    stream = opened()
    start = stream.initial()
    end = stream.latest(start)
    bucket.add("flights", 0)
    requests(bucket)
    again = opened()
    assert ranges_of(again.plan(start, end)) == ranges_of(stream.plan(start, end))
    assert requests(bucket) == ONE_LOOK + 4
    # What it was planned from serves what comes next.
    assert again.latest(end).offsets["flights", 0] == 200
    assert requests(bucket) == 0


def test_a_batch_that_goes_further_than_the_look_is_planned_from_another_one(
    bucket: Bucket, opened: Opened
) -> None:
    stream, other = opened(), opened()
    position = stream.latest(stream.initial())
    bucket.add("flights", 1)
    end = other.latest(position)
    assert ranges_of(stream.plan(position, end)) == [("flights", 1, 100, 200)]
    made_again(bucket, "flights", segments=4)
    newest = opened(failOnDataLoss="false").latest(end)
    careless = opened(failOnDataLoss="false")
    assert ranges_of(careless.plan(position, end)) == []
    assert len(ranges_of(careless.plan(end, newest))) == 4


def test_a_plan_is_never_made_from_what_has_long_been_deleted(
    bucket: Bucket, opened: Opened, clock: ManualClock
) -> None:
    stream = opened(refreshInterval="10m")
    start = stream.initial()
    end = stream.latest(start)
    requests(bucket)
    clock.advance(600_001)
    stream.plan(start, end)
    assert requests(bucket) == ONE_LOOK


def test_a_look_that_fails_is_forgotten(bucket: Bucket, opened: Opened, clock: ManualClock) -> None:
    stream = opened()
    position = stream.latest(stream.initial())
    clock.advance(5000)
    topics = bucket.store.get("topics.json", max_size=1 << 20)
    bucket.store.delete(["topics.json"])
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"no topics\.json"):
            stream.latest(position)
    bucket.store.put("topics.json", topics)
    assert stream.latest(position) == position


def test_a_batch_waits_until_there_is_enough_or_it_has_waited_long_enough(
    bucket: Bucket, opened: Opened, clock: ManualClock
) -> None:
    stream = opened(minOffsetsPerTrigger=250, maxTriggerDelay="1m")
    position = stream.latest(stream.initial())
    # The first of a run never waits.
    assert sum(position.offsets.values()) == 400
    for partition in (0, 1):
        bucket.add("flights", partition)
        clock.advance(5000)
        assert stream.latest(position) == position
    bucket.add("flights", 2)
    clock.advance(5000)
    end = stream.latest(position)
    assert sum(end.offsets.values()) == 700
    bucket.add("flights", 3)
    clock.advance(59_999)
    assert stream.latest(end) == end
    clock.advance(1)
    assert stream.latest(end).offsets["flights", 3] == 200


def test_an_unchanged_position_is_encoded_like_the_checkpoint(bucket: Bucket, opened: Opened) -> None:
    stream = opened(minOffsetsPerTrigger=250)
    stream.latest(stream.initial())
    old = StreamPosition({("flights", number): 90 for number in range(4)})
    assert json.dumps(encode_position(stream.latest(old))) == json.dumps(encode_position(old))


def test_the_last_of_what_is_available_now_does_not_wait_for_more(bucket: Bucket, opened: Opened) -> None:
    stream = opened(minOffsetsPerTrigger=300, maxOffsetsPerTrigger=300)
    stream.fix_target()
    position = stream.latest(stream.initial())
    assert sum(position.offsets.values()) == 300
    assert sum(stream.latest(position).offsets.values()) == 400


def test_a_trigger_without_limits_does_not_wait_either(bucket: Bucket, opened: Opened) -> None:
    stream = opened(minOffsetsPerTrigger=1000)
    position = stream.latest(stream.initial())
    bucket.add("flights", 0)
    stream = opened(minOffsetsPerTrigger=1000)
    stream.latest(position)
    assert stream.latest(position, limited=False).offsets["flights", 0] == 200


def progress_of(stream: StreamPlan, end: StreamPosition) -> dict[str, object]:
    source = {"endOffset": json.dumps(encode_position(end)), "latestOffset": json.dumps(stream.report())}
    return {
        "sources": [
            source,
            {"endOffset": "5", "latestOffset": None},
            {"endOffset": None, "latestOffset": "7"},
        ]
    }


def test_a_limited_stream_says_how_far_it_is_behind_in_offsets_and_bytes(
    bucket: Bucket, opened: Opened
) -> None:
    flights = str(bucket.topic_id("flights"))
    stream = opened(subscribe=flights, maxOffsetsPerTrigger=100)
    end = stream.latest(stream.initial())
    found = lag(progress_of(stream, end))
    assert [one[:3] for one in found] == [("flights", number, 75) for number in range(4)]
    size = bucket.manifest("flights", 0).entries[0].log_length
    assert [one.bytes for one in found] == [-(-size * 75 // 100)] * 4
    while (newer := stream.latest(end)) != end:
        end = newer
    progress = progress_of(stream, end)
    assert lag(progress) == [Lag("flights", number, 0, 0) for number in range(4)]
    # As pyspark 4.1 shows it, and as Spark 4.1 tells it: the end of the batch, as if nothing lay behind.
    source = {"endOffset": str(encode_position(end)), "latestOffset": str(stream.report())}
    assert lag({"sources": [source]}) == lag(progress)
    assert lag({"sources": [{**source, "latestOffset": source["endOffset"]}]}) == []


def test_telling_how_far_it_is_behind_costs_no_request(bucket: Bucket, opened: Opened) -> None:
    bucket.topic("long")
    bucket.limits = ManifestLimits(entries=4, page_refs=3)
    logs = sum(bucket.add("long", batches=2).log_length for _ in range(40))
    stream = opened(subscribe="long", maxOffsetsPerTrigger=10)
    end = stream.latest(stream.initial())
    requests(bucket)
    (found,) = lag(progress_of(stream, end))
    assert requests(bucket) == 0
    assert found[:3] == ("long", 0, 790)
    assert found.bytes == pytest.approx(logs, rel=0.5)


def test_lag_of_what_is_no_query_is_refused_and_before_the_first_batch_there_is_none() -> None:
    class Query:
        lastProgress = None

    assert lag(Query()) == []
    with pytest.raises(ConfigError, match="no streaming query"):
        lag(5)
    with pytest.raises(ConfigError, match="no streaming query"):
        lag({})
