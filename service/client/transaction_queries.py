"""Queries about transactions: ids at their coordinators, open ones in partitions, hanging ones. Blocking.

Raises `RequestError`, `StorageError` and `OSError`. Source: KIP-664; Kafka ``TransactionsCommand``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.client.admin import Cluster, raise_for
from service.client.coordinators import COORDINATOR_MOVED, TRANSACTION_KEY, Again, find_coordinator
from service.client.transaction_models import (
    HangingTransaction,
    PartitionTransaction,
    TransactionInfo,
    TransactionListing,
    TransactionRow,
    hanging_among,
)
from service.wire.api import ApiKey, millis, request_module

_NODE_WAIT_S: Final = 5.0
_PARTITIONS_AT_ONCE: Final = 500
_FILTERS: Final = (("duration_filter", 1, -1), ("transactional_id_pattern", 2, None))
"""Fields of ListTransactions, the first version with each, and the value that filters nothing."""


class PartitionTransactions(NamedTuple):
    """Open transactions of the partitions that answered; `problems` has the errors of the others."""

    rows: tuple[PartitionTransaction, ...]
    problems: tuple[str, ...]


class HangingTransactions(NamedTuple):
    """Hanging transactions; `problems` has the errors of partitions that were not looked at."""

    rows: tuple[HangingTransaction, ...]
    problems: tuple[str, ...]


# -- ids


def list_transactions(
    cluster: Cluster,
    again: Again,
    *,
    states: Sequence[str] = (),
    producer_ids: Sequence[int] = (),
    longer_than_ms: int = -1,
    pattern: str | None = None,
    wait_s: float = _NODE_WAIT_S,
) -> TransactionListing:
    """Return the ids of all coordinators that match. Raises if no node answers.

    `pattern` is RE2's, and of the whole id. Below zero `longer_than_ms` filters nothing. A node gets `wait_s`
    to answer: 100,000 ids take about two seconds.
    """
    module = request_module(ApiKey.LIST_TRANSACTIONS)
    request = module.ListTransactionsRequest(
        state_filters=tuple(states),
        producer_id_filters=tuple(producer_ids),
        duration_filter=longer_than_ms,
        transactional_id_pattern=pattern,
    )
    found: list[TransactionRow] = []
    failures: dict[int, RequestError | OSError] = {}
    nodes = [one.node_id for one in cluster.describe().nodes if not one.is_fenced]
    for node in nodes:
        try:
            found += _ids_of(cluster, request, node, again, wait_s)
        except TimeoutError:
            failures[node] = TimeoutError(f"no answer within {wait_s:g} s")
        except (RequestError, OSError) as e:
            failures[node] = e
    if nodes and len(failures) == len(nodes):
        raise failures[nodes[0]]
    return TransactionListing(
        tuple(sorted(found)), tuple(f"node {node}: {error}" for node, error in failures.items())
    )


def _ids_of(cluster: Cluster, request: Any, node: int, again: Again, wait_s: float) -> list[TransactionRow]:
    """Return the ids that one node coordinates."""
    with cluster.apart(node, wait_s) as client:
        version = client.version(ApiKey.LIST_TRANSACTIONS)
        for name, since, nothing in _FILTERS:
            if version < since and getattr(request, name) != nothing:
                raise RequestError(
                    ErrorCode.unsupported_version, f"it is too old for {name.replace('_', ' ')}"
                )
        answer = client.request(ApiKey.LIST_TRANSACTIONS, request)
        while answer.error_code == ErrorCode.coordinator_load_in_progress and again():
            answer = client.request(ApiKey.LIST_TRANSACTIONS, request)
    if answer.error_code != ErrorCode.none:
        raise RequestError(ErrorCode(answer.error_code), _words_of(answer.error_code))
    if answer.unknown_state_filters:
        unknown = ", ".join(answer.unknown_state_filters)
        raise RequestError(ErrorCode.invalid_request, f"there is no state {unknown}")
    return [
        TransactionRow(one.transactional_id, node, one.producer_id, one.transaction_state)
        for one in answer.transaction_states
    ]


def coordinator_of(cluster: Cluster, again: Again, transactional_id: str) -> int:
    """Return the node that coordinates an id, asked for until there is one."""
    return find_coordinator(cluster, again, TRANSACTION_KEY, transactional_id)


def describe_transaction(cluster: Cluster, again: Again, transactional_id: str) -> TransactionInfo:
    """Return the state of an id. Raises `RequestError`, TRANSACTIONAL_ID_NOT_FOUND where it is unknown."""
    module = request_module(ApiKey.DESCRIBE_TRANSACTIONS)
    request = module.DescribeTransactionsRequest(transactional_ids=(transactional_id,))
    cluster.describe()
    while True:
        node = coordinator_of(cluster, again, transactional_id)
        answer = cluster.client(node).request(ApiKey.DESCRIBE_TRANSACTIONS, request)
        (one,) = answer.transaction_states
        if one.error_code not in COORDINATOR_MOVED or not again():
            break
    if one.error_code == ErrorCode.transactional_id_not_found:
        raise RequestError(one.error_code, f"there is no transactional id {transactional_id}")
    raise_for(one.error_code, None, f"transactional id {transactional_id}")
    start = one.transaction_start_time
    return TransactionInfo(
        transactional_id,
        node,
        one.producer_id,
        one.producer_epoch,
        one.transaction_state,
        millis(one.transaction_timeout),
        None if start is None else round(start.timestamp() * 1000),
        tuple(sorted((topic.topic, each) for topic in one.topics for each in topic.partitions)),
    )


# -- partitions


def led_partitions(
    cluster: Cluster, topic: str | None = None, number: int | None = None
) -> Iterator[tuple[str, int, int]]:
    """Yield topic, partition and leader (-1 without one) of all partitions, of a topic's, or of one."""
    cluster.describe()
    topics = cluster.every_topic() if topic is None else cluster.topics((topic,))
    for info in topics:
        for one in info.partitions:
            if number is None or one.partition == number:
                yield info.name, one.partition, one.leader


