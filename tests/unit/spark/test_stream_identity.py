"""A stream knows what it has read: topics made again, gone and back, and archives of other clusters."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from service.base.clock import ManualClock
from service.remote.format.ancestors import Ancestor
from service.remote.format.keys import TOPICS_KEY, head_key
from service.remote.format.manifest_codec import encode_topics
from service.spark.errors import DataLossError
from service.spark.plan.archive import ArchiveReader
from service.spark.plan.splits import Split
from service.spark.stream.offsets import StreamPosition, decode_position, encode_position
from service.spark.stream.options import parse_stream
from service.spark.stream.plan import StreamPlan
from service.spark.tail.plan import TailSplit
from tests.unit.spark.bucket import CLUSTER, Bucket

Opened = Callable[..., StreamPlan]


@pytest.fixture
def bucket() -> Bucket:
    """`flights` with partitions of 200 and 100 records, `trains` with 100."""
    bucket = Bucket()
    bucket.topic("flights", 2)
    bucket.topic("trains")
    for topic, partition in (("flights", 0), ("flights", 0), ("flights", 1), ("trains", 0)):
        bucket.add(topic, partition)
    return bucket


@pytest.fixture
def opened(bucket: Bucket) -> Opened:
    """A stream that begins, or begins again after a restart; it reads all of both topics by name."""

    def opened(**options: object) -> StreamPlan:
        given = {"startingOffsets": "earliest", "refreshInterval": 0, **options}
        if not given.keys() & {"assign", "subscribePattern"}:
            given.setdefault("subscribe", "flights,trains")
        parsed = parse_stream({"url": "file:///none", **{k: str(v) for k, v in given.items()}})
        return StreamPlan(parsed, lambda: ArchiveReader(bucket.store, threads=2), ManualClock())

    return opened


def read_all(stream: StreamPlan) -> StreamPosition:
    return noted(stream.latest(stream.initial()))


def noted(position: StreamPosition) -> StreamPosition:
    """Return a position as it is read back from the checkpoint."""
    return decode_position(json.loads(json.dumps(encode_position(position))))


def made_again(bucket: Bucket, topic: str, segments: int = 3) -> None:
    """Deleted, and made with one partition, which soon goes further than the old one did."""
    bucket.topic(topic)
    for key in [key for key in bucket.manifests if key[0] == topic]:
        del bucket.manifests[key]
    for _ in range(segments):
        bucket.add(topic)


def deleted(bucket: Bucket, topic: str) -> None:
    del bucket.topics[topic]
    listed(bucket)


def listed(bucket: Bucket, cluster_id: str = CLUSTER, ancestors: Sequence[Ancestor] = ()) -> None:
    rows = list(bucket.topics.values())
    bucket.store.put(TOPICS_KEY, encode_topics(cluster_id, 1, rows, ancestors=ancestors))


def ranges_of(splits: list[Split | TailSplit]) -> list[tuple[str, int, int, int]]:
    pieces = [piece for split in splits if isinstance(split, Split) for piece in split.pieces]
    return sorted((one.topic, one.partition, one.begin_offset, one.end_offset) for one in pieces)


CHOICES: list[dict[str, object]] = [
    {"subscribe": "flights,trains"},
    {"subscribePattern": "flights|trains"},
    {"assign": '{"flights":[0,1],"trains":[0]}'},
]


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("choice", CHOICES)
def test_a_topic_made_again_is_refused_by_both_its_ids_however_it_was_chosen(
    bucket: Bucket, opened: Opened, choice: dict[str, object], is_restarted: bool
) -> None:
    stream = opened(**choice)
    position = read_all(stream)
    old = bucket.topic_id("flights")
    made_again(bucket, "flights")
    if is_restarted:
        stream = opened(**choice)
        stream.fix_target()
    with pytest.raises(DataLossError, match="topic flights is another one now") as told:
        stream.latest(position)
    assert str(old) in str(told.value)
    assert str(bucket.topic_id("flights")) in str(told.value)


@pytest.mark.parametrize("choice", CHOICES)
def test_fail_on_data_loss_false_reads_a_recreated_topic_from_its_start(
    bucket: Bucket, opened: Opened, caplog: pytest.LogCaptureFixture, choice: dict[str, object]
) -> None:
    position = read_all(opened(**choice))
    made_again(bucket, "flights")
    stream = opened(**choice, failOnDataLoss="false")
    end = noted(stream.latest(position))
    assert end.offsets == {("flights", 0): 300, ("trains", 0): 100}
    assert ranges_of(stream.plan(position, end)) == [
        ("flights", 0, 0, 100),
        ("flights", 0, 100, 200),
        ("flights", 0, 200, 300),
    ]
    assert stream.latest(end) == stream.latest(end) == end
    assert sum("is another one now" in line for line in caplog.messages) == 1
    # After that it is the topic that is read.
    assert (
        opened(
            **choice | {"assign": '{"flights":[0],"trains":[0]}'} if "assign" in choice else choice
        ).latest(end)
        == end
    )


def test_a_batch_of_the_old_topic_that_is_repeated_is_not_made_up_from_the_new_one(
    bucket: Bucket, opened: Opened
) -> None:
    stream = opened()
    start = noted(stream.initial())
    end = noted(stream.latest(start))
    made_again(bucket, "flights")
    with pytest.raises(DataLossError, match="topic flights is another one now"):
        opened().plan(start, end)
    assert ranges_of(opened(failOnDataLoss="false").plan(start, end)) == [("trains", 0, 0, 100)]


def test_an_older_spark_finds_it_out_when_the_batch_is_planned(bucket: Bucket, opened: Opened) -> None:
    """It does not tell where a batch begins, so the end is written down before."""
    position = read_all(opened())
    made_again(bucket, "flights")
    stream = opened()
    end = stream.latest(None)
    with pytest.raises(DataLossError, match="topic flights is another one now"):
        stream.plan(position, end)
    stream = opened(failOnDataLoss="false")
    assert {one[:3] for one in ranges_of(stream.plan(position, stream.latest(None)))} == {
        ("flights", 0, 0),
        ("flights", 0, 100),
        ("flights", 0, 200),
    }


def test_topics_by_id_are_called_by_their_names_when_they_are_gone(bucket: Bucket, opened: Opened) -> None:
    chosen = f"{bucket.topic_id('flights')},{bucket.topic_id('trains')}"
    position = read_all(opened(subscribe=chosen))
    made_again(bucket, "trains")
    for stream in (opened(subscribe=chosen), opened(subscribe=chosen)):
        with pytest.raises(DataLossError, match=r"no longer there.*: trains-0 \(read up to 100\)"):
            stream.latest(position)
    # The new one is not what was asked for.
    careless = opened(subscribe=chosen, failOnDataLoss="false")
    assert careless.latest(position) == position


def test_a_topic_that_is_away_for_a_while_goes_on_where_it_was(
    bucket: Bucket, opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    position = read_all(opened())
    trains = bucket.topics["trains"]
    deleted(bucket, "trains")
    stream = opened(failOnDataLoss="false")
    for _ in range(3):
        bucket.add("flights")
        position = noted(stream.latest(position))
        assert position.offsets["trains", 0] == 100
        assert position.name_of("trains") == "trains"
    assert sum("trains-0 (read up to 100)" in line for line in caplog.messages) == 1
    with pytest.raises(DataLossError, match=r"trains-0 \(read up to 100\)"):
        opened().latest(position)
    bucket.topics["trains"] = trains
    bucket.add("trains")
    listed(bucket)
    back = opened(failOnDataLoss="false")
    end = back.latest(position)
    assert ranges_of(back.plan(position, end)) == [("trains", 0, 100, 200)]


def test_a_topic_that_comes_back_as_another_one_does_not_go_on_where_the_old_one_was(
    bucket: Bucket, opened: Opened
) -> None:
    stream = opened(subscribePattern=".*", failOnDataLoss="false")
    position = read_all(stream)
    deleted(bucket, "flights")
    position = noted(stream.latest(position))
    made_again(bucket, "flights", segments=1)
    end = noted(stream.latest(position))
    assert end.offsets == {("flights", 0): 100, ("trains", 0): 100}
    assert ranges_of(stream.plan(position, end)) == [("flights", 0, 0, 100)]


def test_a_partition_without_a_head_is_away_and_not_back_at_its_start(bucket: Bucket, opened: Opened) -> None:
    position = read_all(opened())
    head = head_key(bucket.topic_id("flights"), 1)
    kept = bucket.store.get(head, max_size=1 << 20)
    bucket.store.delete([head])
    with pytest.raises(DataLossError, match=r"flights-1 \(read up to 100\)"):
        opened().latest(position)
    stream = opened(failOnDataLoss="false")
    assert stream.latest(position) == position
    bucket.store.put(head, kept)
    assert stream.plan(position, stream.latest(position)) == []


def test_many_partitions_that_are_gone_make_one_short_message(bucket: Bucket, opened: Opened) -> None:
    bucket.topic("wide", 40)
    position = read_all(opened(subscribe="wide,flights"))
    deleted(bucket, "wide")
    with pytest.raises(DataLossError, match=r"wide-12 \(read up to 0\) and 35 more \(failOnDataLoss"):
        opened(subscribe="wide,flights").latest(position)


def test_the_archive_of_another_cluster_is_refused_and_its_topics_are_others(
    bucket: Bucket, opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    position = read_all(opened())
    assert position.cluster_id == CLUSTER
    made_again(bucket, "trains", segments=1)
    listed(bucket, "c-2")
    with pytest.raises(DataLossError, match=f"of cluster c-2 now.* of cluster {CLUSTER}: flights, trains"):
        opened().latest(position)
    stream = opened(failOnDataLoss="false")
    with caplog.at_level(logging.WARNING):
        end = stream.latest(position)
    assert end.cluster_id == "c-2"
    assert sum("of cluster c-2 now" in line for line in caplog.messages) == 1
    assert ranges_of(stream.plan(position, end)) == [("trains", 0, 0, 100)]
    assert opened().latest(noted(end)) == end


def test_a_checkpoint_without_topic_ids_adopts_the_current_topics(bucket: Bucket, opened: Opened) -> None:
    old = StreamPosition({("flights", 0): 150, ("flights", 1): 100, ("trains", 0): 100})
    stream = opened()
    end = noted(stream.latest(old))
    assert ranges_of(stream.plan(old, end)) == [("flights", 0, 150, 200)]
    assert end.topics["flights"].topic_id == bucket.topic_id("flights")
    made_again(bucket, "flights")
    with pytest.raises(DataLossError, match="topic flights is another one now"):
        opened().latest(end)


def test_a_topic_that_never_was_is_a_wrong_option_and_not_a_loss(bucket: Bucket, opened: Opened) -> None:
    with pytest.raises(Exception, match="the archive has no topic 'ships'"):
        opened(subscribe="flights,ships").initial()
    position = read_all(opened(subscribe="flights"))
    with pytest.raises(Exception, match="the archive has no topic 'ships'"):
        opened(subscribe="flights,ships").latest(position)
    assert opened(subscribe="flights,ships", failOnDataLoss="false").latest(position) == position


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_stream_goes_on_with_the_cluster_that_was_restored_from_its_own(
    bucket: Bucket, opened: Opened, is_restarted: bool
) -> None:
    stream = opened()
    position = read_all(stream)
    unread = bucket.add("trains")
    planned = noted(stream.latest(position))
    listed(bucket, "heir-of-the-cluster-01", [Ancestor("the-one-before", 3, 1), Ancestor(CLUSTER, 7, 1)])
    if is_restarted:
        stream = opened()
    assert ranges_of(stream.plan(position, planned)) == [("trains", 0, 100, 200)], unread
    bucket.add("flights")
    end = noted(stream.latest(planned))
    assert end.cluster_id == "heir-of-the-cluster-01"
    assert ranges_of(stream.plan(planned, end)) == [("flights", 0, 200, 300)]
    listed(bucket, "somebody-elses-cluster")
    with pytest.raises(DataLossError, match="somebody-elses-cluster"):
        opened().latest(end)


def test_records_read_beyond_the_end_of_a_restored_log_are_no_loss_to_the_stream(
    bucket: Bucket, opened: Opened
) -> None:
    """The log goes on far behind, where the stream has read nothing."""
    position = read_all(opened())
    beyond = replace(position, offsets={**position.offsets, ("flights", 1): 170})
    with pytest.raises(DataLossError, match="flights-1 ends at 100"):
        opened().latest(beyond)
    listed(bucket, "heir-of-the-cluster-01", [Ancestor(CLUSTER, 7, 1)])
    stream = opened()
    end = noted(stream.latest(beyond))
    assert end == replace(position, cluster_id="heir-of-the-cluster-01")
    assert stream.plan(beyond, end) == []
    assert opened().latest(end) == end
