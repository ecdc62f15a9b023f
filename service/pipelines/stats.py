"""The stats job: records and bytes per topic and day, and the keys with the most, in one pass.

    firn pipeline stats s3://bucket/prefix --topics flights --plot flights.png

Bytes are those of keys and values, uncompressed. Days are UTC days of the records' timestamps.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType
from pyspark.sql.window import Window

from service.base.errors import ConfigError
from service.base.extras import install_extra
from service.pipelines.arguments import add_stats_arguments
from service.pipelines.greatest_keys import GreatestKeys
from service.pipelines.job import (
    JobProgress,
    ProgressLine,
    chosen_partitions,
    frame,
    human_bytes,
    main,
    source_options,
    spark_session,
    topics_of,
)
from service.pipelines.pace import topics_text
from service.spark.options import parse_options
from service.spark.tail.options import refuse_tail

_COLUMNS = "key binary, value binary, topic string, timestamp timestamp"
_PLOTTED_TOPICS = 10


class DayCount(NamedTuple):
    """Records and bytes of a topic on a day."""

    topic: str
    day: date
    records: int
    bytes: int


class KeyCount(NamedTuple):
    """One of a topic's greatest keys; None is the null key."""

    topic: str
    key: bytes | None
    records: int
    bytes: int


class Stats(NamedTuple):
    """Days by topic and time; keys by topic, most records first."""

    days: list[DayCount]
    keys: list[KeyCount]


def run(args: argparse.Namespace) -> int:
    """Count the archive's events and bytes per topic, key and day."""
    if args.plot is not None:
        _check_plot(args.plot)
    options = source_options(args)
    refuse_tail(options, "stats counts the archive, and connects to no brokers")
    topics = topics_of(chosen_partitions(parse_options(options)))
    with spark_session("stats", args, topics) as spark:
        records = frame(spark, options, _COLUMNS)
        job_progress = JobProgress(spark)
        with ProgressLine(lambda: f"stats: {topics_text(topics)}: {job_progress.words()}") as progress:
            stats = collect(records, args.top)
        total, size = sum(day.records for day in stats.days), sum(day.bytes for day in stats.days)
        progress.done(f"stats: {total:,} records, {human_bytes(size)}")
    print(as_json(stats) if args.json else as_text(stats))
    if args.plot is not None:
        plot(stats, Path(args.plot))
        print(f"plot: {args.plot}", file=sys.stderr)
    return 0


def collect(records: Any, top: int) -> Stats:
    """Count a DataFrame with the columns key, value, topic and timestamp, in one pass.

    Each task that counts keys passes on only its own `top` of a topic, so the final sort is small however
    many keys there are.
    """
    size = F.coalesce(F.octet_length("key"), F.lit(0)) + F.coalesce(F.octet_length("value"), F.lit(0))
    # Grouping columns are computed before: for the other set Spark replaces whole columns with null.
    rows = records.select(
        "topic", F.to_date("timestamp").alias("day"), "key", size.cast("long").alias("bytes")
    )
    topic, day, key = F.col("topic"), F.col("day"), F.col("key")
    sets = [[topic, day]] if top == 0 else [[topic, day], [topic, key]]
    counted = rows.groupingSets(sets, topic, day, key).agg(
        F.grouping("key").alias("is_day"), F.count("*").alias("records"), F.sum("bytes").alias("bytes")
    )
    if top:
        counted = counted.mapInArrow(GreatestKeys(int(top)), _nullable(counted.schema))
    order = Window.partitionBy("topic", "is_day").orderBy(F.desc("records"), F.desc("bytes"), "key")
    found = counted.withColumn("rank", F.row_number().over(order)).where(f"is_day = 1 or rank <= {top}")
    days, keys = [], []
    for row in found.collect():
        if row.is_day:
            days.append(DayCount(row.topic, row.day, row.records, row.bytes))
        else:
            value = None if row.key is None else bytes(row.key)
            keys.append((row.topic, row["rank"], KeyCount(row.topic, value, row.records, row.bytes)))
    return Stats(sorted(days), [one for _, _, one in sorted(keys, key=lambda entry: entry[:2])])


