"""The erasure job: carries out the bucket's part of an open order to erase keys, on many machines.

    firn pipeline erase s3://bucket/prefix 0b7f3c9e-52a4-4b8e-9d3a-6f1c2a865a0b --bootstrap-server host:9092

Brokers do that by themselves, one object at a time on each. For a large archive, or one whose objects have no
filters of keys, this takes the work off them: tasks read and write the bucket, and the leader of each
partition publishes what they made. Exit code 1 where a part of it is left.
"""

from __future__ import annotations

import argparse
import json
import re
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple
from uuid import uuid4

from crc32c import crc32c
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from service.base.errors import ConfigError, FirnError, StorageError
from service.base.stop_signals import stops_received
from service.base.types import TopicIdPartition
from service.base.world import system_world
from service.client.admin import Cluster
from service.client.admin_models import TopicInfo
from service.client.all_brokers import CommandDeadline
from service.client.erasures import FoundOrders, find_orders
from service.client.security import security_of
from service.config.client import parse_client
from service.pipelines.arguments import add_erase_arguments
from service.pipelines.erase_chains import read_chain
from service.pipelines.erase_job import EraseJob, JobSetup, LeftOver
from service.pipelines.erase_leaders import RangeLeaders
from service.pipelines.erase_task import Looked, Looks, MadePart, Makes, ObjectToJudge, PartToMake, TaskSetup
from service.pipelines.failure import failure_of
from service.pipelines.job import (
    ProgressLine,
    check_store_options,
    human_bytes,
    main,
    source_options,
    spark_session,
)
from service.remote.format.cut_codec import ErasureRef
from service.remote.format.documents import MAX_STORED_BYTES
from service.remote.format.erase_codec import ErasureOrder, decode_erasure
from service.remote.format.keys import erasure_key
from service.remote.opened_order import end_of
from service.remote.order_end import OrderEnd
from service.remote.reading.object_reader import open_cluster
from service.remote.stores.errors import ObjectNotFound, naming
from service.remote.stores.s3_encryption import s3_encryption
from service.remote.stores.store import ObjectStore
from service.spark.options import ReadOptions, Subscribe, SubscribePattern, parse_options
from service.spark.plan.archive import parse_topic_id
from service.spark.store import open_to_write
from service.tiering.erasing.stretches import HitObject, StretchLimits, find_stretches

TASKS_PER_CORE: Final = 4
_ORDERS_S: Final = 60.0
"""Longest wait for all brokers to tell of their orders."""


class OrderToCarryOut(NamedTuple):
    """An order, the reference to its object, and where it ends in each partition that is chosen."""

    order: ErasureOrder
    ref: ErasureRef
    ends: Mapping[TopicIdPartition, OrderEnd]


def run(args: argparse.Namespace) -> int:
    """Carry out the bucket's part of an open order to erase keys, on many machines."""
    check_store_options(args, "an erasure looks at all that its order names")
    options = parse_options(source_options(args))
    encryption = s3_encryption(args.sse, args.sse_kms_key_id)
    store = open_to_write(options, encryption)
    security = security_of(parse_client(dict(args.client), "--client "), secrets.token_urlsafe)

    def connect() -> Cluster:
        return Cluster(args.bootstrap_server, security=security)

    with connect() as cluster:
        cluster_id = _same_cluster(store, cluster)
        row = _row_of(find_orders(cluster, CommandDeadline(_ORDERS_S, system_world())), str(args.order))
        chosen = _chosen(store, options, args, cluster_id, cluster.topics())
    if row["state"] != "open":
        _print(
            args,
            {"order": row["id"], "state": row["state"]},
            [f"order {row['id']} is {row['state']} already"],
        )
        return 0
    setup = TaskSetup(options, encryption, cluster_id, chosen.ref)
    with spark_session("erase", args, sorted({tip.topic for tip in chosen.ends})) as spark:
        if args.dry_run:
            return _plan(args, _SparkExecutors(spark, setup, reads_objects=False), store, chosen)
        with RangeLeaders(connect, args.order, time.sleep) as leaders:
            return _erase(args, _SparkExecutors(spark, setup), leaders, store, chosen, connect)


def _same_cluster(store: ObjectStore, cluster: Cluster) -> str:
    """Return the id of the cluster. Raises `ConfigError` unless the brokers' and the bucket's are one."""
    own = cluster.describe().cluster_id
    try:
        found = open_cluster(store)
    except ObjectNotFound as e:
        raise ConfigError(f"there is no archive under this url: {e}") from e
    if own != found:
        raise ConfigError(f"the bucket is of cluster {found}, the brokers are of {own}")
    return found


