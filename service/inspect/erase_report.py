"""Cost of an order to erase keys, and the proof that nothing of its keys is left. Blocking.

Brokers count, part by part (`client/erasures.py`), all at the same time: each in its own logs, leaders in the
objects of their partitions, the keeper in the tails of all kept cuts. What could not be read before the
deadline is in the report, and makes it prove nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple
from uuid import UUID

from service.base.errors import ConfigError, RequestError
from service.client.admin import Cluster
from service.client.admin_models import TopicInfo
from service.client.all_brokers import CommandDeadline, ask_each
from service.client.blocking_client import BlockingClient
from service.client.erasures import FoundOrders, count, find_orders
from service.remote.format.erase_codec import ErasureOrder, encode_erasure
from service.wire.erasure_counts import Counted
from service.wire.erasures import ErasureOp, ErasureScope, ErasuresRequest

FORMAT: Final = "firn-erase-report"
_NOBODY: Final = -1
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
    cuts; or a deleted topic, of which there is nothing to read. `problem`: why not all of it was."""

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


class _Asked(NamedTuple):
    """One thing to count: what it is, and the broker that counts it."""

    kind: str
    topic: str
    partition: int
    broker: int
    request: ErasuresRequest

    @property
    def what(self) -> str:
        place = self.kind if self.partition < 0 else f"{self.topic}-{self.partition}"
        return f"{place} at broker {self.broker}" if self.kind == "log" else place


def plan_of(cluster: Cluster, order: ErasureOrder, deadline: CommandDeadline) -> ErasurePlan:
    """Return what an order would take in the bucket. Reads the filters of all objects below its ends."""
    data = encode_erasure(order)
    topics = {topic.topic_id: topic for topic in cluster.topics([one.name for one in order.topics])}
    asked, problems = [], []
    for one in order.topics:
        if one.topic_id not in topics:
            problems.append(f"{one.name}: it was deleted meanwhile")
            continue
        for partition in topics[one.topic_id].partitions:
            request = ErasuresRequest(
                op=ErasureOp.LOOK,
                id=order.id,
                order=data,
                topic_id=one.topic_id,
                partition=partition.partition,
                scope=ErasureScope.OBJECTS,
            )
            asked.append(_Asked("objects", one.name, partition.partition, partition.leader, request))
    total = Counted()
    for found in _counted(cluster, asked, deadline):
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


def verify(
    cluster: Cluster,
    order_id: UUID | None,
    order: ErasureOrder | None,
    now_ms: int,
    deadline: CommandDeadline,
) -> ErasureReport:
    """Read all that the topics of an order have below its ends, and count records of its keys.

    The order is given, or is one of the cluster's. Raises `ConfigError` where there is no such order.
    """
    known = find_orders(cluster, deadline)
    rows: Mapping[UUID, Mapping[str, Any]] = {}
    if order is None:
        row = known.orders.get(str(order_id))
        if row is None:
            raise ConfigError(
                f"there is no order {order_id}: it is gone, or never was; --topics and its keys verify it",
                *known.silent,
            )
        rows = {UUID(str(one["id"])): one for one in row["topics"]}
        ids = {topic_id: str(one["name"]) for topic_id, one in rows.items()}
        identity, keys = UUID(str(row["id"])), int(row["keys"])
    else:
        ids = {one.topic_id: one.name for one in order.topics}
        identity, keys = order.id, order.keys
    data = None if order is None else encode_erasure(order)
    topics = [one for one in cluster.topics() if one.topic_id in ids]
    request = ErasuresRequest(op=ErasureOp.VERIFY, id=identity, order=data)
    tails = replace(request, scope=ErasureScope.TAILS)
    asked = [*_places(topics, request), _Asked("tails", "", -1, _keeper(known), tails)]
    there = {one.topic_id for one in topics}
    missing = [
        _missing(name, rows.get(topic_id, {})) for topic_id, name in ids.items() if topic_id not in there
    ]
    return ErasureReport(
        cluster.describe().cluster_id,
        "" if order is not None else str(identity),
        now_ms,
        keys,
        tuple(sorted(ids.values())),
        (*_counted(cluster, asked, deadline), *sorted(missing, key=lambda one: one.topic)),
    )


def _missing(name: str, row: Mapping[str, Any]) -> Verified:
    """Return what is said of a topic that is not listed, of which `row` is what the order's brokers say."""
    why: str | None = f"{name}: it is not there, or this client may not describe it"
    if row.get("is_deleted") is True:
        has_objects = row.get("has_objects") is not False
        why = f"{name} is deleted, and its objects are not all gone yet" if has_objects else None
    return Verified("deleted topic", name, -1, _NOBODY, Counted(), why)


def _keeper(known: FoundOrders) -> int:
    return _NOBODY if known.keeper is None else known.keeper


def _places(topics: list[TopicInfo], request: ErasuresRequest) -> Iterator[_Asked]:
    for topic in topics:
        for one in topic.partitions:
            part = replace(request, topic_id=topic.topic_id, partition=one.partition)
            for broker in one.replicas:
                local = replace(part, scope=ErasureScope.LOCAL)
                yield _Asked("log", topic.name, one.partition, broker, local)
            objects = replace(part, scope=ErasureScope.OBJECTS)
            yield _Asked("objects", topic.name, one.partition, one.leader, objects)


def _counted(cluster: Cluster, asked: Sequence[_Asked], deadline: CommandDeadline) -> list[Verified]:
    """Return what each has counted, in order. All brokers count at the same time, each one thing after the
    other; one that does not answer is not asked for the rest."""
    found: dict[_Asked, Verified] = {}
    by_broker: dict[int, list[_Asked]] = {}
    for one in asked:
        by_broker.setdefault(one.broker, []).append(one)
    for one in by_broker.pop(_NOBODY, ()):
        who = "no broker keeps the prefix now" if one.kind == "tails" else "it has no leader"
        found[one] = _not_read(one, f"{one.what}: {who}")

    def ask(broker: int, client: BlockingClient) -> None:
        for one in by_broker[broker]:
            found[one] = _read(one, client, deadline)

    for broker, outcome in ask_each(cluster, by_broker, ask, deadline).items():
        if outcome is not None:
            why = f"broker {broker}: {outcome or type(outcome).__name__}"
            for one in by_broker[broker]:
                found.setdefault(one, _not_read(one, f"{one.what}: {why}"))
    return [found[one] for one in asked]


def _read(asked: _Asked, client: BlockingClient, deadline: CommandDeadline) -> Verified:
    """Return the sums over all parts. What the broker refuses is a problem of this one alone; raises where it
    does not answer."""
    total = Counted()
    try:
        for one in count(client, asked.request, asked.what, deadline):
            total = total.plus(one)
    except RequestError as e:
        return _not_read(asked, str(e), total)
    return Verified(asked.kind, asked.topic, asked.partition, asked.broker, total)


def _not_read(asked: _Asked, why: str, counts: Counted | None = None) -> Verified:
    return Verified(asked.kind, asked.topic, asked.partition, asked.broker, counts or Counted(), why)


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
