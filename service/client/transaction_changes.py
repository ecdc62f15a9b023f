"""Changes of transactions by an administrator: a hanging one is aborted, an id is fenced. Blocking.

Raises `RequestError`, `StorageError` and `OSError`. Source: KIP-664; Kafka ``AbortTransactionHandler``,
``FenceProducersHandler``.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.client.admin import ChangingCluster, raise_for
from service.client.coordinators import COORDINATOR_MOVED, Again
from service.client.transaction_models import PartitionTransaction
from service.client.transaction_queries import (
    coordinator_of,
    describe_transaction,
    led_partitions,
    open_transactions,
    unknown_to_coordinators,
)
from service.wire.api import ApiKey, request_module

_TIMEOUT: Final = timedelta(seconds=60)
"""Transaction timeout of a fence: the longest wait of its coordinator for replicas."""
_SHORT_TIMEOUT: Final = timedelta(seconds=1)
"""The same where ``transaction.max.timeout.ms`` is less."""
_LEADER_MOVED: Final = frozenset(
    {
        ErrorCode.not_leader_or_follower,
        ErrorCode.replica_not_available,
        ErrorCode.broker_not_available,
        ErrorCode.unknown_topic_or_partition,
    }
)


class Fenced(NamedTuple):
    """Producer id and epoch that fenced whoever had the transactional id."""

    producer_id: int
    producer_epoch: int


def abort_hanging(
    cluster: ChangingCluster, again: Again, topic: str, partition: int, first_offset: int
) -> PartitionTransaction:
    """Abort the hanging transaction that begins at an offset of a partition: write its marker there alone.

    Raises `RequestError`, also where no transaction begins there, or where a coordinator knows it: a marker
    of an administrator would end a part of what the coordinator decides as a whole.
    """
    while True:
        one = _hanging_at(cluster, again, topic, partition, first_offset)
        code = _write_abort_marker(cluster, one)
        if code not in _LEADER_MOVED or not again():
            raise_for(code, None, f"{topic}-{partition}")
            return one


def _hanging_at(
    cluster: ChangingCluster, again: Again, topic: str, partition: int, first_offset: int
) -> PartitionTransaction:
    found, problems = open_transactions(cluster, led_partitions(cluster, topic, partition))
    if problems:
        raise RequestError(ErrorCode.unknown_server_error, "; ".join(problems))
    candidates = [one for one in found if one.first_offset == first_offset]
    if not candidates:
        raise RequestError(
            ErrorCode.invalid_txn_state, f"{topic}-{partition}: no open transaction begins at {first_offset}"
        )
    hanging = unknown_to_coordinators(cluster, again, candidates)
    if not hanging:
        raise RequestError(
            ErrorCode.invalid_txn_state,
            f"{topic}-{partition}: the transaction at {first_offset} does not hang: its coordinator ends it",
        )
    return hanging[0].open


def _write_abort_marker(cluster: ChangingCluster, one: PartitionTransaction) -> ErrorCode:
    module = request_module(ApiKey.WRITE_TXN_MARKERS)
    marker = module.WritableTxnMarker(
        producer_id=one.producer_id,
        producer_epoch=one.producer_epoch,
        transaction_result=False,
        topics=(module.WritableTxnMarkerTopic(name=one.topic, partition_indexes=(one.partition,)),),
        coordinator_epoch=max(one.coordinator_epoch, 0),
    )
    request = module.WriteTxnMarkersRequest(markers=(marker,))
    answer = cluster.client(one.leader).request(ApiKey.WRITE_TXN_MARKERS, request)
    codes = [each.error_code for m in answer.markers for topic in m.topics for each in topic.partitions]
    if len(codes) != 1:
        raise RequestError(ErrorCode.unknown_server_error, f"{len(codes)} answers to one marker")
    return ErrorCode(codes[0])


def terminate(cluster: ChangingCluster, again: Again, transactional_id: str) -> Fenced:
    """Abort the transaction of an id that is there, and fence its producer.

    Raises `RequestError`, TRANSACTIONAL_ID_NOT_FOUND where the id is unknown: it is not made.
    """
    describe_transaction(cluster, again, transactional_id)
    module = request_module(ApiKey.INIT_PRODUCER_ID)
    request = module.InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout=_TIMEOUT)
    while True:
        node = coordinator_of(cluster, again, transactional_id)
        answer: Any = cluster.client(node).request(ApiKey.INIT_PRODUCER_ID, request)
        if answer.error_code == ErrorCode.invalid_transaction_timeout:
            request = replace(request, transaction_timeout=_SHORT_TIMEOUT)
            answer = cluster.client(node).request(ApiKey.INIT_PRODUCER_ID, request)
        is_unsettled = answer.error_code in COORDINATOR_MOVED | {ErrorCode.concurrent_transactions}
        if not (is_unsettled and again()):
            raise_for(answer.error_code, None, f"transactional id {transactional_id}")
            return Fenced(answer.producer_id, answer.producer_epoch)
