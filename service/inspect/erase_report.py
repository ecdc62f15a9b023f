"""Cost of an order to erase keys, and the proof that nothing of its keys is left. Blocking.

Brokers count, part by part (`client/erasures.py`): each in its own logs, leaders in the objects of their
partitions, the keeper in the tails of all kept cuts. What could not be read is in the report, and makes it
prove nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any, Final, NamedTuple
from uuid import UUID

from service.base.errors import ConfigError, FirnError
from service.client.admin import Cluster
from service.client.admin_models import TopicInfo
from service.client.erasures import count, find_orders
from service.remote.format.erase_codec import ErasureOrder, encode_erasure
from service.wire.erasure_counts import Counted
from service.wire.erasures import ErasureOp, ErasureScope, ErasuresRequest

FORMAT: Final = "firn-erase-report"
_GET_PRICE: Final = 0.4e-6
_PUT_PRICE: Final = 5e-6
"""US$ of one request, by S3's list"""
_PUTS_A_RUN: Final = 4
"""An object, a page, a manifest and HEAD"""


class ErasurePlan(NamedTuple):
    """Cost of an order in the bucket: `objects` lie below its ends, of these `hit_objects` may have
    records of its keys by their filters, or have no filter. `problems`: partitions that were not looked
    at."""

    order: ErasureOrder
    objects: int
    size: int
    hit_objects: int
    hit_size: int
    gets: int
    puts: int
    problems: tuple[str, ...]

    @property
    def dollars(self) -> float:
        return self.gets * _GET_PRICE + self.puts * _PUT_PRICE


class Verified(NamedTuple):
    """One thing that was read: the log of a replica, the objects of a partition, or the tails of all kept
    cuts. `problem`: why not all of it was."""

    kind: str
    topic: str
    partition: int
    broker: int
    counts: Counted
    problem: str | None = None


class ErasureReport(NamedTuple):
    """Outcome of a verification."""

    cluster_id: str
    order_id: str
    at_ms: int
    keys: int
    topics: tuple[str, ...]
    places: tuple[Verified, ...]

    @property
    def records(self) -> int:
        """Records of the keys that were found."""
        return sum(one.counts.records for one in self.places)

    @property
    def is_clean(self) -> bool:
        return not self.records and all(one.problem is None for one in self.places)


def plan_of(cluster: Cluster, order: ErasureOrder) -> ErasurePlan:
    """Return what an order would take in the bucket. Reads the filters of all objects below its ends."""
    total, problems = Counted(), []
    data = encode_erasure(order)
    topics = {topic.topic_id: topic for topic in cluster.topics([one.name for one in order.topics])}
    for one in order.topics:
        for partition in topics[one.topic_id].partitions if one.topic_id in topics else ():
            request = ErasuresRequest(
                op=ErasureOp.LOOK,
                id=order.id,
                order=data,
                topic_id=one.topic_id,
                partition=partition.partition,
                scope=ErasureScope.OBJECTS,
            )
            found = _counted(cluster, partition.leader, request, f"{one.name}-{partition.partition}")
            total = total.plus(found.counts)
            problems += [found.problem] if found.problem is not None else []
    return ErasurePlan(
        order,
        total.objects,
        total.size,
        total.hit_objects,
        total.hit_size,
        # Filters once more, then each object that may have a hit is searched, and read to be written anew.
        total.requests + 3 * total.hit_objects,
        _PUTS_A_RUN * total.hit_objects,
        tuple(problems),
    )


def verify(cluster: Cluster, order_id: UUID | None, order: ErasureOrder | None, now_ms: int) -> ErasureReport:
    """Read all that the topics of an order have below its ends, and count records of its keys.

    The order is given, or is one of the cluster's. Raises `ConfigError` where there is no such order.
    """
    if order is None:
        row = find_orders(cluster).orders.get(str(order_id))
        if row is None:
            raise ConfigError(
                f"there is no order {order_id}: it is gone, or never was; --topics and its keys verify it"
            )
        ids = {UUID(str(one["id"])): str(one["name"]) for one in row["topics"]}
        identity, keys = UUID(str(row["id"])), int(row["keys"])
    else:
        ids = {one.topic_id: one.name for one in order.topics}
        identity, keys = order.id, order.keys
    data = None if order is None else encode_erasure(order)
    topics = [one for one in cluster.topics() if one.topic_id in ids]
    request = ErasuresRequest(op=ErasureOp.VERIFY, id=identity, order=data)
    places = [*_places(cluster, topics, request), _tails(cluster, request)]
    return ErasureReport(
        cluster.describe().cluster_id,
        "" if order is not None else str(identity),
        now_ms,
        keys,
        tuple(sorted(ids.values())),
        tuple(places),
    )


def _places(cluster: Cluster, topics: list[TopicInfo], request: ErasuresRequest) -> Iterator[Verified]:
    for topic in topics:
        for one in topic.partitions:
            what = f"{topic.name}-{one.partition}"
            for broker in one.replicas:
                part = _part(request, topic, one.partition, ErasureScope.LOCAL)
                found = _counted(cluster, broker, part, f"{what} at broker {broker}")
                yield Verified("log", topic.name, one.partition, broker, *found)
            part = _part(request, topic, one.partition, ErasureScope.OBJECTS)
            yield Verified(
                "objects", topic.name, one.partition, one.leader, *_counted(cluster, one.leader, part, what)
            )


def _tails(cluster: Cluster, request: ErasuresRequest) -> Verified:
    part = ErasuresRequest(op=ErasureOp.VERIFY, id=request.id, order=request.order, scope=ErasureScope.TAILS)
    return Verified("tails", "", -1, -1, *_counted(cluster, None, part, "tails"))


def _part(request: ErasuresRequest, topic: TopicInfo, partition: int, scope: int) -> ErasuresRequest:
    return ErasuresRequest(
        op=ErasureOp.VERIFY,
        id=request.id,
        order=request.order,
        topic_id=topic.topic_id,
        partition=partition,
        scope=scope,
    )


class _Found(NamedTuple):
    counts: Counted
    problem: str | None


def _counted(cluster: Cluster, broker: int | None, request: ErasuresRequest, what: str) -> _Found:
    """Return the sums over all parts; what cannot be asked or read is a problem."""
    total = Counted()
    if broker is not None and broker < 0:
        return _Found(total, f"{what}: it has no leader")
    try:
        for one in count(cluster, broker, request, what):
            total = total.plus(one)
    except (FirnError, OSError) as e:
        return _Found(total, str(e) or type(e).__name__)
    return _Found(total, None)


def sealed(report: ErasureReport) -> dict[str, Any]:
    """Return the report as a document, with the SHA-256 of its other fields: of their JSON with sorted keys
    and without spaces."""
    fields: dict[str, Any] = {
        "format": FORMAT,
        "format_version": 1,
        "cluster_id": report.cluster_id,
        "order": report.order_id,
        "at_ms": report.at_ms,
        "keys": report.keys,
        "topics": list(report.topics),
        "records_of_the_keys": report.records,
        "is_clean": report.is_clean,
        "read": [
            {
                "kind": one.kind,
                "topic": one.topic,
                "partition": one.partition,
                "broker": one.broker,
                "objects": one.counts.objects,
                "bytes_read": one.counts.bytes_read,
                "records_of_the_keys": one.counts.records,
                "problem": one.problem,
            }
            for one in report.places
        ],
    }
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return {**fields, "sha256": hashlib.sha256(text.encode()).hexdigest()}
