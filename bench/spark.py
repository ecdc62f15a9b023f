"""`python -m bench.spark`: Firn's data source beside Spark's own Kafka connector, in one session, on one log.

Apache Kafka writes the log, and the connector reads it from there (the side of that name); its segments go
through our offloader into an S3 server on this machine, and Firn's source reads them from there. Sides
alternate. What is not sealed yet is read from a Firn node, by both in one task.
Needs `make spark`, and `make fetch-tools` for Apache Kafka and versitygw.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from bench import columns
from bench.figures import FIRN, KAFKA, Figures, add_json_option, write_asked
from bench.measures import Measured
from bench.peers import KafkaPeer, kafka_is_here
from bench.spark_session import spark_session
from service.base.world import system_world
from service.records.batch import CompressionType
from service.records.columns import ColumnDecoder
from service.remote.stores.obstore_store import open_store
from service.spark.parts import open_archive, read_part
from service.spark.plan.ranges import resolve_ranges
from service.spark.schema import ReadColumn
from service.spark.tail.options import parse_batch
from service.spark.tail.plan import plan_tail
from service.tiering.ports import TieringSettings
from tests.support.batches import batch
from tests.support.clients import Admin
from tests.support.kafka_segments import offload
from tests.support.processes import Node, wait_until
from tests.support.spark import connector_jars, read_kafka
from tests.support.stores import (
    ACCESS,
    CREDENTIALS,
    SECRET,
    Store,
    folder_store,
    moto_server,
    new_bucket,
    versitygw_binary,
    versitygw_server,
)
from tests.support.tiers import EARLIEST
from tests.support.wire import RawConnection, encode_request, offsets, produce_request

VALUE_BYTES: Final = 100
BATCH_RECORDS: Final = 150
"""About 16 KiB, as producers make them."""
PARTITIONS: Final = 2
HOT: Final = 30
"""How many times as many records as each of the small partitions the one hot partition has."""
SMALL_PARTITIONS: Final = 30
SKEW_SPLIT: Final = "16m"
WARM_UP_ROUNDS: Final = 2
"""The JVM is still compiling in them."""
SKEW_TARGET: Final = 1.5
ROWS: Final = "M rows/s"
TAIL_RECORDS: Final = 2_000_000
"""At most: of one partition, so for one task."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.spark", description=__doc__)
    parser.add_argument("--records", type=int, default=5_000_000, help="of 100 bytes (default: 5,000,000)")
    parser.add_argument("--rounds", type=int, default=5, help="of which medians are taken (default: 5)")
    add_json_option(parser)
    arguments = parser.parse_args()
    if not kafka_is_here() or not connector_jars():
        parser.error("needs Apache Kafka and Spark's connector: make fetch-tools spark")
    os.environ.update(CREDENTIALS)
    figures = Figures()
    figures.note(FIRN, [_decode()])
    with tempfile.TemporaryDirectory(prefix="firn-bench-") as name:
        folder = Path(name)
        jars = {"spark.jars": connector_jars()}
        with (
            _logs(folder, arguments.records) as (bootstrap, store),
            spark_session(folder, more=jars) as spark,
        ):
            _speed(figures, spark, bootstrap, store, arguments.records, arguments.rounds)
            _skew(figures, spark, bootstrap, store, arguments.rounds)
            _tail(figures, spark, folder, min(arguments.records, TAIL_RECORDS), arguments.rounds)
    figures.tell_medians()
    write_asked(arguments, figures)
    return 0


def _decode() -> Measured:
    data, count = columns.log(CompressionType.NONE, 200_000, 16_384)
    decoder = ColumnDecoder(want=columns.WANTS["all but headers"])
    rate = columns.records_per_second(decoder, data, count)
    return Measured("decoder alone, one core", ROWS, None, rate / 1e6)


