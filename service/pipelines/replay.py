"""A range of the archive back into a topic, through its brokers: rate-limited, and resumed where it ended.

    firn pipeline replay s3://bucket/prefix --topics flights --from 2013-02-01 --to 2013-03-01 \\
        --bootstrap-server host:9092 --into flights-february --state /var/lib/replay

One task at a time reads a partition, so the order within it is kept. Keys, values, headers and timestamps
are those of the archive. The range is resolved once and kept in the state with how far each partition is.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from service.base.errors import ConfigError, StorageError
from service.pipelines.arguments import add_replay_arguments
from service.pipelines.job import Progress, human_bytes, main, source_options, spark_session
from service.pipelines.replay_state import (
    JOB_KEY,
    MAX_STATE_BYTES,
    Job,
    Part,
    PartState,
    decode_job,
)
from service.pipelines.replay_task import Replayer, Work, open_state, read_state
from service.remote.errors import ObjectNotFound
from service.remote.store import ObjectStore
from service.spark.options import STORE_OPTIONS, ReadOptions, named, parse_options
from service.spark.plan.archive import Archive
from service.spark.plan.ranges import plan_ranges, resolve_ranges, within
from service.spark.plan.splits import Split
from service.spark.store import open_store_of
from service.spark.tail.options import refuse_tail


def run(args: argparse.Namespace) -> int:
    """Send a range of the archive back into a topic."""
    given = source_options(args)
    refuse_tail(given, "replay reads what is archived; brokers only get it (--bootstrap-server)")
    options = parse_options({**given, "includeHeaders": "true"})
    state_url = _state_url(args.state)
    state = open_state(state_url, options)
    with Archive(open_store_of(options), read_committed=options.read_committed) as archive:
        job = _job(state, archive, options, args)
        before = {part: read_state(state, part) for part in job.parts}
        works = _works(archive, options, before)
    with spark_session("replay", args) as spark, Progress(lambda: _so_far(state, job.parts)) as progress:
        if works:
            _send(spark, works, options, state_url, args)
        after = [read_state(state, part) for part in job.parts]
        records = sum(one.records for one in after) - sum(one.records for one in before.values())
        size = sum(one.size_bytes for one in after) - sum(one.size_bytes for one in before.values())
        progress.done(f"replay: {records:,} records, {human_bytes(size)} into {args.into}")
    return 0


def _state_url(given: str) -> str:
    if "://" in given:
        if given.startswith("file:///"):
            Path(given.removeprefix("file://")).mkdir(parents=True, exist_ok=True)
        return given
    folder = Path(given).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    return folder.as_uri()


def _job(state: ObjectStore, archive: Archive, options: ReadOptions, args: argparse.Namespace) -> Job:
    """What the state says is to be done, or a new job. `ConfigError` where the state is of another one."""
    asked: dict[str, Any] = {
        "source": {
            name: value for name, value in named(source_options(args)).items() if name not in STORE_OPTIONS
        },
        "into": args.into,
        "keep_partition": args.keep_partition,
    }
    try:
        job = decode_job(state.get(JOB_KEY, max_size=MAX_STATE_BYTES))
    except ObjectNotFound:
        parts = tuple(
            Part(s.chosen.topic, str(s.chosen.topic_id), s.chosen.partition, begin, end)
            for s, begin, end in resolve_ranges(archive, options)
        )
        job = Job(asked, parts)
        state.put(JOB_KEY, job.encode())
        return job
    if job.asked != asked:
        differ = sorted(name for name in asked if job.asked.get(name) != asked[name])
        raise ConfigError(
            f"--state {args.state} is of another replay ({', '.join(differ)} differ); use an empty one"
        )
    return job


def _works(archive: Archive, options: ReadOptions, states: dict[Part, PartState]) -> list[Work]:
    """What is left of each partition, as one split in the order of its offsets."""
    unsplit = replace(
        options, max_partition_bytes=1 << 62, min_partitions=None, max_records_per_partition=None
    )
    snapshots = {
        (str(s.chosen.topic_id), s.chosen.partition): s
        for s in archive.snapshots(archive.choose(options.choice))
    }
    works = []
    for part, state in states.items():
        snapshot = snapshots.get((part.topic_id, part.partition))
        if snapshot is None:
            raise StorageError(
                f"{part.topic}-{part.partition}: topic {part.topic_id} is not in the archive any more"
            )
        if state.next_offset >= part.end_offset:
            continue
        rest = within(
            snapshot, state.next_offset, part.end_offset, fail_on_data_loss=options.fail_on_data_loss
        )
        splits = plan_ranges(archive, [rest], unsplit)
        works.append(
            Work(part, Split(tuple(p for s in splits for p in s.pieces), sum(s.size_bytes for s in splits)))
        )
    return works


def _send(
    spark: Any, works: Sequence[Work], options: ReadOptions, state_url: str, args: argparse.Namespace
) -> None:
    slots = min(len(works), args.parallelism or spark.sparkContext.defaultParallelism)
    # The longest first, each to the slot that has the least.
    groups: list[list[Work]] = [[] for _ in range(slots)]
    for work in sorted(works, key=lambda one: -one.split.size_bytes):
        min(groups, key=lambda group: sum(one.split.size_bytes + 1 for one in group)).append(work)
    replayer = Replayer(
        options,
        state_url,
        args.into,
        args.keep_partition,
        args.records_per_second / slots if args.records_per_second else None,
        args.bytes_per_second / slots if args.bytes_per_second else None,
        {**dict(args.client), "bootstrap.servers": args.bootstrap_server},
    )
    spark.sparkContext.parallelize(groups, slots).mapPartitions(replayer).collect()


def _so_far(state: ObjectStore, parts: Sequence[Part]) -> str:
    states = [PartState(part.begin_offset) for part in parts]
    with suppress(StorageError, ConfigError):
        states = [read_state(state, part) for part in parts]
    done = sum(one.next_offset >= part.end_offset for one, part in zip(states, parts, strict=True))
    sent, size = sum(one.records for one in states), sum(one.size_bytes for one in states)
    return f"replay: {sent:,} records, {human_bytes(size)} sent, {done} of {len(parts)} partitions done"


if __name__ == "__main__":
    sys.exit(main("replay", add_replay_arguments, run))