def _nullable(schema: Any) -> Any:
    """Return the schema of rows that come back from Python, which Spark requires to be nullable."""
    return StructType([StructField(one.name, one.dataType) for one in schema.fields])


def as_json(stats: Stats) -> str:
    """Format as JSON. Keys are text where they are UTF-8, else null; ``key_hex`` is there for all."""
    days = [{**day._asdict(), "day": day.day.isoformat()} for day in stats.days]
    keys = [
        {**key._asdict(), "key": _utf8(key.key), "key_hex": None if key.key is None else key.key.hex()}
        for key in stats.keys
    ]
    return json.dumps({"days": days, "keys": keys}, indent=2, ensure_ascii=False)


def as_text(stats: Stats) -> str:
    """Format as a table of days and one of keys."""
    lines = [f"{'topic':<24} {'day':<24} {'records':>14} {'bytes':>12}"]
    lines += [
        f"{day.topic:<24} {day.day!s:<24} {day.records:>14,} {human_bytes(day.bytes):>12}"
        for day in stats.days
    ]
    if stats.keys:
        lines += ["", f"{'topic':<24} {'key':<24} {'records':>14} {'bytes':>12}"]
    lines += [
        f"{key.topic:<24} {key_text(key.key):<24} {key.records:>14,} {human_bytes(key.bytes):>12}"
        for key in stats.keys
    ]
    return "\n".join(lines)


def key_text(key: bytes | None) -> str:
    """Format a key for people: text where it is printable, hex where not, cut to 24 characters."""
    if key is None:
        return "(null)"
    text = _utf8(key)
    shown = text if text is not None and text.isprintable() else "0x" + key.hex()
    return shown if len(shown) <= 24 else shown[:23] + "…"


def _utf8(key: bytes | None) -> str | None:
    try:
        return None if key is None else key.decode("utf-8")
    except UnicodeDecodeError:
        return None


def plot(stats: Stats, path: Path) -> None:
    """Save a PNG: records per day, a line for each of the greatest topics, and the greatest keys as bars."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 8 if stats.keys else 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2 if stats.keys else 1, 1, squeeze=False)[:, 0]
    for topic in _greatest_topics(stats.days):
        days = [day for day in stats.days if day.topic == topic]
        axes[0].plot([day.day for day in days], [day.records for day in days], marker=".", label=topic)
    axes[0].set_ylabel("records per day")
    axes[0].set_ylim(bottom=0)
    axes[0].grid(alpha=0.3)
    if stats.days:
        axes[0].legend()
    if stats.keys:
        greatest = sorted(stats.keys, key=lambda key: -key.records)[:20][::-1]
        # `$` would begin a formula.
        names = [f"{key_text(key.key)} ({key.topic})".replace("$", r"\$") for key in greatest]
        axes[1].barh(range(len(greatest)), [key.records for key in greatest])
        axes[1].set_yticks(range(len(greatest)), names)
        axes[1].set_xlabel("records per key")
    figure.savefig(path, format="png", dpi=120)


def _greatest_topics(days: Sequence[DayCount]) -> list[str]:
    sums: dict[str, int] = {}
    for day in days:
        sums[day.topic] = sums.get(day.topic, 0) + day.records
    return sorted(sums, key=lambda topic: -sums[topic])[:_PLOTTED_TOPICS]


def _check_plot(path: str) -> None:
    """Check before hours of work that the plot can be made."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as e:
        raise ConfigError(f"--plot needs matplotlib: {install_extra('spark')}") from e
    if not Path(path).absolute().parent.is_dir():
        raise ConfigError(f"--plot {path}: there is no folder {Path(path).absolute().parent}")


if __name__ == "__main__":
    sys.exit(main("stats", add_stats_arguments, run))
