"""Streams: when they read the bucket, when they wait, and the progress that they report."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from tests.spark.filling import PARTITIONS, Filled
from tests.spark.growing import Growing, each_once
from tests.spark.test_streaming import Stream
from tests.support.faults import FaultProxy
from tests.support.processes import wait_until


def test_an_idle_stream_asks_the_store_once_in_its_interval(
    spark: Any, filled_s3: Filled, tmp_path: Path
) -> None:
    assert filled_s3.store.endpoint is not None
    proxy = FaultProxy(filled_s3.store.endpoint)
    options = {
        "url": filled_s3.store.url,
        "endpoint": proxy.endpoint,
        "subscribe": "mixed",
        "startingOffsets": "latest",
        "refreshInterval": "500ms",
    }
    try:
        stream = Stream(spark, tmp_path, options).start()
        wait_until("its first batch", lambda: stream.batches)
        wait_until("that to be done", lambda: not stream.query.status["isDataAvailable"])
        before, began = len(proxy.seen), time.monotonic()

        def looks() -> int:
            return sum(one.path.endswith("topics.json") for one in proxy.seen[before:])

        wait_until("some looks", lambda: looks() >= 8)
        count = len(proxy.seen) - before
        # One more may be under way at either end.
        most = (time.monotonic() - began) / 0.5 + 2
        assert count <= most * (1 + PARTITIONS)
        stream.stop()
    finally:
        proxy.close()


def test_brokers_are_asked_for_what_is_new_though_the_bucket_is_not(
    spark: Any, grown: Growing, tmp_path: Path
) -> None:
    grown.topic("hot")
    grown.append("hot", 350)
    options = grown.options("hot", bootstrap=True, startingOffsets="earliest", refreshInterval="10m")
    stream = Stream(spark, tmp_path, options).start()
    stream.wait_for(grown.ends("hot"))
    for is_sealed in (False, True):
        grown.append("hot", 350, is_sealed=is_sealed)
        stream.wait_for(grown.ends("hot"))
    stream.stop()
    each_once(stream.pairs, grown.ends("hot"))


def test_small_batches_wait_for_more_and_not_for_ever(spark: Any, grown: Growing, tmp_path: Path) -> None:
    grown.topic("patient")
    first = grown.append("patient", 400)
    options = grown.options("patient", startingOffsets="earliest", minOffsetsPerTrigger=1000)
    stream = Stream(spark, tmp_path, {**options, "maxTriggerDelay": "1h"}).start()
    stream.wait_for(first)
    grown.append("patient", 300)
    ends = grown.append("patient", 500)
    stream.wait_for(ends)
    stream.stop()
    sizes = [len(pairs) for _, pairs in stream.batches]
    assert sizes == [sum(first.values()), sum(ends.values()) - sum(first.values())]
    assert sizes[1] >= 1000
    again = Stream(spark, tmp_path, {**options, "maxTriggerDelay": "2s"}).start()
    wait_until("it to run", lambda: again.query.lastProgress or again.query.exception())
    more = grown.append("patient", 300)
    assert sum(more.values()) - sum(ends.values()) < 1000
    wait_until(f"{more}", lambda: len(stream.pairs + again.pairs) >= sum(more.values()))
    again.stop()
    each_once(stream.pairs + again.pairs, more)


def test_progress_tells_how_far_the_stream_is_behind_and_what_was_observed(
    spark: Any, grown: Growing, tmp_path: Path
) -> None:
    from pyspark.sql import functions as F

    from pyspark_firn import lag

    grown.topic("behind")
    ends = grown.append("behind", 700)
    options = grown.options("behind", startingOffsets="earliest", maxOffsetsPerTrigger=500)
    frame = spark.readStream.format("firn").options(**options).load()
    seen = frame.observe("seen", F.count("*").alias("rows"), F.max("offset").alias("newest"))
    writer = seen.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    batches = [one for one in query.recentProgress if one["numInputRows"]]
    total, done = sum(ends.values()), 0
    for progress in batches:
        done += progress["numInputRows"]
        assert {"0": ends[0], "1": ends[1]} == json.loads(progress["sources"][0]["latestOffset"])["behind"]
        found = lag(progress)
        assert [(one.topic, one.partition) for one in found] == [("behind", 0), ("behind", 1)]
        assert sum(one.offsets for one in found) == total - done
        assert all((one.bytes > 0) == (one.offsets > 0) for one in found)
        assert progress["observedMetrics"]["seen"]["rows"] == progress["numInputRows"]
    assert done == total
    assert len(batches) > 2
    assert [one.offsets for one in lag(query)] == [0, 0]
