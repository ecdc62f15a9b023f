"""Topics as Parquet or as an Iceberg table, each offset exactly once however often it is restarted.

    firn pipeline archive s3://bucket/prefix /data/flights --topics flights --values json

A Spark stream: by default it takes what there is and ends, and the next run goes on from there; with an
interval it stays and looks again. Its checkpoint and the sink's own log make it exactly-once: a row is
(`topic_id`, `partition`, `offset`), and readers see only files of batches that were completed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, Final

from pyspark.sql import functions as F

from service.base.errors import ConfigError
from service.pipelines.archive_options import by_id, check_arguments, stream_options
from service.pipelines.arguments import add_archive_arguments
from service.pipelines.avro_types import load_schema
from service.pipelines.checkpoint import Checkpoint, exists
from service.pipelines.follow import follow
from service.pipelines.iceberg import check_runtime, fit_table
from service.pipelines.inference import kept_schema
from service.pipelines.job import chosen_partitions, main, source_options, spark_session
from service.pipelines.values import columns_in_order, decode_avro, decode_json, parse_json_schema
from service.spark.stream.options import parse_stream
from service.spark.stream.reader import CAN_LIMIT

_FIRST: Final = ("topic_id", "partition", "offset", "timestamp", "timestampType", "key")


def run(args: argparse.Namespace) -> int:
    """Write topics as Parquet or as an Iceberg table, exactly once."""
    check_arguments(args)
    with spark_session("archive", args) as spark:
        if args.format == "iceberg":
            check_runtime(spark, args.output)
        options = stream_options(args, source_options(args), can_limit=CAN_LIMIT)
        chosen = chosen_partitions(parse_stream(options).read)
        checkpoint = Checkpoint(spark, args.checkpoint or f"{args.output.rstrip('/')}/_checkpoint")
        if args.format == "parquet":
            _check_output(spark, args.output, checkpoint)
        topics = {one.topic: str(one.topic_id) for one in chosen}
        query = _start(spark, args, by_id(options, chosen), topics, checkpoint)
        done = follow(spark, query, "archive")
    stopped = "" if done.signal is None else "; stopped, the next run goes on from here"
    print(
        f"archive: {done.rows:,} records to {args.output} in {done.seconds:.1f} s{stopped}", file=sys.stderr
    )
    # A job that was to stay has ended as it should; one that was to take everything has not.
    return 0 if done.signal is None or args.interval is not None else 128 + done.signal


def _check_output(spark: Any, output: str, checkpoint: Checkpoint) -> None:
    if checkpoint.is_new and exists(spark, f"{output}/_spark_metadata"):
        raise ConfigError(
            f"{output} is the output of another checkpoint than {checkpoint.url}: "
            "Spark would take new batches for those that it has written already"
        )


def _start(
    spark: Any,
    args: argparse.Namespace,
    options: dict[str, str],
    topics: dict[str, str],
    checkpoint: Checkpoint,
) -> Any:
    records = spark.readStream.format("firn").options(**options).load()
    ids = F.create_map([F.lit(word) for pair in topics.items() for word in pair])
    frame = records.withColumn("topic_id", ids[F.col("topic")])
    frame = _decoded(spark, args, frame, options, checkpoint)
    if args.format == "iceberg":
        frame = columns_in_order(frame, _FIRST, ("topic",))
        frame = fit_table(spark, args.output, frame, checkpoint, topics.values())
        return _writer(args, frame, checkpoint).format("iceberg").toTable(args.output)
    frame = columns_in_order(frame.withColumn("date", F.to_date("timestamp")), _FIRST, ("topic", "date"))
    writer = _writer(args, frame, checkpoint).format("parquet").option("compression", "zstd")
    return writer.option("path", args.output).partitionBy("topic", "date").start()


def _writer(args: argparse.Namespace, frame: Any, checkpoint: Checkpoint) -> Any:
    writer = frame.writeStream.queryName("firn archive").option("checkpointLocation", checkpoint.url)
    if args.interval is None:
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=f"{args.interval} seconds")


def _decoded(
    spark: Any, args: argparse.Namespace, frame: Any, options: dict[str, str], checkpoint: Checkpoint
) -> Any:
    if args.values == "raw":
        return frame
    text = None if args.schema is None else Path(args.schema).read_text("utf-8")
    if args.values == "avro":
        assert text is not None
        return decode_avro(frame, load_schema(text), confluent_header=args.confluent_header)
    if text is None:
        return decode_json(frame, kept_schema(spark, options, checkpoint, args.infer_records))
    return decode_json(frame, parse_json_schema(text))


if __name__ == "__main__":
    sys.exit(main("archive", add_archive_arguments, run))