@contextlib.contextmanager
def _logs(folder: Path, records: int) -> Iterator[tuple[str, Store]]:
    """Topics `even` and `skewed`, in a running Kafka (its address) and in a bucket."""
    server = versitygw_server if versitygw_binary() else moto_server
    if not versitygw_binary():
        print("versitygw is not here (make fetch-tools); moto is slow", file=sys.stderr)
    settings = {"log.segment.bytes": str(128 << 20), "log.retention.ms": "-1"}
    kafka = KafkaPeer(folder / "kafka", settings)
    try:
        print(f"writing {records:,} records, twice", file=sys.stderr)
        _fill(kafka.bootstrap, "even", [records // PARTITIONS] * PARTITIONS)
        share = records // (HOT + SMALL_PARTITIONS)
        _fill(kafka.bootstrap, "skewed", [share * HOT] + [share] * SMALL_PARTITIONS)
        kafka.stop()
        with server(folder) as endpoint:
            store = new_bucket(endpoint, "bench")
            topics = {"even": PARTITIONS, "skewed": 1 + SMALL_PARTITIONS}
            cold = open_store(
                store.url,
                endpoint=endpoint,
                access_key_id=ACCESS,
                secret_access_key=SECRET,
                world=system_world(),
            )
            offload(kafka.data, cold, topics, block_bytes=TieringSettings().block_bytes)
            kafka.start()
            yield kafka.bootstrap, store
    finally:
        kafka.stop()


def _fill(bootstrap: str, topic: str, counts: list[int], **config: str) -> None:
    """Each partition gets its count, rounded down to whole batches, at least one."""
    Admin(bootstrap).create(topic, len(counts), **config)
    values = [b"%020d" % number * (VALUE_BYTES // 20) for number in range(BATCH_RECORDS)]
    data = batch(values)
    with RawConnection(bootstrap, 60) as connection:
        for partition in range(len(counts)):
            wait_until("leaders", lambda p=partition: offsets(connection, topic, p, EARLIEST).error_code == 0)
        under_way = 0
        for partition, count in enumerate(counts):
            body = encode_request(produce_request(topic, partition, data))
            frame = struct.pack(">i", len(body)) + body
            for _ in range(max(1, count // BATCH_RECORDS)):
                connection.send(frame)
                under_way += 1
                if under_way == 20:
                    connection.receive_frame()
                    under_way -= 1
        for _ in range(under_way):
            connection.receive_frame()


def _firn(spark: Any, store: Store, topic: str, schema: str | None = None, **options: str) -> Any:
    reader = spark.read.format("firn").options(url=store.url, subscribe=topic, **options)
    if store.endpoint is not None:
        reader = reader.option("endpoint", store.endpoint)
    return (reader.schema(schema) if schema else reader).load()


def _consume(frame: Any) -> float:
    """Seconds in which every row came to a sink that does nothing with it."""
    started = time.monotonic()
    frame.write.format("noop").mode("overwrite").save()
    return time.monotonic() - started


def _speed(figures: Figures, spark: Any, bootstrap: str, store: Store, records: int, rounds: int) -> None:
    def connector() -> Any:
        return read_kafka(spark, bootstrap, subscribe="even")

    def firn(schema: str | None = None) -> Any:
        return _firn(spark, store, "even", schema)

    reads: dict[tuple[str, str], Callable[[], Any]] = {
        (KAFKA, "rows, all columns"): connector,
        (FIRN, "rows, all columns"): firn,
        (KAFKA, "rows, offset alone"): lambda: connector().select("offset"),
        (FIRN, "rows, offset alone"): lambda: firn("offset bigint"),
        (KAFKA, "rows, sum of the values' lengths"): lambda: _lengths(connector()),
        (FIRN, "rows, sum of the values' lengths"): lambda: _lengths(firn("value binary")),
    }
    rows = {KAFKA: connector().count(), FIRN: firn("offset bigint").count()}
    assert rows[KAFKA] == rows[FIRN] >= records - PARTITIONS * BATCH_RECORDS, rows
    runs = {of: lambda make=make: _consume(make()) for of, make in reads.items()}
    _by_turns(figures, runs, rows[FIRN], rounds)


def _by_turns(
    figures: Figures, runs: Mapping[tuple[str, str], Callable[[], float]], rows: int, rounds: int
) -> None:
    """Note by (side, what) the million rows a second of runs that return the seconds of so many rows."""
    for number in range(-WARM_UP_ROUNDS, rounds):
        for (side, what), run in list(runs.items())[:: 1 if number % 2 == 0 else -1]:
            took = run()
            print(f"round {number + 1}: {side}: {what}: {took:.2f} s", file=sys.stderr)
            if number >= 0:
                figures.note(side, [Measured(what, ROWS, None, rows / took / 1e6)])


def _lengths(frame: Any) -> Any:
    return frame.selectExpr("sum(length(value))")


def _skew(figures: Figures, spark: Any, bootstrap: str, store: Store, rounds: int) -> None:
    """Note the longest task to the median one, where one partition holds half of the log."""
    frames: dict[str, Callable[[], Any]] = {
        FIRN: lambda: _firn(spark, store, "skewed", maxPartitionBytes=SKEW_SPLIT),
        KAFKA: lambda: read_kafka(spark, bootstrap, subscribe="skewed"),
    }
    for number in range(-WARM_UP_ROUNDS, rounds):
        for side, frame in frames.items():
            times = _task_seconds(spark, frame())
            told = f"{len(times)} tasks of {min(times):.2f} to {max(times):.2f} s"
            print(f"round {number + 1}: {side}: {told}", file=sys.stderr)
            if number >= 0:
                ratio = max(times) / statistics.median(times)
                what = "one hot partition: longest task to the median"
                figures.note(side, [Measured(what, "x", SKEW_TARGET, ratio)])


def _tail(figures: Figures, spark: Any, folder: Path, records: int, rounds: int) -> None:
    """Note reads of a Firn node's active segment in one task, with Spark and without."""
    cold = folder_store(folder / "cold")
    node = Node(folder / "node", dict(cold.node_settings), cold.env).start()
    try:
        _fill(node.bootstrap, "tail", [records], **{"remote.storage.enable": "true"})
        listed = folder / "cold" / "topics.json"
        wait_until("the bucket to know the topic", lambda: listed.exists() and b"tail" in listed.read_bytes())
        given = {"bootstrap.servers": node.bootstrap, "maxPartitionBytes": "8g"}
        rows = records // BATCH_RECORDS * BATCH_RECORDS
        runs: dict[tuple[str, str], Callable[[], float]] = {
            (FIRN, "unsealed rows of a Firn node, one task"): lambda: _consume(
                _firn(spark, cold, "tail", **given)
            ),
            (FIRN, "unsealed rows of a Firn node, by the connector"): lambda: _consume(
                read_kafka(spark, node.bootstrap, subscribe="tail")
            ),
            (FIRN, "unsealed rows of a Firn node, without Spark"): lambda: _read_alone(
                {**given, "url": cold.url, "subscribe": "tail"}, rows
            ),
        }
        _by_turns(figures, runs, rows, rounds)
    finally:
        node.close()


def _read_alone(given: dict[str, str], rows: int) -> float:
    """Seconds in which this process makes Arrow batches of the tail, all columns but headers."""
    options, tail = parse_batch(given)
    with open_archive(options, tail) as archive:
        [split] = plan_tail(resolve_ranges(archive, options), options, archive.loader)
    columns = [ReadColumn(name) for name in ("key", "value", "topic", "partition", "offset", "timestamp")]
    started = time.monotonic()
    found = sum(batch.num_rows for batch in read_part(split, options, tail, columns))
    took = time.monotonic() - started
    assert found == rows, (found, rows)
    return took


def _task_seconds(spark: Any, frame: Any) -> list[float]:
    """Return the run time of each task of a job, from Spark's own metrics."""
    context = spark.sparkContext
    group = f"bench-{time.monotonic_ns()}"
    context.setJobGroup(group, group)
    _consume(frame)
    tracker, store = context.statusTracker(), context._jsc.sc().statusStore()
    stages = [stage for job in tracker.getJobIdsForGroup(group) for stage in tracker.getJobInfo(job).stageIds]

    def metrics() -> list[Any]:
        lists = [store.taskList(stage, 0, 1_000_000) for stage in stages]
        return [tasks.apply(number).taskMetrics() for tasks in lists for number in range(tasks.size())]

    # A listener collects the metrics, and may lag a little.
    wait_until("the account of tasks", lambda: all(one.isDefined() for one in metrics()))
    return [one.get().executorRunTime() / 1000 for one in metrics()]


if __name__ == "__main__":
    sys.exit(main())
