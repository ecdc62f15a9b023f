"""Streams over a growing archive: every offset once, whatever happens to the job."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark import errors

from service.spark.stream.offsets import OWN_KEY
from tests.spark.growing import Growing, each_once
from tests.support.processes import wait_until


class Stream:
    """One query, with a checkpoint: `batches` are the (partition, offset) pairs of each, as they came.

    It looks at the bucket with every trigger, unless `options` say otherwise.
    """

    def __init__(self, spark: Any, folder: Path, options: Mapping[str, str]) -> None:
        self.spark = spark
        self.folder = folder
        self.options = {"refreshInterval": "0", **options}
        self.batches: list[tuple[int, list[Any]]] = []
        self.query: Any = None

    def start(self, *, to_the_end: bool = False) -> Stream:
        def keep(batch: Any, number: int) -> None:
            self.batches.append((number, batch.select("partition", "offset").collect()))

        stream = self.spark.readStream.format("firn").options(**self.options).load()
        writer = stream.writeStream.foreachBatch(keep)
        writer = writer.option("checkpointLocation", str(self.folder))
        when = {"availableNow": True} if to_the_end else {"processingTime": "100 milliseconds"}
        self.query = writer.trigger(**when).start()
        return self

    def run(self) -> Stream:
        """Everything there is now, and stop."""
        self.start(to_the_end=True)
        self.query.awaitTermination()
        return self

    def stop(self) -> None:
        self.query.stop()
        self.query.awaitTermination()

    @property
    def pairs(self) -> list[Any]:
        return [pair for _, pairs in self.batches for pair in pairs]

    @property
    def end_offset(self) -> str | None:
        """Of the last batch that is done, as the checkpoint has it, without what the topics are."""
        progress = self.query.lastProgress
        end = progress["sources"][0]["endOffset"] if progress else None
        if end is None:
            return None
        return json.dumps({topic: row for topic, row in json.loads(end).items() if topic != OWN_KEY})

    def wait_for(self, ends: Mapping[int, int]) -> None:
        def is_there() -> bool:
            assert self.query.exception() is None, self.query.exception()
            return len(self.pairs) >= sum(ends.values())

        wait_until(f"{ends}, of which {len(self.pairs)} came", is_there)


def pairs_of(*runs: Stream) -> list[Any]:
    """Of runs with one checkpoint. A batch under way when one ended comes again, with the same rows."""
    batches: dict[int, list[Any]] = {}
    for run in runs:
        for number, pairs in run.batches:
            assert sorted(batches.setdefault(number, pairs)) == sorted(pairs), f"batch {number} has changed"
    return [pair for pairs in batches.values() for pair in pairs]


def test_later_segments_are_read_once_also_over_a_restart(spark: Any, grown: Growing, tmp_path: Path) -> None:
    grown.topic("live")
    ends = grown.append("live", 400)
    stream = Stream(spark, tmp_path, grown.options("live", startingOffsets="earliest")).start()
    stream.wait_for(ends)
    more = grown.append("live", 400)
    assert more[0] > ends[0]
    stream.wait_for(more)
    wait_until(
        "its progress", lambda: stream.end_offset == json.dumps({"live": {"0": more[0], "1": more[1]}})
    )
    stream.stop()
    seen = len(stream.pairs)
    ends = grown.append("live", 400)
    again = Stream(spark, tmp_path, stream.options).start()
    again.wait_for({0: ends[0] - more[0], 1: ends[1] - more[1]})
    again.stop()
    assert len(stream.pairs) == seen
    each_once(stream.pairs + again.pairs, ends)


def test_limits_bound_each_batch_and_available_now_comes_to_an_end(
    spark: Any, grown: Growing, tmp_path: Path
) -> None:
    grown.topic("limited")
    ends = grown.append("limited", 1000)
    options = grown.options("limited", startingOffsets="earliest", maxOffsetsPerTrigger=500)
    stream = Stream(spark, tmp_path / "offsets", options).run()
    sizes = [len(pairs) for _, pairs in stream.batches]
    assert len(sizes) > 2
    assert max(sizes) <= 500
    each_once(stream.pairs, ends)
    more = grown.append("limited", 400)
    each_once(stream.pairs + Stream(spark, tmp_path / "offsets", options).run().pairs, more)
    options = grown.options("limited", startingOffsets="earliest", maxBytesPerTrigger="1k")
    stream = Stream(spark, tmp_path / "bytes", options).run()
    # One block at least, and a segment is one block here.
    assert len(stream.batches) > 5
    each_once(stream.pairs, more)


def test_new_topics_join_a_pattern_from_their_first_record(
    spark: Any, grown: Growing, tmp_path: Path
) -> None:
    grown.topic("joined-1")
    first = grown.append("joined-1", 350)
    options = grown.options("", subscribePattern="joined-.*", startingOffsets="earliest")
    stream = Stream(spark, tmp_path, options).start()
    stream.wait_for(first)
    grown.topic("joined-2")
    second = grown.append("joined-2", 350)
    stream.wait_for({0: first[0] + second[0], 1: first[1] + second[1]})
    offsets = {
        "joined-1": {"0": first[0], "1": first[1]},
        "joined-2": {"0": second[0], "1": second[1]},
    }
    wait_until("its progress", lambda: stream.end_offset == json.dumps(offsets))
    stream.stop()
    assert len(stream.pairs) == sum(first.values()) + sum(second.values())


def test_a_stream_from_the_latest_offset_takes_what_comes_and_nothing_before(
    spark: Any, grown: Growing, tmp_path: Path
) -> None:
    grown.topic("latest")
    before = grown.append("latest", 350)
    stream = Stream(spark, tmp_path, grown.options("latest")).start()
    wait_until("the first batch", lambda: stream.batches)
    after = grown.append("latest", 350)
    stream.wait_for({p: after[p] - before[p] for p in after})
    stream.stop()
    assert stream.batches[0][1] == []
    skipped = [(p, number) for p in before for number in range(before[p])]
    each_once([*stream.pairs, *skipped], after)


def test_retention_that_overtakes_the_stream_is_an_error_or_a_warning(
    spark: Any, grown: Growing, tmp_path: Path
) -> None:
    grown.topic("overtaken")
    grown.append("overtaken", 700)
    options = grown.options("overtaken", startingOffsets="earliest", maxOffsetsPerTrigger=100)
    stream = Stream(spark, tmp_path, options).start()
    wait_until("a batch", lambda: stream.batches)
    stream.stop()
    seen = len(stream.pairs)
    assert seen < 600
    grown.append("overtaken", 700)
    grown.admin.alter("overtaken", **{"retention.bytes": "20000"})
    frame = spark.read.format("firn").options(**grown.options("overtaken")).load()
    wait_until("retention", lambda: frame.selectExpr("min(offset)").collect()[0][0] > 600)
    grown.admin.alter("overtaken", **{"retention.bytes": "-1"})
    with pytest.raises(errors.StreamingQueryException, match=r"retention has overtaken the stream"):
        Stream(spark, tmp_path, options).run()
    stream = Stream(spark, tmp_path, {**options, "failOnDataLoss": "false"}).run()
    left = frame.select("partition", "offset").collect()
    assert sorted(map(tuple, stream.pairs)) == sorted(map(tuple, left))
    assert min(offset for _, offset in stream.pairs) > 600


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ({"endingOffsets": "latest"}, "a stream has no end"),
        ({"maxOffsetPerTrigger": "1"}, "unknown option maxoffsetpertrigger"),
        ({"maxOffsetsPerTrigger": "0"}, "not a number above 0"),
        ({"kafka.linger.ms": "5"}, "has no effect without bootstrap.servers"),
    ],
)
def test_options_that_a_stream_does_not_have_are_refused(
    spark: Any, grown: Growing, tmp_path: Path, option: dict[str, str], reason: str
) -> None:
    with pytest.raises(Exception, match=reason):
        Stream(spark, tmp_path, {**grown.options("live"), **option}).run()