def _row_of(found: FoundOrders, order_id: str) -> Mapping[str, Any]:
    """Return what brokers tell of the order. Raises `ConfigError` where it is none of theirs."""
    row = found.orders.get(order_id)
    if row is None and (found.silent or found.away):
        raise ConfigError(f"no broker that answers knows order {order_id}", *found.silent, *found.away)
    if row is None:
        raise ConfigError(f"there is no order {order_id}: it is gone, or never was")
    return row


def _chosen(
    store: ObjectStore,
    options: ReadOptions,
    args: argparse.Namespace,
    cluster_id: str,
    topics: Sequence[TopicInfo],
) -> OrderToCarryOut:
    """Return the order in the bucket, and the partitions that it and the options name, of topics that are
    there. Raises `ConfigError` for none."""
    key = erasure_key(args.order)
    with naming(key):
        data = store.get(key, max_size=MAX_STORED_BYTES)
        order = decode_erasure(data)
    if order.id != args.order or order.cluster_id != cluster_id:
        raise ConfigError(f"{key} is order {order.id} of cluster {order.cluster_id}")
    there = {one.topic_id: one for one in topics}
    known = [one for one in order.topics if one.topic_id in there]
    by_topic = {one.topic_id: one for one in known}
    ends = {
        TopicIdPartition(one.topic_id, there[one.topic_id].name, partition): end_of(
            by_topic, one.topic_id, partition
        )
        for one in known
        if _is_chosen(options, there[one.topic_id])
        for partition, end in enumerate(one.ends)
        if end > 0
    }
    if not ends:
        names = ", ".join(sorted(there[one.topic_id].name for one in known)) or "none that is there"
        raise ConfigError(f"no topic of the order is chosen; it has {names}")
    return OrderToCarryOut(order, ErasureRef(order.id, key, len(data), crc32c(data)), ends)


def _is_chosen(options: ReadOptions, topic: TopicInfo) -> bool:
    choice = options.choice
    if isinstance(choice, Subscribe):
        return any(name == topic.name or parse_topic_id(name) == topic.topic_id for name in choice.topics)
    assert isinstance(choice, SubscribePattern)
    return re.fullmatch(choice.pattern, topic.name) is not None


class _SparkExecutors:
    """Tasks on Spark; for any thread."""

    def __init__(self, spark: Any, setup: TaskSetup, *, reads_objects: bool = True) -> None:
        context = spark.sparkContext
        self._context = context
        self._description = context.getLocalProperty("spark.job.description")
        self._tasks = context.defaultParallelism * TASKS_PER_CORE
        self.objects, self.bytes_read = context.accumulator(0), context.accumulator(0)
        self._looks = Looks(setup, reads_objects, self.objects, self.bytes_read)
        self._makes = Makes(setup, self.bytes_read)
        self.stretch_tasks = max(1, context.defaultParallelism)

    def look(self, candidates: Sequence[ObjectToJudge]) -> list[Looked]:
        return self._run(candidates, min(len(candidates), self._tasks), self._looks)

    def make(self, parts: Sequence[PartToMake]) -> list[MadePart]:
        return self._run(parts, len(parts), self._makes)

    def _run(self, rows: Sequence[Any], tasks: int, work: Any) -> list[Any]:
        try:
            self._context.setJobDescription(self._description)  # a thread has its own
            found: list[Any] = self._context.parallelize(rows, tasks).mapPartitions(work).collect()
        except (PySparkException, Py4JError) as e:
            failure = failure_of(str(e))
            raise StorageError(": ".join(filter(None, failure))) from e
        return found

    def cancel(self) -> None:
        with suppress(PySparkException, Py4JError):
            self._context.cancelAllJobs()


