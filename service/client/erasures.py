"""Requests about orders to erase keys (Erasures): to their keeper, or to all brokers at once. Blocking.

Keys leave this process as hashes alone. Raises `RequestError`, `StorageError` and `OSError`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.errors import ConfigError, RequestError, StorageError
from service.client.admin import LATEST, Cluster, raise_for
from service.client.admin_models import TopicInfo
from service.client.all_brokers import CommandDeadline, ask_each
from service.client.blocking_client import BlockingClient
from service.client.offset_queries import list_offsets
from service.records.erasure import filter_hash, hash_key
from service.remote.format.erase_codec import (
    FILTER_HASH_BYTES,
    MAX_KEYS,
    ErasedTopic,
    ErasureOrder,
    encode_erasure,
)
from service.wire.api import ApiKey
from service.wire.erasure_counts import END, Counted
from service.wire.erasures import ErasureOp, ErasuresRequest, ErasuresResponse
from service.wire.errors import MalformedMessage

_NO_ONE: Final = UUID(int=0)
PART_S: Final = 120.0
"""Longest wait for one part of a count: it reads 64 MiB, perhaps of a slow disk or store."""
_TRIES: Final = 3


class OrderIdentity(NamedTuple):
    """Id of a new order, the secret of its hashes, and when it was made."""

    id: UUID
    secret: bytes
    now_ms: int


class FoundOrders(NamedTuple):
    """Orders as brokers tell them: rows by id, the keeper's where it answered; what leaders say; how far they
    are; brokers that did not answer, and why; brokers that are away, as the metadata says."""

    orders: dict[str, dict[str, Any]]
    problems: list[dict[str, Any]]
    progress: list[dict[str, Any]]
    silent: tuple[str, ...]
    away: tuple[str, ...]
    keeper: int | None


def hashed(keys: Collection[bytes], secret: bytes) -> tuple[bytes, bytes]:
    """Return the keys' hashes under a secret, and those that filters have. Raises `ConfigError` for none, and
    for too many."""
    different = frozenset(keys)
    if not 0 < len(different) <= MAX_KEYS:
        raise ConfigError(f"{len(different)} keys: an order has from 1 to {MAX_KEYS}")
    hashes = sorted(hash_key(secret, key) for key in different)
    filters = sorted(filter_hash(key) for key in different)
    return b"".join(hashes), b"".join(one.to_bytes(FILTER_HASH_BYTES) for one in filters)


def make_order(
    cluster: Cluster,
    topics: Iterable[TopicInfo],
    keys: Collection[bytes],
    identity: OrderIdentity,
    before_ms: int | None,
) -> ErasureOrder:
    """Return an order for these topics, up to the high watermarks that their leaders tell now, with their
    leader epochs.

    Raises `RequestError` where a partition has no leader that tells.
    """
    hashes, filters = hashed(keys, identity.secret)
    rows = [topic for topic in topics if topic.topic_id is not None]
    places = [(topic.name, one.partition) for topic in rows for one in topic.partitions]
    answers = list_offsets(cluster, places, LATEST)
    for (name, partition), answer in answers.items():
        if answer.error is not None:
            raise RequestError(
                answer.error.code, f"the end of {name}-{partition} is not known: {answer.error}"
            )
    return ErasureOrder(
        cluster_id=cluster.describe().cluster_id,
        id=identity.id,
        started_ms=identity.now_ms,
        before_ms=-1 if before_ms is None else before_ms,
        secret=identity.secret,
        hashes=hashes,
        filter_hashes=filters,
        topics=tuple(
            ErasedTopic(
                topic.topic_id or _NO_ONE,
                topic.name,
                tuple(answers[topic.name, one.partition].offset for one in topic.partitions),
                tuple(answers[topic.name, one.partition].leader_epoch for one in topic.partitions),
            )
            for topic in rows
        ),
    )


def start_order(cluster: Cluster, order: ErasureOrder, deadline: CommandDeadline) -> dict[str, Any]:
    """Give an order to the keeper; return what it says of it. The same order again does no harm."""
    request = ErasuresRequest(op=ErasureOp.START, id=order.id, order=encode_erasure(order))
    return document_of(_ask_keeper(cluster, request, f"order {order.id}", deadline))


def cancel_order(cluster: Cluster, order_id: UUID, deadline: CommandDeadline) -> dict[str, Any]:
    """Have the keeper cancel an order; return what it was."""
    request = ErasuresRequest(op=ErasureOp.CANCEL, id=order_id)
    return document_of(_ask_keeper(cluster, request, f"order {order_id}", deadline))


def find_orders(cluster: Cluster, deadline: CommandDeadline) -> FoundOrders:
    """Ask all brokers at the same time for the orders that they know."""
    nodes = cluster.describe().nodes
    asked = [one.node_id for one in nodes if not one.is_fenced]
    answers = ask_each(cluster, asked, partial(_list, deadline), deadline)
    orders: dict[str, dict[str, Any]] = {}
    problems: list[dict[str, Any]] = []
    progress: list[dict[str, Any]] = []
    silent: list[str] = []
    keeper: int | None = None
    for broker, told in sorted(answers.items()):
        if not isinstance(told, _Told):
            silent.append(f"broker {broker}: {told or type(told).__name__}")
            continue
        problems += told.problems
        progress += told.progress
        keeper = broker if told.is_keeper else keeper
        orders.update({one: row for one, row in told.rows.items() if told.is_keeper or one not in orders})
    away = tuple(f"broker {one.node_id} is away" for one in nodes if one.is_fenced)
    return FoundOrders(orders, problems, progress, tuple(silent), away, keeper)


class _Told(NamedTuple):
    """Orders, by id, as one broker tells them."""

    rows: dict[str, dict[str, Any]]
    problems: list[dict[str, Any]]
    progress: list[dict[str, Any]]
    is_keeper: bool


def _list(deadline: CommandDeadline, broker: int, client: BlockingClient) -> _Told:
    answer = _ask(client, ErasuresRequest(op=ErasureOp.LIST), f"broker {broker}", deadline.left_s)
    document = document_of(answer)
    try:
        return _Told(
            {str(row["id"]): row for row in document["orders"]},
            list(document["problems"]),
            list(document.get("progress", ())),  # software of before tells none
            bool(document["is_keeper"]),
        )
    except (KeyError, TypeError) as e:
        raise MalformedMessage(f"broker {broker}: orders without {e}") from e


def count(
    client: BlockingClient, request: ErasuresRequest, what: str, deadline: CommandDeadline
) -> Iterator[Counted]:
    """Yield the counts of one part after the other. Raises `TimeoutError` beyond the deadline."""
    at = request.from_offset
    while at != END:
        part = replace(request, from_offset=at)
        answer = _ask(client, part, what, min(deadline.left_s, PART_S))
        document = document_of(answer)
        try:
            counts = Counted(**{name: int(document[name]) for name in Counted._fields})
        except (KeyError, TypeError, ValueError) as e:
            raise MalformedMessage(f"{what}: counts without {e}") from e
        yield counts
        if answer.next_offset != END and answer.next_offset <= at:
            raise MalformedMessage(f"{what}: after {at} it goes on at {answer.next_offset}")
        at = answer.next_offset


def document_of(answer: ErasuresResponse) -> dict[str, Any]:
    """Return the document in an answer."""
    try:
        found = json.loads(answer.document or "")
    except ValueError as e:
        raise MalformedMessage(f"a document that is not JSON: {e}") from e
    if not isinstance(found, dict):
        raise MalformedMessage("a document that is no object")
    return found


def _ask(client: BlockingClient, request: ErasuresRequest, what: str, timeout_s: float) -> ErasuresResponse:
    answer: ErasuresResponse = client.request(ApiKey.ERASURES, request, timeout_s=timeout_s)
    raise_for(answer.error_code, answer.error_message, what)
    return answer


def _ask_keeper(
    cluster: Cluster, request: ErasuresRequest, what: str, deadline: CommandDeadline
) -> ErasuresResponse:
    """Ask the broker that keeps the prefix, which may change meanwhile."""
    failure: Exception | None = None
    for _ in range(_TRIES):
        found = find_orders(cluster, deadline)
        if found.keeper is None:
            others = "; ".join((*found.silent, *found.away))
            raise StorageError(
                f"{what}: no broker that answers keeps the prefix now{others and ': '}{others}"
            )
        with cluster.apart(found.keeper, deadline.left_s, deadline.left_s) as client:
            try:
                return _ask(client, request, what, deadline.left_s)
            except RequestError as e:
                if e.code is not ErrorCode.not_coordinator:
                    raise
                failure = e
    assert failure is not None
    raise failure
