"""The archive job: topics as Parquet or an Iceberg table, each offset exactly once despite restarts.

    firn pipeline archive s3://bucket/prefix /data/flights --topics flights --values json

It is a Spark stream: by default it processes what there is and ends, and the next run continues from there;
with an interval it stays and polls. Its checkpoint and the sink's own log make it exactly-once: a row is
(`topic_id`, `partition`, `offset`), and readers see only files of completed batches.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any, Final

from pyspark.sql import functions as F

from service.base.errors import ConfigError
from service.pipelines.archive_admission import Admitted, admit, check_adopted, print_note
from service.pipelines.archive_options import check_arguments, stream_options
from service.pipelines.archive_values import decoding
from service.pipelines.arguments import add_archive_arguments
from service.pipelines.checkpoint import Checkpoint, exists
from service.pipelines.follow import follow
from service.pipelines.iceberg import check_runtime, fit_table
from service.pipelines.job import main, source_options, spark_session
from service.pipelines.pace import topics_text
from service.pipelines.values import columns_in_order
from service.spark.stream.options import parse_stream
from service.spark.stream.reader import CAN_LIMIT

_FIRST: Final = ("topic_id", "partition", "offset", "timestamp", "timestampType", "key")


def run(args: argparse.Namespace) -> int:
    """Write topics as Parquet or as an Iceberg table, exactly once."""
    check_arguments(args)
    given = source_options(args)
    options = stream_options(args, given, can_limit=CAN_LIMIT)
    parse_stream(options)
    with spark_session("archive", args) as spark:
        if args.format == "iceberg":
            check_runtime(spark, args.output)
        checkpoint = Checkpoint(spark, args.checkpoint or f"{args.output.rstrip('/')}/_checkpoint")
        if args.format == "parquet":
            _check_output(spark, args.output, checkpoint)
        rows, seconds, done = 0, 0.0, None
        while done is None or done.outdated:
            admitted = admit(args, given, options, checkpoint)
            topics = topics_text(admitted.topics)
            spark.sparkContext.setJobDescription(f"firn archive {topics}")
            query = _start(spark, args, admitted)
            # A query's topics are fixed when it starts, so a query that stays is restarted for new topics.
            is_outdated = admitted.has_new_topics if args.interval is not None else lambda: False
            done = follow(spark, query, f"archive: {topics}", is_outdated)
            rows, seconds = rows + done.rows, seconds + done.seconds
    stopped = "" if done.signal is None else "; stopped, the next run continues from here"
    print(f"archive: {rows:,} records to {args.output} in {seconds:.1f} s{stopped}", file=sys.stderr)
    # A signal is the regular end of a job that stays; a job that was to process everything is cut short.
    return 0 if done.signal is None or args.interval is not None else 128 + done.signal


def _check_output(spark: Any, output: str, checkpoint: Checkpoint) -> None:
    if checkpoint.is_new and exists(spark, f"{output}/_spark_metadata"):
        raise ConfigError(
            f"{output} is the output of another checkpoint than {checkpoint.url}: "
            "Spark would mistake new batches for written ones"
        )


def _start(spark: Any, args: argparse.Namespace, admitted: Admitted) -> Any:
    """Compare everything with the first run, save the job document, then start the query."""
    values = decoding(spark, args, admitted)
    admitted = admitted.fits(values.described)
    records = spark.readStream.format("firn").options(**admitted.options).load()
    ids = F.create_map([F.lit(word) for pair in admitted.topics.items() for word in pair])
    frame = values.decode(records.withColumn("topic_id", ids[F.col("topic")]))
    if args.format == "iceberg":
        frame = columns_in_order(frame, _FIRST, ("topic",))
        frame = fit_table(spark, args.output, frame, admitted.checkpoint, admitted.topics.values())
        writer = _writer(args, frame, admitted).format("iceberg")
    else:
        frame = columns_in_order(frame.withColumn("date", F.to_date("timestamp")), _FIRST, ("topic", "date"))
        if admitted.is_adopted:
            check_adopted(spark, args.output, frame)
        writer = _writer(args, frame, admitted).format("parquet").option("compression", "zstd")
        writer = writer.option("path", args.output).partitionBy("topic", "date")
    if admitted.is_adopted:
        print_note(
            f"checkpoint {admitted.checkpoint.url} has no job document; what can be compared matches, and "
            "this run's document is written beside it"
        )
    admitted.write_down()
    return writer.toTable(args.output) if args.format == "iceberg" else writer.start()


def _writer(args: argparse.Namespace, frame: Any, admitted: Admitted) -> Any:
    writer = frame.writeStream.queryName(f"firn archive {topics_text(admitted.topics)}")
    writer = writer.option("checkpointLocation", admitted.checkpoint.url)
    if args.interval is None:
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=f"{args.interval} seconds")


if __name__ == "__main__":
    sys.exit(main("archive", add_archive_arguments, run))
