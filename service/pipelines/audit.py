"""The audit job: proves a whole archive at scale, and counts its records by day.

    firn pipeline audit s3://bucket/prefix --output s3a://reports/today

It proves that every chain is contiguous and every checksum right, in one row per segment, made by a task
each: `firn fsck` for archives that one machine would read for weeks. Exit code 1 when anything is wrong.
Objects that no manifest names are left to `firn fsck`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import functions as F

from service.base.errors import CorruptionError
from service.pipelines.arguments import add_audit_arguments
from service.pipelines.audit_task import SCHEMA, Chains, Proofs
from service.pipelines.job import (
    JobProgress,
    ProgressLine,
    check_store_options,
    chosen_partitions,
    human_bytes,
    main,
    source_options,
    spark_session,
    topics_of,
)
from service.pipelines.pace import topics_text
from service.remote.format.keys import CLUSTER_KEY
from service.remote.reading.object_reader import open_cluster_file
from service.remote.reading.tails import owners_of
from service.remote.stores.errors import ObjectNotFound
from service.spark.options import ReadOptions, parse_options
from service.spark.store import open_store_of

MAX_LISTED = 1000
TASKS_PER_CORE = 8


def run(args: argparse.Namespace) -> int:
    """Prove an archive: chains contiguous, checksums right, counts per topic and day."""
    check_store_options(args, "an audit reads everything")
    options = parse_options(source_options(args))
    partitions = chosen_partitions(options)
    owners, problem = _owners(options)
    topics = topics_of(partitions)
    with spark_session("audit", args, topics) as spark:
        context = spark.sparkContext
        read_bytes, read_records = context.accumulator(0), context.accumulator(0)
        tasks = context.defaultParallelism * TASKS_PER_CORE
        chains = context.parallelize(partitions, min(len(partitions), tasks)).mapPartitions(
            Chains(options, owners)
        )
        rows = spread(chains, tasks).mapPartitions(Proofs(options, read_bytes, read_records))
        checked = spark.createDataFrame(rows, SCHEMA).persist()

        job_progress = JobProgress(spark)

        def status() -> str:
            proved = job_progress.words(records=read_records.value, size=human_bytes(read_bytes.value))
            return f"audit: {topics_text(topics)}: {proved}"

        with ProgressLine(status) as progress:
            found = _summary(checked, problem, topics)
            if args.output is not None:
                checked.write.mode("errorifexists").parquet(args.output)
            progress.done(
                f"audit: {found['records']:,} records, {human_bytes(found['bytes'])} "
                f"in {found['segments']:,} segments of {found['partitions']:,} partitions"
            )
        checked.unpersist()
    print(json.dumps(found, indent=2, ensure_ascii=False) if args.json else _as_text(found))
    return 1 if found["error_count"] else 0


def spread(rows: Any, tasks: int) -> Any:
    """Distribute the rows evenly over `tasks` partitions.

    Spark's own `repartition` deals out rows of Python's in tens, so that of 64 tasks 55 have nothing to do
    where there are 90 rows. Rows are persisted, in memory or on disk, as numbering reads them twice.
    """
    numbered = rows.persist(StorageLevel.MEMORY_AND_DISK).zipWithIndex()
    return numbered.map(lambda pair: (pair[1] % tasks, pair[0])).partitionBy(tasks, int).values()


def _owners(options: ReadOptions) -> tuple[frozenset[str] | None, str | None]:
    """Return the ids of the prefix's cluster and its ancestors, or what is wrong with `cluster.json`."""
    try:
        return owners_of(open_cluster_file(open_store_of(options))), None
    except ObjectNotFound as e:
        return None, f"{CLUSTER_KEY}: {e}"
    except CorruptionError as e:
        return None, str(e)


def _summary(checked: Any, problem: str | None, topics: Iterable[str]) -> dict[str, Any]:
    """Return what was proved. Partitions are those with something in the archive: others prove nothing."""
    totals = checked.agg(
        F.count("base_offset").alias("segments"),
        F.countDistinct("topic_id", "partition").alias("partitions"),
        F.coalesce(F.sum("records"), F.lit(0)).alias("records"),
        F.coalesce(F.sum("size_bytes"), F.lit(0)).alias("bytes"),
        F.coalesce(F.sum(F.size("errors")), F.lit(0)).alias("error_count"),
    ).first()
    archived = {row.topic for row in checked.select("topic").distinct().collect()}
    days = checked.select("topic", F.explode("days").alias("one")).groupBy("topic", "one.day")
    wrong = checked.where("size(errors) > 0").select(
        "topic", "partition", "base_offset", "object", F.explode("errors").alias("error")
    )
    errors = [
        row.asDict() for row in wrong.orderBy("topic", "partition", "base_offset").limit(MAX_LISTED).collect()
    ]
    if problem is not None:
        errors.insert(0, {"object": CLUSTER_KEY, "error": problem})
    return {
        **totals.asDict(),
        "error_count": totals.error_count + (problem is not None),
        "errors": errors,
        "topics_without_archive": sorted(set(topics) - archived),
        "days": [
            {"topic": row.topic, "day": row.day.isoformat(), "records": row.records}
            for row in days.agg(F.sum("one.records").alias("records")).orderBy("topic", "day").collect()
        ],
    }


def _as_text(found: dict[str, Any]) -> str:
    lines = [f"{'topic':<24} {'day':<12} {'records':>14}"]
    lines += [f"{one['topic']:<24} {one['day']:<12} {one['records']:>14,}" for one in found["days"]]
    lines += [
        f"ERROR: {one['error']}"
        if one["object"] in one["error"]
        else f"ERROR: {one['object']}: {one['error']}"
        for one in found["errors"]
    ]
    if found["topics_without_archive"]:
        lines.append(f"not in the archive: {', '.join(found['topics_without_archive'])}")
    lines.append("clean" if not found["error_count"] else f"{found['error_count']} errors")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main("audit", add_audit_arguments, run))
