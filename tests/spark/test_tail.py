"""The sealed part and the tail are one line of offsets: nothing missing and nothing twice at the border."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.spark.filling import START_MS
from tests.spark.frames import rows_of
from tests.spark.growing import Growing, each_once, growing
from tests.spark.tails import batches_of, offsets_in, options_of, split_of
from tests.spark.test_streaming import Stream, pairs_of
from tests.support.processes import wait_until
from tests.support.tiers import settle

ALL = "key binary, partition int, offset long"


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Growing]:
    with growing(tmp_path_factory.mktemp("growing")) as found:
        found.topic("whole")
        found.append("whole", 750)
        found.append("whole", 120, is_sealed=False)
        yield found


@pytest.fixture
def whole(spark: Any, grown: Growing) -> Callable[..., Any]:
    """`whole(**options)`: a DataFrame of a topic with 870 records in each partition, most of them sealed."""

    def whole(**options: object) -> Any:
        given = grown.options("whole", bootstrap=True, includeHeaders=True) | {
            name: str(value) for name, value in options.items()
        }
        return spark.read.format("firn").options(**given).load()

    return whole


def test_rows_of_both_parts_are_as_a_consumer_reads_them(whole: Callable[..., Any], grown: Growing) -> None:
    rows = rows_of(whole())
    assert rows == grown.rows("whole", {0: 870, 1: 870})
    sealed = settle(grown.node.bootstrap, "whole", 0)
    tail = [row for row in rows if row.offset >= sealed]
    # Every kind of row is in the tail as well.
    assert {row.headers is None for row in tail} == {True, False}
    assert {row.key is None for row in tail} == {row.value is None for row in tail} == {True, False}
    assert b"" in {row.key for row in tail}
    assert b"" in {row.value for row in tail}


def test_a_topic_without_sealed_segments_is_read_from_the_tail(spark: Any, grown: Growing) -> None:
    grown.topic("young", **{"message.timestamp.type": "LogAppendTime"})
    grown.append("young", 20, is_sealed=False)
    listed = Path(grown.store.url.removeprefix("file://")) / "topics.json"
    wait_until("the bucket to know the topic", lambda: b"young" in listed.read_bytes())
    options = grown.options("young", bootstrap=True, includeHeaders=True)
    rows = rows_of(spark.read.format("firn").options(**options).load())
    assert rows == grown.rows("young", {0: 20, 1: 20})
    assert {row.timestamp_type for row in rows} == {1}


def test_bounds_and_filters_hold_in_the_tail(whole: Callable[..., Any]) -> None:
    def offsets(frame: Any) -> list[int]:
        return sorted(row.offset for row in frame.where("partition = 1").select("offset").collect())

    assert offsets(whole(startingOffsets='{"whole":{"0":0,"1":865}}')) == list(range(865, 870))
    assert offsets(whole(startingTimestamp=START_MS + 860_000)) == list(range(860, 870))
    assert offsets(whole(endingTimestamp=START_MS + 860_000)) == list(range(860))
    assert offsets(whole(maxRecordsPerPartition=7).where("offset >= 855 and offset < 868")) == list(
        range(855, 868)
    )
    times = f"timestamp >= timestamp_millis({START_MS + 866_000})"
    assert offsets(whole().where(times)) == list(range(866, 870))
    assert whole().where("topic = 'other'").count() == 0


def test_a_planned_tail_read_is_unchanged_by_later_sealing(spark: Any, grown: Growing) -> None:
    from pyspark.sql.types import _parse_datatype_string

    from service.spark.source import FirnDataSource
    from service.spark.tail.plan import TailSplit

    grown.topic("moving")
    grown.append("moving", 320)
    grown.append("moving", 200, is_sealed=False)
    reader = FirnDataSource(grown.options("moving", bootstrap=True)).reader(_parse_datatype_string(ALL))
    splits = reader.partitions()
    assert any(isinstance(split.value, TailSplit) for split in splits)
    border = settle(grown.node.bootstrap, "moving", 0)
    moved = grown.append("moving", 700)
    assert moved[0] > 520 > border
    batches = [batch for split in splits for batch in reader.read(split)]
    rows = [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
    each_once([row[1:] for row in rows], {0: 520, 1: 520})
    assert sorted(rows, key=lambda row: row[1:]) == [
        (row.key, row.partition, row.offset) for row in grown.rows("moving", {0: 520, 1: 520})
    ]


def test_a_stream_follows_the_tail_while_segments_are_sealed_under_it(
    spark: Any, grown: Growing, tmp_path: Path
) -> None:
    grown.topic("flowing")
    grown.append("flowing", 40, is_sealed=False)
    options = grown.options("flowing", bootstrap=True, startingOffsets="earliest", maxOffsetsPerTrigger=900)
    stream = Stream(spark, tmp_path, options).start()
    stop = threading.Event()

    def produce() -> None:
        while not stop.is_set() and grown.counts["flowing"] < 6000:
            grown.append("flowing", 150, is_sealed=False)

    producing = threading.Thread(target=produce)
    producing.start()
    try:
        wait_until("some batches", lambda: len(stream.batches) > 5, 60)
        stream.stop()
        again = Stream(spark, tmp_path, options).start()
        wait_until("more batches", lambda: len(again.batches) > 4, 40)
    finally:
        stop.set()
        producing.join()
    ends = grown.ends("flowing")
    wait_until(f"{ends}", lambda: len(pairs_of(stream, again)) >= sum(ends.values()))
    again.stop()
    each_once(pairs_of(stream, again), ends)
    assert settle(grown.node.bootstrap, "flowing", 0) > 300


def test_refusals_of_brokers_and_of_the_client_are_reported(
    whole: Callable[..., Any], grown: Growing
) -> None:
    with pytest.raises(Exception, match=r"option kafka\.no\.such\.thing is not served; .* kafka\."):
        whole(**{"kafka.no.such.thing": "1"}).count()
    with pytest.raises(Exception, match=r"no offsets of the log came .* within 2 s; last: no broker answers"):
        whole(**{"bootstrap.servers": "127.0.0.1:1", "kafkaConsumer.pollTimeoutMs": "2000"}).count()


def test_offsets_that_brokers_no_longer_have_are_a_loss_or_left_out(spark: Any, grown: Growing) -> None:
    from service.spark.errors import DataLossError

    grown.topic("shrunk")
    grown.append("shrunk", 700)
    grown.admin.alter("shrunk", **{"retention.bytes": "1"})
    probe = grown.options("shrunk", bootstrap=True)
    frame = spark.read.format("firn").options(**probe).load()
    wait_until("retention", lambda: frame.selectExpr("min(offset)").collect()[0][0] >= 600)

    def read(ending: int, **more: str) -> list[int]:
        options, tail = options_of(grown.node.bootstrap, "shrunk", **more)
        split = split_of(tail, "shrunk", 0, 10, ending)
        return offsets_in(batches_of(split, options, tail, ("offset",)))

    with pytest.raises(DataLossError, match=r"shrunk-0: of offsets 10 to 699 those from 10 on are not there"):
        read(700)
    left = read(700, failOnDataLoss="false")
    assert left == list(range(left[0], 700))
    assert left[0] >= 600
    assert read(20, failOnDataLoss="false") == []
