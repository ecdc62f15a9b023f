"""The replay job: sends a range of the archive back into a topic, rate-limited and resumable.

    firn pipeline replay s3://bucket/prefix --topics flights --from 2013-02-01 --to 2013-03-01 \\
        --bootstrap-server host:9092 --into flights-february --state /var/lib/replay

One task at a time sends a partition, so the order within it is kept (`replay_claim`). Keys, values, headers
and timestamps are those of the archive. The range is resolved once and kept in the state, with the progress
of each partition.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from service.base.clock import SystemClock
from service.base.errors import ConfigError, StorageError
from service.pipelines.arguments import add_replay_arguments
from service.pipelines.job import ProgressLine, human_bytes, main, source_options, spark_session
from service.pipelines.replay_claim import Attempts, begin_run
from service.pipelines.replay_state import (
    JOB_KEY,
    MAX_STATE_BYTES,
    Job,
    Part,
    PartState,
    decode_job,
)
from service.pipelines.replay_task import Replayer, ReplayWork, open_state
from service.remote.stores.errors import ObjectNotFound
from service.remote.stores.store import ObjectStore
from service.spark.options import STORE_OPTIONS, ReadOptions, named, parse_options
from service.spark.plan.archive import ArchiveReader
from service.spark.plan.ranges import plan_ranges, resolve_ranges, within
from service.spark.plan.splits import Split
from service.spark.store import open_store_of
from service.spark.tail.options import refuse_tail
from service.spark.write.options import producer_settings
from service.spark.write.target import Target, retention_of, target_of


def run(args: argparse.Namespace) -> int:
    """Send a range of the archive back into a topic."""
    given = source_options(args)
    refuse_tail(given, "replay reads the archive; brokers only receive it (--bootstrap-server)")
    options = parse_options({**given, "includeHeaders": "true"})
    settings = producer_settings(args.bootstrap_server, dict(args.client), "--client ")
    target = target_of(settings, args.into)
    state_url = _state_url(args.state)
    state = open_state(state_url, options)
    with ArchiveReader(open_store_of(options), read_committed=options.read_committed) as archive:
        job = _job(state, archive, options, args, target)
        attempts = Attempts(state)
        before = {part: attempts.newest(part)[1] for part in job.parts}
        works = _works(archive, options, before)
    warn_of_retention(works, args.into, retention_of(settings, args.into), SystemClock().now_ms())
    with (
        spark_session("replay", args) as spark,
        ProgressLine(lambda: _so_far(attempts, job.parts)) as progress,
    ):
        refuse_speculation(spark)
        if works:
            replayer = Replayer(
                options, state_url, begin_run(state), args.into, args.keep_partition, None, None, settings
            )
            _send(spark, works, replayer, args)
        after = [Attempts(state).newest(part)[1] for part in job.parts]
        records = sum(one.records for one in after) - sum(one.records for one in before.values())
        size = sum(one.size_bytes for one in after) - sum(one.size_bytes for one in before.values())
        progress.done(f"replay: {records:,} records, {human_bytes(size)} into {args.into}")
    return 0


def warn_of_retention(works: Sequence[ReplayWork], into: str, kept_ms: int | None, now_ms: int) -> None:
    """Say on stderr that the brokers will delete what is sent, where it is older than the topic keeps it."""
    newest = [piece.entry.max_timestamp for work in works for piece in work.split.pieces]
    old = [one for one in newest if kept_ms is not None and 0 < one < now_ms - kept_ms]
    if old:
        print(
            f"replay: {len(old)} of {len(newest)} segments are older than {into} keeps records"
            f" (retention.ms={kept_ms}): brokers delete such records soon after they arrive."
            f" 'firn topic alter {into} --config retention.ms=-1' keeps them",
            file=sys.stderr,
        )


def refuse_speculation(spark: Any) -> None:
    """Raise `ConfigError` where Spark would run two attempts of a task at the same time."""
    if spark.sparkContext.getConf().get("spark.speculation", "false").strip().lower() == "true":
        raise ConfigError(
            "spark.speculation=true is refused: two tasks would send a partition at the same time and repeat "
            "its records; --conf spark.speculation=false"
        )


def _state_url(given: str) -> str:
    if "://" in given:
        if given.startswith("file:///"):
            Path(given.removeprefix("file://")).mkdir(parents=True, exist_ok=True)
        return given
    folder = Path(given).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    return folder.as_uri()


def _job(
    state: ObjectStore, archive: ArchiveReader, options: ReadOptions, args: argparse.Namespace, target: Target
) -> Job:
    """Return the job of the state, or a new job. `ConfigError` where the state is of another one."""
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
        if args.keep_partition:
            target.refuse_beyond(part.partition for part in parts)
        job = Job(asked, parts, target.topic_id)
        if state.put_if_absent(JOB_KEY, job.encode()):
            return job
        raise ConfigError(f"--state {args.state}: another replay has just started with it") from None
    if job.asked != asked:
        differ = sorted(name for name in asked if job.asked.get(name) != asked[name])
        raise ConfigError(
            f"--state {args.state} is of another replay ({', '.join(differ)} differ); use an empty one"
        )
    if job.target_id not in (None, target.topic_id):
        raise ConfigError(
            f"topic {args.into} was deleted and created again since --state {args.state} was written: the "
            "records sent before are gone with the old topic. Use an empty state"
        )
    return job


def _works(archive: ArchiveReader, options: ReadOptions, states: dict[Part, PartState]) -> list[ReplayWork]:
    """Return the rest of each partition, as one split in the order of its offsets."""
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
                f"{part.topic}-{part.partition}: topic {part.topic_id} is no longer in the archive"
            )
        if state.next_offset >= part.end_offset:
            continue
        rest = within(
            snapshot, state.next_offset, part.end_offset, fail_on_data_loss=options.fail_on_data_loss
        )
        splits = plan_ranges(archive, [rest], unsplit)
        works.append(
            ReplayWork(
                part, Split(tuple(p for s in splits for p in s.pieces), sum(s.size_bytes for s in splits))
            )
        )
    return works


def _send(spark: Any, works: Sequence[ReplayWork], replayer: Replayer, args: argparse.Namespace) -> None:
    slots = min(len(works), args.parallelism or spark.sparkContext.defaultParallelism)
    # The longest comes first, and each goes to the slot with the least work.
    groups: list[list[ReplayWork]] = [[] for _ in range(slots)]
    for work in sorted(works, key=lambda one: -one.split.size_bytes):
        min(groups, key=lambda group: sum(one.split.size_bytes + 1 for one in group)).append(work)
    replayer = replace(
        replayer,
        records_per_second=args.records_per_second / slots if args.records_per_second else None,
        bytes_per_second=args.bytes_per_second / slots if args.bytes_per_second else None,
    )
    spark.sparkContext.parallelize(groups, slots).mapPartitions(replayer).collect()


def _so_far(attempts: Attempts, parts: Sequence[Part]) -> str:
    states = [PartState(part.begin_offset) for part in parts]
    with suppress(StorageError, ConfigError):
        states = [attempts.newest(part)[1] for part in parts]
    done = sum(one.next_offset >= part.end_offset for one, part in zip(states, parts, strict=True))
    sent, size = sum(one.records for one in states), sum(one.size_bytes for one in states)
    return f"replay: {sent:,} records, {human_bytes(size)} sent, {done} of {len(parts)} partitions done"


if __name__ == "__main__":
    sys.exit(main("replay", add_replay_arguments, run))
