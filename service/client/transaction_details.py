"""Queries of pages about transactions: many ids at once, one id's partitions, one partition's stable offset.

Blocking and read-only. Raises `RequestError`, `StorageError` and `OSError`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.client.admin import LATEST, Cluster, raise_for
from service.client.transaction_models import (
    MOST_SCANNED,
    OldestTransaction,
    OpenPartition,
    PartitionTransaction,
    StableOffset,
    TransactionInfo,
    TransactionPlaces,
    TransactionRow,
)
from service.client.transaction_queries import (
    list_transactions,
    open_transactions,
    unknown_to_coordinators,
)
from service.records.batch import BatchHeader, complete_headers
from service.wire.api import ApiKey, millis, request_module

READ_COMMITTED: Final = 1
_PEEK_BYTES: Final = 1 << 16


def describe_listed(cluster: Cluster, rows: Sequence[TransactionRow]) -> dict[str, TransactionInfo]:
    """Return the states of listed ids, with one request to each coordinator.

    Ids that are gone or have another coordinator by now are left out, as are those of a node that fails.
    """
    module = request_module(ApiKey.DESCRIBE_TRANSACTIONS)
    by_node: dict[int, list[str]] = {}
    for row in rows:
        by_node.setdefault(row.node, []).append(row.transactional_id)
    found = {}
    for node, ids in by_node.items():
        request = module.DescribeTransactionsRequest(transactional_ids=tuple(ids))
        try:
            answer = cluster.client(node).request(ApiKey.DESCRIBE_TRANSACTIONS, request)
        except (RequestError, ConnectionError):
            continue
        for one in answer.transaction_states:
            if one.error_code == ErrorCode.none:
                found[one.transactional_id] = _info(node, one)
    return found


def _info(node: int, one: Any) -> TransactionInfo:
    start = one.transaction_start_time
    return TransactionInfo(
        one.transactional_id,
        node,
        one.producer_id,
        one.producer_epoch,
        one.transaction_state,
        millis(one.transaction_timeout),
        None if start is None else round(start.timestamp() * 1000),
        tuple(sorted((topic.topic, each) for topic in one.topics for each in topic.partitions)),
    )


def transaction_places(
    cluster: Cluster, again: Callable[[], bool], transactional_id: str
) -> TransactionPlaces:
    """Return an id's partitions with their first offsets, and which of them hang.

    Beside the coordinator's partitions those are looked through in which its producer may have left a
    transaction open, if the cluster has at most `MOST_SCANNED`. Raises `RequestError`,
    TRANSACTIONAL_ID_NOT_FOUND where the id is unknown.
    """
    info = _described(cluster, again, transactional_id)
    places, is_whole = _places(cluster, info)
    opened, problems = open_transactions(cluster, places)
    mine = [one for one in opened if one.producer_id == info.producer_id]
    named = set(info.partitions)
    strays = [one for one in mine if (one.topic, one.partition) not in named]
    hanging = {one.open.key for one in unknown_to_coordinators(cluster, again, strays)}
    rows = {place: OpenPartition(*place, None, None, False) for place in info.partitions}
    for one in mine:
        place = (one.topic, one.partition)
        if place in named or one.key in hanging:
            rows[place] = OpenPartition(*place, one.first_offset, one.last_timestamp_ms, one.key in hanging)
    return TransactionPlaces(info, tuple(rows[place] for place in sorted(rows)), is_whole, problems)


def _described(cluster: Cluster, again: Callable[[], bool], transactional_id: str) -> TransactionInfo:
    """Return the state of an id. FindCoordinator is not used, as it would create the topic of the ids."""
    listing = list_transactions(cluster, again, pattern=re.escape(transactional_id))
    rows = [one for one in listing.rows if one.transactional_id == transactional_id]
    found = describe_listed(cluster, rows).get(transactional_id)
    if found is not None:
        return found
    if rows or listing.problems:
        why = "; ".join(listing.problems) or f"node {rows[0].node} does not describe it"
        raise RequestError(ErrorCode.coordinator_not_available, f"transactional id {transactional_id}: {why}")
    raise RequestError(
        ErrorCode.transactional_id_not_found, f"there is no transactional id {transactional_id}"
    )


def _places(cluster: Cluster, info: TransactionInfo) -> tuple[list[tuple[str, int, int]], bool]:
    """Return topic, partition and leader of partitions to look through; whether these are all."""
    named = set(info.partitions)
    found: list[tuple[str, int, int]] = []
    for topic in cluster.every_topic():
        found += [(topic.name, one.partition, one.leader) for one in topic.partitions]
        if len(found) > MOST_SCANNED:
            break
    else:
        return found, True
    names = sorted({topic for topic, _ in named})
    return [
        (topic.name, one.partition, one.leader)
        for topic in (cluster.topics(names) if names else ())
        for one in topic.partitions
        if (topic.name, one.partition) in named
    ], False


def stable_offset(
    cluster: Cluster, again: Callable[[], bool], topic: str, partition: int, leader: int
) -> StableOffset:
    """Return a partition's last stable offset, and the oldest transaction that is open in it."""
    leaders = {partition: leader}
    committed = cluster.look_up(topic, leaders, LATEST, isolation_level=READ_COMMITTED)[partition]
    raise_for(committed.error_code, None, f"{topic}-{partition}")
    high_watermark = cluster.offsets(topic, leaders, LATEST)[partition]
    if committed.offset >= high_watermark:
        return StableOffset(high_watermark, high_watermark, 0, None)
    opened, problems = open_transactions(cluster, [(topic, partition, leader)])
    if problems:
        raise RequestError(ErrorCode.unknown_server_error, problems[0])
    if not opened:  # it has ended meanwhile
        return StableOffset(committed.offset, high_watermark, 0, None)
    oldest = min(opened, key=lambda one: one.first_offset)
    return StableOffset(committed.offset, high_watermark, len(opened), _oldest(cluster, again, oldest))


def _oldest(cluster: Cluster, again: Callable[[], bool], oldest: PartitionTransaction) -> OldestTransaction:
    rows = list_transactions(cluster, again, producer_ids=[oldest.producer_id]).rows
    described: Iterable[TransactionInfo] = describe_listed(cluster, rows).values()
    place = (oldest.topic, oldest.partition)
    info = next((one for one in described if place in one.partitions), None)
    if info is not None:
        return OldestTransaction(oldest, info.transactional_id, info, info.start_ms)
    transactional_id = rows[0].transactional_id if rows else None
    return OldestTransaction(oldest, transactional_id, None, _first_timestamp(cluster, oldest))


def _first_timestamp(cluster: Cluster, one: PartitionTransaction) -> int | None:
    """Return the time of a transaction's first batch; None if it is not in the log any more."""
    page = cluster.partitions(one.topic, one.partition, 1)
    fetched = cluster.fetch(
        one.leader,
        page.topic.topic_id,
        one.partition,
        one.first_offset,
        max_bytes=_PEEK_BYTES,
        max_wait_ms=500,
    )
    header: BatchHeader | None = next(iter(complete_headers(fetched.records)), None)
    if header is None or header.base_offset != one.first_offset:
        return None
    return header.base_timestamp
