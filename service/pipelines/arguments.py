"""Command lines of the pipelines, for `firn pipeline` and for ``python -m`` alike. Standard library only."""

from __future__ import annotations

import argparse
import re
from datetime import UTC, datetime


def add_archive_arguments(parser: argparse.ArgumentParser) -> None:
    """`firn pipeline archive`."""
    add_bucket_arguments(parser)
    parser.add_argument(
        "output",
        metavar="OUTPUT",
        help="a folder, or any URL that Spark writes to; of Iceberg a table: CATALOG.DATABASE.TABLE",
    )
    parser.add_argument(
        "--format",
        choices=("parquet", "iceberg"),
        default="parquet",
        help="Parquet files, or an Iceberg table, whose runtime jar is Spark's to have (default: parquet)",
    )
    parser.add_argument(
        "--checkpoint",
        metavar="URL",
        help="how far it has come (default: OUTPUT/_checkpoint; must be given for a table)",
    )
    add_start_arguments(parser)
    add_source_option(parser)
    parser.add_argument(
        "--on-missing-topic",
        choices=("fail", "skip"),
        default="fail",
        help="when a topic that was archived is not there any more: end, or go on without it (default: fail)",
    )
    parser.add_argument(
        "--interval",
        type=count_from(1),
        metavar="SECONDS",
        help="stay and look again every so often (default: take what there is and end)",
    )
    parser.add_argument(
        "--batch-bytes",
        metavar="SIZE",
        help="bytes of the log in a micro-batch, as 4g (default: 16g; Spark 4.2)",
    )
    parser.add_argument("--headers", action="store_true", help="records' headers too")
    parser.add_argument(
        "--values",
        choices=("raw", "json", "avro"),
        default="raw",
        help="what values are: bytes kept as they are, JSON objects or Avro data as columns (default: raw)",
    )
    parser.add_argument(
        "--schema",
        metavar="[ID=]FILE",
        action="append",
        default=[],
        help="of JSON: Spark's DDL or JSON form (default: inferred); of Avro: .avsc, with --confluent-header"
        " of the id in the values' header; repeatable then",
    )
    parser.add_argument(
        "--infer-records",
        type=count_from(1),
        default=10_000,
        metavar="N",
        help="infer a JSON schema from so many records (default: 10000)",
    )
    parser.add_argument(
        "--confluent-header",
        action="store_true",
        help="Avro data begin with five bytes that name their schema: --schema ID=FILE or --schema-registry",
    )
    parser.add_argument(
        "--schema-registry",
        metavar="URL",
        help="where schemas of other ids are, as Confluent's API has it; credentials are the environment's",
    )
    parser.add_argument(
        "--reader-schema",
        metavar="FILE|ID",
        help="whose columns all values get (default: the greatest ID given, else the newest of TOPIC-value)",
    )