def _erase(
    args: argparse.Namespace,
    executors: _SparkExecutors,
    leaders: RangeLeaders,
    store: ObjectStore,
    chosen: OrderToCarryOut,
    connect: Callable[[], Cluster],
) -> int:
    order_id = str(args.order)

    def is_open() -> bool:
        try:
            with connect() as cluster:
                found = find_orders(cluster, CommandDeadline(_ORDERS_S, system_world()))
        except (FirnError, OSError):
            return True  # nobody says otherwise: the leaders will
        row = found.orders.get(order_id)
        if row is None:
            return bool(found.silent or found.away)
        return bool(row["state"] == "open")

    limits = StretchLimits(args.object_bytes, args.object_bytes * executors.stretch_tasks)
    job = EraseJob(JobSetup(store, executors, leaders, chosen.ends, limits, args.wait, uuid4, is_open))
    tally = job.tally

    def status() -> str:
        return (
            f"erase: {executors.objects.value:,} objects looked at, {human_bytes(executors.bytes_read.value)}"
            f" read, {tally.objects_before:,} of {tally.hits:,} with records of the keys written anew"
        )

    with _stopping(job, executors) as signals, ProgressLine(status) as progress:
        left = job.run()
        progress.done(
            f"erase: {tally.clean:,} of {len(chosen.ends):,} partitions clean, {tally.objects:,} objects"
            f" looked at, {tally.objects_before:,} written anew"
        )
    document = {
        "order": order_id,
        "state": "open",
        "partitions": len(chosen.ends),
        "clean": tally.clean,
        "objects": tally.objects,
        "objects_with_records": tally.hits,
        "bytes_read": executors.bytes_read.value,
        "rewrites": tally.rewrites,
        "objects_before": tally.objects_before,
        "objects_after": tally.objects_after,
        "bytes_before": tally.bytes_before,
        "bytes_after": tally.bytes_after,
        "remains": [_left(one) for one in left],
    }
    _print(args, document, _lines(document, left))
    return 128 + signals[0] if signals else 1 if left else 0


def _plan(
    args: argparse.Namespace, executors: _SparkExecutors, store: ObjectStore, chosen: OrderToCarryOut
) -> int:
    """Look at filters alone, and say what there would be to do."""
    limits = StretchLimits(args.object_bytes, args.object_bytes * executors.stretch_tasks)
    objects = hits = rewrites = size = 0
    problems = []
    for tip, end in sorted(chosen.ends.items()):
        candidates = read_chain(store, tip, end, ()).candidates
        found = executors.look(candidates) if candidates else []
        problems += [one.problem for one in found if one.problem is not None]
        some = [HitObject(one.candidate.unit, one.candidate.entry) for one in found if one.is_hit]
        objects, hits = objects + len(candidates), hits + len(some)
        size += sum(one.entry.size for one in some)
        rewrites += len(find_stretches(tip, some, limits))
    document = {
        "order": str(args.order),
        "state": "open",
        "partitions": len(chosen.ends),
        "objects": objects,
        "objects_that_may_have_records": hits,
        "bytes_that_may_have_records": size,
        "rewrites": rewrites,
        "problems": problems,
    }
    lines = [
        f"{hits:,} of {objects:,} objects in {len(chosen.ends):,} partitions may have records of the keys: "
        f"{human_bytes(size)} are read, and what has some is written anew in up to {rewrites:,} rewrites",
        *(f"ERROR: {one}" for one in problems),
        "nothing was written: --dry-run",
    ]
    _print(args, document, lines)
    return 1 if problems else 0


@contextmanager
def _stopping(job: EraseJob, executors: _SparkExecutors) -> Iterator[list[int]]:
    """Have stopping signals end the job, which gives up the rewrites that it has begun; yield the signals."""
    received: list[int] = []

    def stop(number: signal.Signals) -> None:
        received.append(number)
        job.stop()
        # The main thread may wait for Spark just now, over the connection that a call here would use.
        threading.Thread(target=executors.cancel, daemon=True).start()

    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    with stops_received(stop):
        yield received


def _left(one: LeftOver) -> dict[str, Any]:
    row: dict[str, Any] = {"topic": one.tip.topic, "partition": one.tip.partition, "why": one.why}
    if one.first_offset >= 0:
        row |= {"first_offset": one.first_offset, "last_offset": one.last_offset}
    return row


def _lines(found: Mapping[str, Any], left: Sequence[LeftOver]) -> list[str]:
    lines = [
        f"{found['clean']:,} of {found['partitions']:,} partitions are clean",
        f"{found['objects']:,} objects were looked at, {found['objects_with_records']:,} had records of the"
        f" keys, {human_bytes(found['bytes_read'])} were read",
        f"{found['objects_before']:,} objects of {human_bytes(found['bytes_before'])} became "
        f"{found['objects_after']:,} of {human_bytes(found['bytes_after'])}",
    ]
    for one in left:
        where = f" from offset {one.first_offset} to {one.last_offset}" if one.first_offset >= 0 else ""
        lines.append(f"LEFT: {one.tip}{where}: {one.why}")
    lines.append(f"firn erase status {found['order']} says what else the order waits for")
    return lines


def _print(args: argparse.Namespace, document: Mapping[str, Any], lines: Sequence[str]) -> None:
    print(json.dumps(document, indent=2, ensure_ascii=False) if args.json else "\n".join(lines))


if __name__ == "__main__":
    sys.exit(main("erase", add_erase_arguments, run))
