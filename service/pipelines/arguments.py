"""Command-line arguments of the pipelines, for `firn pipeline` and ``python -m``. Standard library only."""

from __future__ import annotations

import argparse
import re
from datetime import UTC, datetime
from uuid import UUID


def add_archive_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `firn pipeline archive`."""
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
        help="Parquet files, or an Iceberg table, whose runtime jar Spark needs (default: parquet)",
    )
    parser.add_argument(
        "--checkpoint",
        metavar="URL",
        help="the job's progress (default: OUTPUT/_checkpoint; must be given for a table)",
    )
    add_start_arguments(parser)
    add_source_option(parser)
    parser.add_argument(
        "--on-missing-topic",
        choices=("fail", "skip"),
        default="fail",
        help="when an archived topic no longer exists: end, or continue without it (default: fail)",
    )
    parser.add_argument(
        "--interval",
        type=count_from(1),
        metavar="SECONDS",
        help="stay and poll with this interval (default: process what there is and end)",
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
        help="values: bytes unchanged, or columns of JSON objects or Avro data (default: raw)",
    )
    parser.add_argument(
        "--schema",
        metavar="[ID=]FILE",
        action="append",
        default=[],
        help="for JSON: Spark's DDL or JSON form (default: inferred); for Avro: .avsc, with"
        " --confluent-header for the id in the values' header; repeatable then",
    )
    parser.add_argument(
        "--infer-records",
        type=count_from(1),
        default=10_000,
        metavar="N",
        help="infer a JSON schema from N records (default: 10000)",
    )
    parser.add_argument(
        "--confluent-header",
        action="store_true",
        help="Avro data start with five bytes that name their schema: --schema ID=FILE or --schema-registry",
    )
    parser.add_argument(
        "--schema-registry",
        metavar="URL",
        help="registry of other schemas, with Confluent's API; credentials come from the environment",
    )
    parser.add_argument(
        "--reader-schema",
        metavar="FILE|ID",
        help="schema of the columns (default: the greatest ID given, else the newest of TOPIC-value)",
    )


def add_audit_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `firn pipeline audit`."""
    add_bucket_arguments(parser)
    add_source_option(parser, "an option of the store, as aws.profile=auditor; repeatable")
    parser.add_argument(
        "--output", metavar="URL", help="write a row per segment there, as Parquet; must not exist"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def add_erase_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `firn pipeline erase`."""
    add_bucket_arguments(parser)
    parser.add_argument(
        "order", type=order_id, metavar="ORDER", help="an open order, as firn erase list has it"
    )
    parser.add_argument(
        "--bootstrap-server", required=True, metavar="HOST:PORT,…", help="brokers of the cluster"
    )
    add_settings(
        parser, "--client", "a setting of the connections to brokers, as security.protocol=SSL; repeatable"
    )
    add_source_option(parser, "an option of the store, as aws.profile=eraser; repeatable")
    parser.add_argument(
        "--sse",
        metavar="ALGORITHM",
        help="encryption that every write asks S3 for, AES256 or aws:kms (default: the bucket's own)",
    )
    parser.add_argument("--sse-kms-key-id", metavar="KEY", help="the key of KMS for --sse aws:kms")
    parser.add_argument(
        "--object-bytes",
        type=count_from(1 << 20),
        default=128 << 20,
        metavar="N",
        help="most bytes of a new object, as firn.rewrite.object.bytes (128 MiB)",
    )
    parser.add_argument(
        "--wait",
        type=count_from(0),
        default=900,
        metavar="SECONDS",
        help="wait so long for objects that others write anew, while nothing else is left (default: 900)",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="look at filters alone, and say what would be read and written"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def add_replay_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `firn pipeline replay`."""
    add_range_arguments(parser)
    parser.add_argument(
        "--bootstrap-server", required=True, metavar="HOST:PORT,…", help="brokers to write to"
    )
    parser.add_argument("--into", required=True, metavar="TOPIC", help="the topic to write; must exist")
    parser.add_argument(
        "--state",
        required=True,
        metavar="FOLDER|URL",
        help="the job's progress; on a cluster a URL that every executor reaches, as s3://bucket/replay",
    )
    parser.add_argument(
        "--keep-partition", action="store_true", help="send each record to its partition (default: by key)"
    )
    parser.add_argument(
        "--records-per-second", type=count_from(1), metavar="N", help="limit of all tasks together"
    )
    parser.add_argument(
        "--bytes-per-second",
        type=count_from(1),
        metavar="N",
        help="limit of keys and values, of all tasks together",
    )
    parser.add_argument(
        "--parallelism", type=count_from(1), metavar="N", help="partitions at a time (default: Spark's)"
    )
    add_settings(parser, "--client", "a setting of librdkafka's producer; repeatable")


def add_stats_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `firn pipeline stats`."""
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
    """Add the arguments for the archive, the topics of it, and Spark."""
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
        "--master", metavar="URL", help="Spark master (default: that of spark-submit, else all local cores)"
    )
    add_settings(parser, "--conf", "a Spark setting; repeatable")
    parser.add_argument(
        "--log",
        metavar="FILE",
        help="file for Spark's log (default: a temporary file, named by errors)",
    )


def add_range_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `add_bucket_arguments`, and those for a part of the topics' records."""
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
    add_settings(parser, "--option", help, metavar="NAME=VALUE")


def add_settings(
    parser: argparse.ArgumentParser, name: str, help: str, *, metavar: str = "KEY=VALUE"
) -> None:
    """Add an option that is given once for each of its settings."""
    parser.add_argument(name, type=setting, action="append", default=[], metavar=metavar, help=help)


def order_id(text: str) -> UUID:
    """Parse the id of an order."""
    try:
        return UUID(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not the id of an order") from None


def setting(text: str) -> tuple[str, str]:
    """Parse ``name=value``."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE")
    return name, value


def moment(text: str) -> int:
    """Parse an ISO 8601 time, UTC by default, or a number, to milliseconds since the epoch.

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
    """Return an argparse type: whole numbers from `least` on."""

    class Count(int):
        def __new__(cls, text: str) -> Count:
            if not re.fullmatch(r"[0-9]{1,18}", text) or int(text) < least:
                raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} on")
            return super().__new__(cls, text)

    return Count
