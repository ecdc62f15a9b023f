"""`firn rewrite`: merges small objects of a cluster's bucket from outside of its brokers."""

from __future__ import annotations

import argparse
import re
from functools import partial
from typing import TYPE_CHECKING

from service.cli.address import add_bootstrap_option
from service.cli.arguments import add_json_option
from service.cli.client_properties import security_of_args
from service.cli.report import Report
from service.cli.stores import add_encryption_options, add_store_options, encryption_of, endpoint_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from service.base.types import TopicIdPartition
    from service.client.admin import Cluster
    from service.client.admin_models import TopicInfo
    from service.remote.stores.store import ObjectStore
    from service.tiering.rewriting.merge_plan import MergeLimits
    from service.tiering.rewriting.outside_worker import OutsideWorker, PlannedMerges
    from service.tiering.rewriting.rules import ChainRun

_MIB = 1 << 20
_RETENTION = ("retention.ms", "retention.bytes")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "rewrite",
        help="merge small objects of a bucket, with another process than the brokers",
        description="Merge runs of at least eight small neighbouring objects of each partition into one."
        " Brokers do so by themselves (firn.merge.enable); this takes the work off them, for an archive that"
        " has many. It reads and writes the bucket, and has the partition's leader publish each run. Without"
        " --execute it tells what it would do.",
    )
    parser.add_argument("--url", required=True, metavar="URL", help="the cluster's firn.remote.url")
    parser.add_argument("--topics", default=".*", metavar="REGEX", help="topics by name (default: all)")
    parser.add_argument("--execute", action="store_true", help="merge; otherwise only print the plan")
    parser.add_argument(
        "--small-bytes", type=int, default=16 * _MIB, metavar="N", help="merge smaller objects (16 MiB)"
    )
    parser.add_argument(
        "--object-bytes", type=int, default=128 * _MIB, metavar="N", help="most bytes of one object (128 MiB)"
    )
    parser.add_argument(
        "--min-age-hours",
        type=float,
        default=24,
        metavar="H",
        help="leave segments of newer uploads alone (24)",
    )
    add_bootstrap_option(parser)
    add_store_options(parser)
    add_encryption_options(parser)
    add_json_option(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from service.base.world import system_world
    from service.client.admin import Cluster
    from service.remote.format.stamp import Stamp, Writer
    from service.remote.stores.obstore_store import open_store
    from service.tiering.rewriting.outside_worker import OutsideWorker

    pattern, limits = _checked(args)
    world = system_world()
    store = open_store(
        args.url, world=world, endpoint=endpoint_of(args), region=args.region,
        encryption=encryption_of(args), must_exist=True,
    )  # fmt: skip
    writer, security = Writer(0, world.new_uuid()), security_of_args(args)

    def connect() -> Cluster:
        return Cluster(args.bootstrap_server, security=security)

    with connect() as cluster:
        cluster_id, topics = _same_cluster(store, cluster), cluster.topics()
    worker = OutsideWorker(store, cluster_id, world, lambda: Stamp(world.clock.now_ms(), writer))
    chosen = [one for one in topics if one.topic_id is not None and pattern.fullmatch(one.name) is not None]
    return _merge(args, connect, worker, chosen, partial(_within, connect, limits))


def _checked(args: argparse.Namespace) -> tuple[re.Pattern[str], MergeLimits]:
    """Return the topics and the limits of the options. Raises `ConfigError`."""
    from service.base.errors import ConfigError
    from service.config.tables import store_url_problem
    from service.tiering.rewriting.merge_plan import MergeLimits

    if problem := store_url_problem(args.url):
        raise ConfigError(f"--url {args.url}: {problem}")
    try:
        pattern = re.compile(args.topics)
    except re.error as e:
        raise ConfigError(f"--topics {args.topics}: {e}") from e
    for name, value, least in (
        ("--small-bytes", args.small_bytes, 1),
        ("--object-bytes", args.object_bytes, _MIB),
        ("--min-age-hours", args.min_age_hours, 0),
    ):
        if not least <= value <= 1 << 30:
            raise ConfigError(f"{name}: {value} is not from {least} to {1 << 30}")
    return pattern, MergeLimits(args.small_bytes, round(args.min_age_hours * 3_600_000), args.object_bytes)


def _same_cluster(store: ObjectStore, cluster: Cluster) -> str:
    """Return the id of the cluster. Raises `ConfigError` unless the brokers' and the bucket's are one."""
    from service.base.errors import ConfigError
    from service.remote.reading.object_reader import open_cluster

    own, found = cluster.describe().cluster_id, open_cluster(store)
    if own != found:
        raise ConfigError(f"the bucket is of cluster {found}, the brokers are of {own}")
    return found


def _merge(
    args: argparse.Namespace,
    connect: Callable[[], Cluster],
    worker: OutsideWorker,
    topics: Sequence[TopicInfo],
    limits_of: Callable[[str], MergeLimits],
) -> int:
    """Plan, and merge with --execute; return the exit code: 1 where a run was not merged, or a partition or
    topic not planned."""
    from service.base.errors import RequestError
    from service.base.types import TopicIdPartition

    report = Report("runs", "failed", as_json=args.json)
    objects = saved = merged = 0
    is_left = False
    for topic in topics:
        try:
            limits = limits_of(topic.name)
        except RequestError as e:
            report.add("failed", f"{topic.name}: not planned: {e}", topic=topic.name, why=str(e))
            is_left = True
            continue
        for one in topic.partitions:
            tip = TopicIdPartition(topic.topic_id, topic.name, one.partition)
            plan = _planned(worker, tip, limits, report)
            if plan is None:
                is_left = True
                continue
            objects += plan.segments
            for found in plan.runs:
                saved += len(found.entries) - 1
                if args.execute and not _merge_one(connect, worker, found, report):
                    is_left = True
                    continue
                merged += args.execute
                report.add(
                    "runs",
                    f"{tip}: {len(found.entries)} objects of {found.size} bytes from offset "
                    f"{found.base_offset} to {found.last_offset}" + (": merged" if args.execute else ""),
                    topic=tip.topic, partition=tip.partition, first_offset=found.base_offset,
                    last_offset=found.last_offset, objects=len(found.entries), bytes=found.size,
                )  # fmt: skip
    report.say(
        f"{objects} objects, {saved} fewer by merging"
        + (f": {merged} runs merged" if args.execute else " (--execute merges)")
    )
    report.end(objects=objects, fewer=saved, executed=args.execute, merged=merged)
    return 1 if is_left else 0


def _within(connect: Callable[[], Cluster], limits: MergeLimits, topic: str) -> MergeLimits:
    """Return the limits for a topic with its retention."""
    with connect() as cluster:
        found = cluster.topic_configs([topic], _RETENTION)[topic]
    retention_ms, retention_bytes = (int(found[key] or 0) for key in _RETENTION)
    return limits.within(retention_ms, retention_bytes)


def _planned(
    worker: OutsideWorker, tip: TopicIdPartition, limits: MergeLimits, report: Report
) -> PlannedMerges | None:
    """Return the plan of a partition; None where its chain cannot be read, which holds up no other."""
    from service.base.errors import CorruptionError
    from service.remote.stores.errors import ObjectNotFound, StoreRefused, raise_of_the_store

    try:
        return worker.plan_merges(tip, limits)
    except (CorruptionError, ObjectNotFound, StoreRefused) as e:
        raise_of_the_store(e)
        report.add("failed", f"{tip}: not planned: {e}", topic=tip.topic, partition=tip.partition, why=str(e))
        return None


def _merge_one(
    connect: Callable[[], Cluster], worker: OutsideWorker, found: ChainRun, report: Report
) -> bool:
    """Merge one run; return whether it is published. A run that is not holds up no other."""
    import time

    from service.base.errors import CorruptionError, RequestError, StorageError
    from service.client.range_rewrites import RangeLeader
    from service.tiering.rewriting.rules import MergeRule

    try:
        worker.rewrite(RangeLeader(connect, found.tip, time.sleep), found, MergeRule())
    except (RequestError, CorruptionError, StorageError) as e:
        words = f"{found.tip}: not merged from offset {found.base_offset}: {e}"
        report.add("failed", words, topic=found.tip.topic, partition=found.tip.partition, why=str(e))
        return False
    return True
