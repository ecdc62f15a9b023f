"""Plans of a stream, against buckets that change under it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import pytest

from service.base.errors import ConfigError
from service.remote.format.keys import TOPICS_KEY
from service.remote.format.manifest import ManifestLimits
from service.spark.errors import DataLossError
from service.spark.plan.archive import ArchiveReader
from service.spark.plan.memory import PlanCache
from service.spark.plan.sizes import bytes_per_offset
from service.spark.plan.splits import Split
from service.spark.stream.bytes import bytes_between
from service.spark.stream.offsets import Spot, StreamPosition
from service.spark.stream.options import parse_stream
from service.spark.stream.plan import StreamPlan
from service.spark.tail.cut_splits import CutSplit
from service.spark.tail.plan import TailSplit
from tests.unit.spark.bucket import START_MS, Bucket, GatedStore, marker, plain, transactional

MAX_CHILDREN = 20


class Driven:
    """A stream driven with plain offsets, as they stand in checkpoints that do not say of which topics.

    It looks at the bucket with every trigger.
    """

    def __init__(self, plan: StreamPlan) -> None:
        self.stream = plan
        self.fix_target = plan.fix_target

    def initial(self) -> dict[Spot, int]:
        return dict(self.stream.initial().offsets)

    def latest(self, start: dict[Spot, int] | None, *, limited: bool = True) -> dict[Spot, int]:
        position = None if start is None else StreamPosition(start)
        return dict(self.stream.latest(position, limited=limited).offsets)

    def plan(self, start: dict[Spot, int], end: dict[Spot, int]) -> list[Split | TailSplit | CutSplit]:
        return self.stream.plan(StreamPosition(start), StreamPosition(end))


Opened = Callable[..., Driven]


@pytest.fixture
def bucket() -> Bucket:
    """`flights` has partitions of 300, 100 and 0 records, 100 to a segment."""
    bucket = Bucket()
    bucket.topic("flights", 3)
    for _ in range(3):
        bucket.add("flights", 0)
    bucket.add("flights", 1)
    return bucket


@pytest.fixture
def opened(bucket: Bucket) -> Opened:
    """A stream of the bucket, from the earliest offset unless told otherwise."""

    def opened(**options: object) -> Driven:
        given = {"subscribe": "flights", "startingOffsets": "earliest", "refreshInterval": 0, **options}
        if "subscribePattern" in given:
            del given["subscribe"]
        parsed = parse_stream({"url": "file:///none", **{k: str(v) for k, v in given.items()}})
        cache = PlanCache(max_children=MAX_CHILDREN)
        return Driven(
            StreamPlan(
                parsed,
                lambda: ArchiveReader(
                    bucket.store, read_committed=parsed.read.read_committed, cache=cache, threads=2
                ),
            )
        )

    return opened


def at(*offsets: int, topic: str = "flights") -> dict[tuple[str, int], int]:
    return {(topic, number): offset for number, offset in enumerate(offsets)}


def covered(splits: Sequence[Split | TailSplit]) -> list[tuple[int, int, int]]:
    pieces = [piece for split in splits if isinstance(split, Split) for piece in split.pieces]
    return sorted((piece.partition, piece.begin_offset, piece.end_offset) for piece in pieces)


def test_a_stream_goes_from_its_start_to_what_is_sealed_and_on(bucket: Bucket, opened: Opened) -> None:
    stream = opened()
    start = stream.initial()
    assert start == at(0, 0, 0)
    end = stream.latest(start)
    assert end == at(300, 100, 0)
    assert covered(stream.plan(start, end)) == [(0, 0, 100), (0, 100, 200), (0, 200, 300), (1, 0, 100)]
    assert stream.latest(end) == end
    bucket.add("flights", 2)
    assert stream.latest(end) == at(300, 100, 100)


def test_a_plan_covers_its_range_whatever_came_after(bucket: Bucket, opened: Opened) -> None:
    before = covered(opened().plan(at(150, 0, 0), at(250, 30, 0)))
    assert before == [(0, 150, 200), (0, 200, 250), (1, 0, 30)]
    bucket.add("flights", 0)
    bucket.drop_before("flights", 120)
    assert covered(opened().plan(at(150, 0, 0), at(250, 30, 0))) == before


def test_a_partition_that_starts_at_its_end_takes_nothing_in_the_first_batch(
    bucket: Bucket, opened: Opened
) -> None:
    stream = opened(startingOffsets="latest")
    start = stream.initial()
    assert start == at(300, 100, 0)
    bucket.add("flights", 0)
    first = stream.latest(start)
    assert first == start
    # The first batch, repeated after a crash: its start is asked for again and is later by now.
    again = opened(startingOffsets="latest")
    later = again.initial()
    assert later == at(400, 100, 0)
    assert again.plan(later, first) == []
    assert covered(again.plan(first, again.latest(first))) == [(0, 300, 400)]


def test_a_time_that_no_record_has_reached_is_the_end(bucket: Bucket, opened: Opened) -> None:
    stream = opened(startingTimestamp=START_MS + 150_000, startingOffsetsByTimestampStrategy="latest")
    start = stream.initial()
    assert start == at(150, 100, 0)
    bucket.add("flights", 1)
    assert stream.latest(start) == at(300, 100, 0)
    assert stream.latest(at(300, 100, 0)) == at(300, 200, 0)


def test_offsets_are_limited_in_proportion_and_all_get_there(opened: Opened) -> None:
    stream = opened(maxOffsetsPerTrigger=40)
    position = stream.initial()
    end = stream.latest(position)
    assert end == at(30, 10, 0)
    batches = 0
    while (end := stream.latest(position)) != position:
        assert sum(end.values()) - sum(position.values()) <= 40
        position, batches = end, batches + 1
    assert position == at(300, 100, 0)
    assert batches == 10


def test_no_limit_holds_where_spark_says_so(opened: Opened) -> None:
    assert opened(maxOffsetsPerTrigger=40).latest(at(0, 0, 0), limited=False) == at(300, 100, 0)


def test_bytes_are_limited_to_whole_blocks(bucket: Bucket, opened: Opened) -> None:
    stream = opened(maxBytesPerTrigger=bucket.block_bytes * 3)
    position = stream.initial()
    batches = []
    while (end := stream.latest(position)) != position:
        splits = stream.plan(position, end)
        batches.append(covered(splits))
        position = end
    assert position == at(300, 100, 0)
    log_bytes = sum(m.entries[i].log_length for m in bucket.manifests.values() for i in range(len(m.entries)))
    assert log_bytes // (bucket.block_bytes * 3) <= len(batches) <= 2 * log_bytes // (bucket.block_bytes * 2)
    rows = [(p, o) for batch in batches for p, begin, end in batch for o in range(begin, end)]
    assert len(rows) == len(set(rows)) == 400


def test_one_block_is_taken_however_small_the_limit(opened: Opened) -> None:
    stream = opened(maxBytesPerTrigger=1)
    position = stream.initial()
    seen = set()
    for _ in range(4):
        end = stream.latest(position)
        moved = [spot for spot in end if end[spot] != position[spot]]
        assert len(moved) == 1
        seen.update(moved)
        position = end
    assert seen == {("flights", 0), ("flights", 1)}


def test_sizes_of_long_archives_are_read_off_their_pages(bucket: Bucket) -> None:
    bucket.topic("long")
    bucket.limits = ManifestLimits(entries=4, page_refs=3)
    entries = [bucket.add("long", batches=2) for _ in range(40)]
    manifest = bucket.manifest("long", 0)
    assert manifest.pages
    with ArchiveReader(bucket.store, threads=1) as archive:
        load = archive.loader(manifest)
        everything = bytes_between(manifest, load, 0, 800)
        part = bytes_between(manifest, load, 310, 490)
        logs = sum(entry.log_length for entry in entries)
        assert logs <= everything <= sum(entry.size for entry in entries)
        assert part == pytest.approx(logs * 180 / 800, rel=0.5)
        assert bytes_between(manifest, load, 790, 900) > bytes_between(manifest, load, 790, 800)
        assert bytes_per_offset(manifest, load) == -(-entries[-1].log_length // 20)


def test_everything_that_is_there_now_is_all_there_will_be(bucket: Bucket, opened: Opened) -> None:
    stream = opened(maxOffsetsPerTrigger=250, subscribePattern=".*")
    stream.fix_target()
    position = stream.initial()
    bucket.add("flights", 1)
    bucket.topic("trains")
    bucket.add("trains")
    for _ in range(3):
        position = stream.latest(position)
    assert position == at(300, 100, 0)
    assert stream.latest(position) == position


def test_a_new_topic_begins_at_its_first_offset(bucket: Bucket, opened: Opened) -> None:
    stream = opened(subscribePattern=".*", startingOffsets="latest")
    position = stream.latest(stream.initial())
    bucket.topic("trains")
    bucket.add("trains")
    end = stream.latest(position)
    assert end == {**at(300, 100, 0), ("trains", 0): 100}
    assert covered(stream.plan(position, end)) == [(0, 0, 100)]


def test_retention_that_overtakes_is_noticed_before_a_batch_is_written_down(
    bucket: Bucket, opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    bucket.drop_before("flights", 200)
    with pytest.raises(DataLossError, match=r"50 to 199 are gone, retention has overtaken the stream"):
        opened().latest(at(50, 100, 0))
    with pytest.raises(DataLossError, match=r"offsets 50 to 199 are gone"):
        opened().plan(at(50, 100, 0), at(300, 100, 0))
    careless = opened(failOnDataLoss="false", maxOffsetsPerTrigger=60)
    with caplog.at_level(logging.WARNING):
        end = careless.latest(at(50, 100, 0))
    assert "retention has overtaken the stream" in caplog.text
    # What is gone does not count.
    assert end == at(260, 100, 0)
    assert covered(careless.plan(at(50, 100, 0), end)) == [(0, 200, 260)]


def test_a_log_that_ran_back_is_a_loss(bucket: Bucket, opened: Opened) -> None:
    with pytest.raises(DataLossError, match=r"flights-1 ends at 100, the stream has read up to 170"):
        opened().latest(at(300, 170, 0))
    careless = opened(failOnDataLoss="false")
    end = careless.latest(at(300, 170, 0))
    assert end == at(300, 100, 0)
    assert careless.plan(at(300, 170, 0), end) == []


@pytest.mark.parametrize("choice", [{"subscribe": "flights,trains"}, {"subscribePattern": ".*"}])
def test_a_topic_that_is_away_for_a_while_goes_on_where_it_was(
    bucket: Bucket, opened: Opened, caplog: pytest.LogCaptureFixture, choice: dict[str, str]
) -> None:
    bucket.topic("trains")
    bucket.add("trains", 0)
    stream = opened(failOnMissingTopic="false", **choice)
    position = stream.latest(stream.initial())
    away = bucket.topics.pop("trains")
    bucket.publish_topics()
    bucket.add("flights", 2)
    with pytest.raises(DataLossError, match="trains-0"):
        opened(**choice).latest(position)
    # In a process that has never seen it, too.
    for reader in (stream, opened(failOnMissingTopic="false", **choice)):
        with caplog.at_level(logging.WARNING):
            assert reader.latest(reader.latest(position)) == {**at(300, 100, 100), ("trains", 0): 100}
        assert sum("trains" in message for message in caplog.messages) in (1, 2)
        caplog.clear()
    position = stream.latest(position)
    bucket.topics["trains"] = away
    bucket.publish_topics()
    bucket.add("trains", 0)
    end = stream.latest(position)
    assert end == {**at(300, 100, 100), ("trains", 0): 200}
    assert covered(stream.plan(position, end)) == [(0, 100, 200)]


def test_a_new_topic_begins_where_it_begins_now_and_a_new_partition_at_0(
    bucket: Bucket, opened: Opened
) -> None:
    start = at(300, 100, 0)
    bucket.topic("trains", 2)
    for _ in range(2):
        bucket.add("trains", 0)
    bucket.drop_before("trains", 100)
    stream = opened(subscribePattern=".*")
    end = stream.latest(start)
    assert end == {**start, ("trains", 0): 200, ("trains", 1): 0}
    assert covered(stream.plan(start, end)) == [(0, 100, 200)]
    with pytest.raises(DataLossError, match="trains-0: offsets 0 to 99 are gone"):
        stream.latest({**start, ("trains", 1): 0})


def test_named_offsets_must_be_those_of_the_partitions(opened: Opened) -> None:
    stream = opened(startingOffsets='{"flights":{"0":5,"1":-2,"2":-1}}')
    assert stream.initial() == at(5, 0, 0)
    with pytest.raises(ConfigError, match="startingOffsets must name every partition"):
        opened(startingOffsets='{"flights":{"0":5}}').initial()


def test_an_older_spark_does_not_say_where_a_batch_begins(opened: Opened) -> None:
    assert opened().latest(None) == at(300, 100, 0)


def test_read_committed_waits_for_open_transactions_and_takes_them_up_once_decided(
    bucket: Bucket, opened: Opened
) -> None:
    bucket.topic("pay")
    batches = [
        plain(0, START_MS),
        transactional(10, 7, 10),
        transactional(20, 8, 10),
        marker(30, 8, commit=True),
    ]
    bucket.add("pay", batches=batches, opened={7: 10})
    committed = opened(subscribe="pay", isolationLevel="read_committed")
    assert committed.latest(at(0, topic="pay")) == at(10, topic="pay")
    assert covered(committed.plan(at(0, topic="pay"), at(10, topic="pay"))) == [(0, 0, 10)]
    bucket.add("pay", batches=[transactional(31, 9, 9)], opened={7: 10, 9: 31})
    assert committed.latest(at(10, topic="pay")) == at(10, topic="pay")
    assert opened(subscribe="pay", isolationLevel="read_committed", startingOffsets="latest").initial() == at(
        10, topic="pay"
    )
    bucket.add("pay", batches=[marker(40, 7, commit=False)], txn_rows=[(7, 10, 40, 31)], opened={9: 31})
    assert committed.latest(at(10, topic="pay")) == at(31, topic="pay")
    splits = committed.plan(at(10, topic="pay"), at(31, topic="pay"))
    assert covered(splits) == [(0, 10, 31)]
    assert [aborted.producer_id for aborted in splits[0].pieces[0].aborted] == [7]
    assert opened(subscribe="pay").latest(at(10, topic="pay")) == at(41, topic="pay")


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_a_partition_without_news_costs_one_request_a_trigger(
    bucket: Bucket, opened: Opened, isolation: str
) -> None:
    bucket.topic("quiet", 3)
    for partition in range(3):
        bucket.add("quiet", partition, opened={})
    stream = opened(subscribe="quiet", isolationLevel=isolation)
    position = stream.latest(stream.initial())
    for _ in range(3):
        bucket.store.reset()
        assert stream.latest(position) == position
        assert sorted(bucket.store.gets.values()) == [1, 1, 1, 1]
        assert set(bucket.store.gets) == {TOPICS_KEY, *bucket.store.got("HEAD")}
    bucket.add("quiet", 1, opened={})
    bucket.store.reset()
    end = stream.latest(position)
    assert end == at(100, 200, 100, topic="quiet")
    assert sum(bucket.store.got(".json.gz").values()) == 1
    assert sum(bucket.store.got(".seg").values()) == (2 if isolation == "read_committed" else 0)
    bucket.store.reset()
    assert covered(stream.plan(position, end)) == [(1, 100, 200)]
    assert not bucket.store.got(".json.gz"), "what was read to see it is not read again to plan it"


def test_segments_without_a_producer_snapshot_are_gone_through_once(bucket: Bucket, opened: Opened) -> None:
    bucket.topic("bare")
    entries = [bucket.add("bare") for _ in range(3)]
    stream = opened(subscribe="bare", isolationLevel="read_committed")
    position = stream.latest(stream.initial())
    entries.append(bucket.add("bare", batches=[transactional(300, 7, 10)]))
    bucket.store.reset()
    assert stream.latest(position) == position == at(300, topic="bare")
    logs = [key for entry in entries if bucket.store.bytes[key := entry.key] >= entry.log_length]
    assert logs == [entries[-1].key]


def test_more_partitions_than_memory_is_for_are_read_as_ever(bucket: Bucket, opened: Opened) -> None:
    count = MAX_CHILDREN  # each costs two: itself and its segment
    bucket.topic("many", count)
    for partition in range(count):
        bucket.add("many", partition, batches=1)
    stream = opened(subscribePattern="many|few", failOnDataLoss="false")
    position = stream.latest(stream.initial())
    bucket.store.reset()
    assert stream.latest(position) == position == at(*[10] * count, topic="many")
    assert sum(bucket.store.got(".json.gz").values()) == count // 2
    # Partitions that are gone make room.
    del bucket.topics["many"]
    bucket.topic("few", 2)
    for partition in range(2):
        bucket.add("few", partition, batches=1)
    gone = at(*[10] * count, topic="many")
    position = stream.latest(position)
    bucket.store.reset()
    assert stream.latest(position) == position == at(10, 10, topic="few") | gone
    assert not bucket.store.got(".json.gz")


def test_heads_of_many_partitions_are_fetched_at_the_same_time() -> None:
    bucket = Bucket(store=GatedStore(together=8))
    bucket.topic("wide", 40)
    for partition in range(40):
        bucket.add("wide", partition, batches=1)
    options = parse_stream({"url": "file:///none", "subscribe": "wide", "startingOffsets": "earliest"})
    stream = Driven(StreamPlan(options, lambda: ArchiveReader(bucket.store)))
    end = at(*[10] * 40, topic="wide")
    assert stream.latest(stream.initial()) == end
    assert len(covered(stream.plan(stream.initial(), end))) == 40
