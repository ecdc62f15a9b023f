"""Requests about orders to erase keys (Erasures): to their keeper, or to each broker in turn. Blocking.

Keys leave this process as hashes alone. Raises `RequestError`, `StorageError` and `OSError`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from typing import Any, Final, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.errors import ConfigError, FirnError, RequestError, StorageError
from service.client.admin import LATEST, Cluster, raise_for
from service.client.admin_models import TopicInfo
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
_ELSEWHERE: Final = frozenset({ErrorCode.not_coordinator, ErrorCode.unsupported_version})


class OrderIdentity(NamedTuple):
    """Id of a new order, the secret of its hashes, and when it was made."""

    id: UUID
    secret: bytes
    now_ms: int


class FoundOrders(NamedTuple):
    """Orders as brokers tell them: rows by id, the keeper's where it answered; what leaders say, and which
    brokers did not answer and why."""

    orders: dict[str, dict[str, Any]]
    problems: list[dict[str, Any]]
    silent: list[str]
    has_keeper: bool


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
    """Return an order for these topics, up to the high watermarks that their leaders tell now.

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
            )
            for topic in rows
        ),
    )


def start_order(cluster: Cluster, order: ErasureOrder) -> dict[str, Any]:
    """Give an order to the keeper; return what it says of it. The same order again does no harm."""
    request = ErasuresRequest(op=ErasureOp.START, id=order.id, order=encode_erasure(order))
    return document_of(_ask_keeper(cluster, request, f"order {order.id}"))


def cancel_order(cluster: Cluster, order_id: UUID) -> dict[str, Any]:
    """Have the keeper cancel an order; return what it was."""
    return document_of(
        _ask_keeper(cluster, ErasuresRequest(op=ErasureOp.CANCEL, id=order_id), f"order {order_id}")
    )


def find_orders(cluster: Cluster) -> FoundOrders:
    """Ask all brokers for the orders that they know."""
    found = FoundOrders({}, [], [], has_keeper=False)
    for node in cluster.describe().nodes:
        if node.is_fenced:
            found.silent.append(f"broker {node.node_id} is away")
            continue
        try:
            answer = _ask(cluster, node.node_id, ErasuresRequest(op=ErasureOp.LIST), f"broker {node.node_id}")
            document = document_of(answer)
            rows = {str(row["id"]): row for row in document["orders"]}
            found.problems.extend(document["problems"])
            is_keeper = bool(document["is_keeper"])
        except (FirnError, OSError) as e:
            found.silent.append(f"broker {node.node_id}: {e}")
            continue
        except (KeyError, TypeError) as e:
            raise MalformedMessage(f"broker {node.node_id}: orders without {e}") from e
        found.orders.update({one: row for one, row in rows.items() if is_keeper or one not in found.orders})
        found = found._replace(has_keeper=found.has_keeper or is_keeper)
    return found


def count(cluster: Cluster, broker: int | None, request: ErasuresRequest, what: str) -> Iterator[Counted]:
    """Yield the counts of one part after the other; `broker` None is the keeper."""
    at = request.from_offset
    while at != END:
        part = ErasuresRequest(
            op=request.op,
            id=request.id,
            order=request.order,
            topic_id=request.topic_id,
            partition=request.partition,
            scope=request.scope,
            from_offset=at,
        )
        answer = _ask_keeper(cluster, part, what) if broker is None else _ask(cluster, broker, part, what)
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


def _ask(cluster: Cluster, broker: int, request: ErasuresRequest, what: str) -> ErasuresResponse:
    answer: ErasuresResponse = cluster.client(broker).request(ApiKey.ERASURES, request)
    raise_for(answer.error_code, answer.error_message, what)
    return answer


def _ask_keeper(cluster: Cluster, request: ErasuresRequest, what: str) -> ErasuresResponse:
    """Ask each broker until one of them keeps the prefix."""
    silent: list[str] = []
    for node in cluster.describe().nodes:
        if node.is_fenced:
            continue
        try:
            return _ask(cluster, node.node_id, request, what)
        except RequestError as e:
            if e.code not in _ELSEWHERE:
                raise
            silent.append(f"broker {node.node_id}: {e}")
        except OSError as e:
            silent.append(f"broker {node.node_id}: {e}")
    raise StorageError(f"{what}: no broker keeps the prefix now: {'; '.join(silent) or 'none is there'}")
