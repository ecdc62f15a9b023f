"""Topics as Parquet, partitioned by topic and date, each offset exactly once however often it is restarted.

    firn pipeline archive s3://bucket/prefix /data/flights --topics flights --values json

A Spark stream: by default it takes what there is and ends, and the next run goes on from there; with an
interval it stays and looks again. Its checkpoint and the sink's own log make it exactly-once: a row is
(`topic_id`, `partition`, `offset`), and Spark reads only files of batches that were completed.
"""

from __future__ import annotations

import argparse
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from service.base.errors import ConfigError
from service.pipelines.arguments import add_archive_arguments
from service.pipelines.avro_types import load_schema
from service.pipelines.job import (
    Progress,
    chosen_partitions,
    main,
    read_so_far,
    source_options,
    spark_session,
)
from service.pipelines.values import (
    columns_in_order,
    decode_avro,
    decode_json,
    infer_json_schema,
    parse_json_schema,
)
from service.spark.options import parse_options
from service.spark.stream_options import parse_stream

DEFAULT_BATCH_BYTES: Final = "16g"
POLL_S: Final = 0.5
_FIRST: Final = ("topic_id", "partition", "offset", "timestamp", "timestampType", "key")
_LAST: Final = ("topic", "date")


def run(args: argparse.Namespace) -> int:
    """Write topics as Parquet, partitioned by topic and date, exactly once."""
    _check(args)
    with spark_session("archive", args) as spark:
        options = source_options(args)
        topics = {c.topic: str(c.topic_id) for c in chosen_partitions(parse_options(options))}
        # By id, so that a topic made again under its name is another one, and never goes on in its place.
        chosen = {key: value for key, value in options.items() if key not in ("subscribePattern", "assign")}
        chosen["subscribe"] = ",".join(topics.values())
        checkpoint = args.checkpoint or f"{args.output.rstrip('/')}/_checkpoint"
        query = _start(spark, args, _stream_options(args, chosen), topics, checkpoint)
        try:
            rows = _follow(spark, query)
        finally:
            query.stop()
        _say_done(args, rows)
    return 0


def _say_done(args: argparse.Namespace, rows: _Rows) -> None:
    print(
        f"archive: {rows.total:,} records to {args.output} in {time.monotonic() - rows.started:.1f} s",
        file=sys.stderr,
    )


def _check(args: argparse.Namespace) -> None:
    """Options that only make sense together."""
    if args.values == "avro" and args.schema is None:
        raise ConfigError("--values avro needs --schema FILE.avsc")
    if args.values == "raw" and args.schema is not None:
        raise ConfigError("--schema says nothing without --values json or avro")
    if args.confluent_header and args.values != "avro":
        raise ConfigError("--confluent-header says nothing without --values avro")


def _stream_options(args: argparse.Namespace, options: dict[str, str]) -> dict[str, str]:
    found = dict(options)
    found.setdefault("includeHeaders", str(args.headers).lower())
    if "startingTimestamp" not in found:
        found.setdefault("startingOffsets", "earliest")
    # Before Spark 4.2 Python sources have no limits.
    can_limit = find_spec("pyspark.sql.streaming.datasource") is not None
    if args.batch_bytes is not None or (can_limit and "maxOffsetsPerTrigger" not in found):
        found.setdefault("maxBytesPerTrigger", args.batch_bytes or DEFAULT_BATCH_BYTES)
    parse_stream(found)  # what is wrong is said here, in one line
    return found


def _start(
    spark: Any, args: argparse.Namespace, options: dict[str, str], topics: dict[str, str], checkpoint: str
) -> Any:
    records = spark.readStream.format("firn").options(**options).load()
    ids = F.create_map([F.lit(word) for pair in topics.items() for word in pair])
    frame = records.withColumn("topic_id", ids[F.col("topic")]).withColumn("date", F.to_date("timestamp"))
    frame = _decoded(spark, args, frame, options, checkpoint)
    writer = (
        columns_in_order(frame, _FIRST, _LAST)
        .writeStream.format("parquet")
        .queryName("firn archive")
        .option("path", args.output)
        .option("checkpointLocation", checkpoint)
        .option("compression", "zstd")
        .partitionBy("topic", "date")
    )
    if args.interval is None:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{args.interval} seconds").start()


def _decoded(
    spark: Any, args: argparse.Namespace, frame: Any, options: dict[str, str], checkpoint: str
) -> Any:
    if args.values == "raw":
        return frame
    text = None if args.schema is None else Path(args.schema).read_text("utf-8")
    if args.values == "avro":
        assert text is not None
        return decode_avro(frame, load_schema(text), confluent_header=args.confluent_header)
    schema = parse_json_schema(text) if text is not None else _kept_schema(spark, args, options, checkpoint)
    return decode_json(frame, schema)


def _kept_schema(spark: Any, args: argparse.Namespace, options: dict[str, str], checkpoint: str) -> Any:
    """The schema inferred at the first run, kept beside the checkpoint: later runs write the same columns."""
    place = f"{checkpoint}/value_schema"
    try:
        kept = spark.read.text(place, wholetext=True).collect()
    except PySparkException as e:
        if e.getCondition() != "PATH_NOT_FOUND":
            raise
        kept = []
    if kept:
        return parse_json_schema(kept[0][0])
    sample = {
        key: value
        for key, value in options.items()
        if key not in ("maxBytesPerTrigger", "maxOffsetsPerTrigger")
    }
    records = spark.read.format("firn").options(**sample).schema("value binary").load()
    schema = infer_json_schema(spark, records, args.infer_records)
    spark.createDataFrame([(schema.json(),)], "value string").coalesce(1).write.mode("overwrite").text(place)
    print(f"archive: inferred {schema.simpleString()}", file=sys.stderr)
    return schema


class _Rows:
    """How many rows the batches of a query had; Spark remembers only the last hundred batches."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self._batches: dict[int, int] = {}

    def look(self, query: Any) -> None:
        for progress in query.recentProgress:
            rows = progress["numInputRows"]
            self._batches[progress["batchId"]] = max(rows, self._batches.get(progress["batchId"], 0))

    @property
    def total(self) -> int:
        return sum(self._batches.values())

    @property
    def batches(self) -> int:
        return sum(1 for rows in self._batches.values() if rows)


def _follow(spark: Any, query: Any) -> _Rows:
    """Until the query ends by itself, fails, or is interrupted, which leaves it to go on the next time."""
    rows = _Rows()

    def look() -> str:
        return f"archive: {rows.total:,} records in {rows.batches} batches; now {read_so_far(spark)}"

    with Progress(look):
        try:
            while not query.awaitTermination(POLL_S):
                rows.look(query)
        except KeyboardInterrupt:
            print("archive: interrupted; the next run goes on from here", file=sys.stderr)
        try:
            rows.look(query)
        except (PySparkException, Py4JError) as e:
            print(f"archive: the last batch is not counted: {e}", file=sys.stderr)
    return rows


if __name__ == "__main__":
    sys.exit(main("archive", add_archive_arguments, run))