def open_transactions(cluster: Cluster, places: Iterable[tuple[str, int, int]]) -> PartitionTransactions:
    """Return what the leaders of these partitions (topic, partition, leader) hold open."""
    rows: list[PartitionTransaction] = []
    problems: list[str] = []
    by_leader: dict[int, list[tuple[str, int]]] = {}
    for topic, number, leader in places:
        if leader < 0:
            problems.append(f"{topic}-{number}: it has no leader")
        else:
            by_leader.setdefault(leader, []).append((topic, number))
    for leader, found in by_leader.items():
        for at in range(0, len(found), _PARTITIONS_AT_ONCE):
            for place, one in _producers_of(cluster, leader, found[at : at + _PARTITIONS_AT_ONCE]):
                if one.error_code != ErrorCode.none:
                    why = one.error_message or _words_of(one.error_code)
                    problems.append(f"{place[0]}-{place[1]}: {why}")
                rows += [
                    PartitionTransaction(
                        *place, each.producer_id, each.producer_epoch, each.coordinator_epoch,
                        each.current_txn_start_offset, each.last_timestamp, leader,
                    )
                    for each in one.active_producers
                    if each.current_txn_start_offset >= 0
                ]  # fmt: skip
    return PartitionTransactions(tuple(sorted(rows)), tuple(problems))


def _producers_of(
    cluster: Cluster, leader: int, places: Sequence[tuple[str, int]]
) -> Iterator[tuple[tuple[str, int], Any]]:
    module = request_module(ApiKey.DESCRIBE_PRODUCERS)
    by_topic: dict[str, list[int]] = {}
    for topic, number in places:
        by_topic.setdefault(topic, []).append(number)
    request = module.DescribeProducersRequest(
        topics=tuple(
            module.TopicRequest(name=topic, partition_indexes=tuple(numbers))
            for topic, numbers in by_topic.items()
        )
    )
    for topic in cluster.client(leader).request(ApiKey.DESCRIBE_PRODUCERS, request).topics:
        for one in topic.partitions:
            yield (topic.name, one.partition_index), one


def hanging_transactions(
    cluster: Cluster,
    again: Again,
    places: Sequence[tuple[str, int, int]],
    *,
    older_than_ms: int,
    now_ms: int,
) -> HangingTransactions:
    """Return the transactions of these partitions that no coordinator will end.

    Only those are looked at whose last record is older than `older_than_ms`: a coordinator has ended them,
    if it knew of them. Raises if a coordinator does not answer, as its transactions would seem to hang.
    """
    found, problems = open_transactions(cluster, places)
    candidates = [one for one in found if now_ms - one.last_timestamp_ms > older_than_ms]
    return HangingTransactions(tuple(unknown_to_coordinators(cluster, again, candidates)), problems)


def unknown_to_coordinators(
    cluster: Cluster, again: Again, candidates: Sequence[PartitionTransaction]
) -> list[HangingTransaction]:
    """Return those that no coordinator knows and that are still open thereafter."""
    if not candidates:
        return []
    producer_ids = sorted({one.producer_id for one in candidates})
    listing = list_transactions(cluster, again, producer_ids=producer_ids)
    if listing.problems:
        raise RequestError(ErrorCode.coordinator_not_available, "; ".join(listing.problems))
    ids = {row.producer_id: row.transactional_id for row in listing.rows}
    hanging = hanging_among(candidates, ids, _described(cluster, again, sorted(set(ids.values()))))
    # A transaction that ended meanwhile is unknown to its coordinator, too.
    places = sorted({(one.open.topic, one.open.partition, one.open.leader) for one in hanging})
    still = {one.key for one in open_transactions(cluster, places).rows}
    return [one for one in hanging if one.open.key in still]


def _described(cluster: Cluster, again: Again, ids: Iterable[str]) -> dict[str, TransactionInfo]:
    found = {}
    for one in ids:
        try:
            found[one] = describe_transaction(cluster, again, one)
        except RequestError as e:
            if e.code != ErrorCode.transactional_id_not_found:
                raise
    return found


def _words_of(code: int) -> str:
    return ErrorCode(code).name.upper()