def add_audit_arguments(parser: argparse.ArgumentParser) -> None:
    """`firn pipeline audit`."""
    add_bucket_arguments(parser)
    add_source_option(parser, "how the store is reached, as aws.profile=auditor; repeatable")
    parser.add_argument(
        "--output", metavar="URL", help="write a row per segment there, as Parquet; must not exist"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def add_replay_arguments(parser: argparse.ArgumentParser) -> None:
    """`firn pipeline replay`."""
    add_range_arguments(parser)
    parser.add_argument("--bootstrap-server", required=True, metavar="HOST:PORT", help="brokers to write to")
    parser.add_argument(
        "--into", required=True, metavar="TOPIC", help="the topic that is written; must exist"
    )
    parser.add_argument(
        "--state",
        required=True,
        metavar="FOLDER|URL",
        help="how far it has come; on a cluster a URL that every executor reaches, as s3://bucket/replay",
    )
    parser.add_argument(
        "--keep-partition", action="store_true", help="each record into its partition (default: by key)"
    )
    parser.add_argument(
        "--records-per-second", type=count_from(1), metavar="N", help="at most so many, all tasks together"
    )
    parser.add_argument(
        "--bytes-per-second", type=count_from(1), metavar="N", help="at most so many of keys and values"
    )
    parser.add_argument(
        "--parallelism", type=count_from(1), metavar="N", help="partitions at a time (default: Spark's)"
    )
    parser.add_argument(
        "--client",
        type=setting,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of librdkafka's producer; repeatable",
    )


def add_stats_arguments(parser: argparse.ArgumentParser) -> None:
    """`firn pipeline stats`."""
    add_range_arguments(parser)
    parser.add_argument(
        "--top",
        type=count_from(0),
        default=10,
        metavar="N",
        help="show this many keys of each topic, 0 for none (default: 10)",
    )
    parser.add_argument("--plot", metavar="FILE.png", help="save a plot of days and keys")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def add_bucket_arguments(parser: argparse.ArgumentParser) -> None:
    """Where the archive is and which topics of it, and how Spark is run."""
    parser.add_argument(
        "url", metavar="URL", help="the archive: s3://bucket/prefix, gs://, az:// or file:///dir"
    )
    topics = parser.add_mutually_exclusive_group()
    topics.add_argument(
        "--topics", metavar="A,B", help="these topics, by name or id (default: every topic of the archive)"
    )
    topics.add_argument("--pattern", metavar="REGEX", help="the topics whose whole name matches")
    parser.add_argument("--endpoint", metavar="URL", help="S3 endpoint (default: AWS_ENDPOINT_URL, else AWS)")
    parser.add_argument("--region", metavar="NAME", help="region of the bucket (default: AWS_REGION)")
    parser.add_argument(
        "--master", metavar="URL", help="Spark master (default: what spark-submit says, else all local cores)"
    )
    parser.add_argument(
        "--conf",
        type=setting,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a Spark setting; repeatable",
    )
    parser.add_argument(
        "--log",
        metavar="FILE",
        help="what Spark says goes there (default: a temporary file, named by errors)",
    )


def add_range_arguments(parser: argparse.ArgumentParser) -> None:
    """`add_bucket_arguments`, and a part of the topics' records."""
    add_bucket_arguments(parser)
    add_start_arguments(parser)
    end = parser.add_mutually_exclusive_group()
    end.add_argument("--ending-offsets", metavar="JSON", help="as the source's endingOffsets, exclusive")
    end.add_argument(
        "--to", type=moment, dest="to_ms", metavar="TIME", help="up to the first record not older than this"
    )
    add_source_option(parser)


def add_start_arguments(parser: argparse.ArgumentParser) -> None:
    start = parser.add_mutually_exclusive_group()
    start.add_argument(
        "--starting-offsets", metavar="JSON", help='as the source\'s startingOffsets: {"topic":{"0":23}}'
    )
    start.add_argument(
        "--from",
        type=moment,
        dest="from_ms",
        metavar="TIME",
        help="first record not older, as in 2013-02-01T00:00Z",
    )


def add_source_option(
    parser: argparse.ArgumentParser,
    help: str = "any other option of the firn source, as isolationLevel=read_committed; repeatable",
) -> None:
    parser.add_argument(
        "--option",
        type=setting,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=help,
    )


def setting(text: str) -> tuple[str, str]:
    """``name=value``."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE")
    return name, value


def moment(text: str) -> int:
    """Milliseconds since the epoch of an ISO 8601 time, UTC unless it says otherwise; or such a number.

    >>> moment("2013-01-01"), moment("2013-01-01T01:00+01:00"), moment("1356998400000")
    (1356998400000, 1356998400000, 1356998400000)
    """
    if re.fullmatch(r"[0-9]{9,18}", text):
        return int(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError as e:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time as in 2013-02-01T00:00Z") from e
    time = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return max(0, round(time.timestamp() * 1000))


def count_from(least: int) -> type[int]:
    """An argparse type: whole numbers from `least` on."""

    class Count(int):
        def __new__(cls, text: str) -> Count:
            if not re.fullmatch(r"[0-9]{1,18}", text) or int(text) < least:
                raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} on")
            return super().__new__(cls, text)

    return Count
