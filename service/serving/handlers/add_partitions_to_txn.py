"""AddPartitionsToTxn: of a client about its transaction, from version 4 on of a broker about many (KIP-890).

A broker adds the partition of a first batch, or asks whether its client has (``verify_only``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Final, TypeAlias

from kio.schema.add_partitions_to_txn.v5.request import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTransaction,
)
from kio.schema.add_partitions_to_txn.v5.response import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.slices import Slice
from service.base.steps import Steps
from service.base.types import INTERNAL_TOPICS
from service.network.request import RequestContext
from service.security.operations import AclOperation, AclResourceType
from service.serving.authorization import check_cluster, is_allowed, topics_allowed
from service.serving.internal_topics import OFFSETS
from service.serving.request_host import NO_THROTTLE, Broker
from service.serving.transactional_requests import coordinator_of, error_for
from service.transactions.config import TV0, TV2
from service.transactions.metadata import Partition
from service.transactions.requests import AddPartitions, TransactionalProducer, check_id

_OF_BROKERS_SINCE: Final = 4
_FENCED_SINCE: Final = 2
_A_STEP: Final = 500
"""Partitions that are looked at without a look at the clock."""
Errors: TypeAlias = Mapping[Partition, ErrorCode] | ErrorCode
"""Errors of the partitions of a transaction, or the one of all."""


async def handle(
    broker: Broker, context: RequestContext, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse:
    """Add or look up the partitions of each transaction; of an id that is named twice, the first."""
    is_of_broker = context.api_version >= _OF_BROKERS_SINCE
    if is_of_broker:
        try:
            check_cluster(broker, context, AclOperation.CLUSTER_ACTION)
        except RequestError as e:
            return AddPartitionsToTxnResponse(
                throttle_time=NO_THROTTLE, error_code=e.code, results_by_transaction=()
            )
    asked: dict[str, AddPartitionsToTxnTransaction] = {}
    for one in request.transactions:
        asked.setdefault(one.transactional_id, one)
    context = context.kept()
    answers: dict[str, Errors | Awaitable[Errors]] = {}
    piece = Slice()
    for name, one in asked.items():
        answers[name] = await _asked(broker, context, one, piece)
        if piece.is_over():
            await piece.next_turn()
    results = []
    for name, one in asked.items():
        answer = answers[name]
        errors = answer if isinstance(answer, ErrorCode | Mapping) else await answer
        results.append(await piece.go_on(_result(one, errors)))
    return AddPartitionsToTxnResponse(
        throttle_time=NO_THROTTLE, error_code=ErrorCode.none, results_by_transaction=tuple(results)
    )


async def _asked(
    broker: Broker, context: RequestContext, one: AddPartitionsToTxnTransaction, piece: Slice
) -> Errors | Awaitable[Errors]:
    """Check a transaction, and return its errors, or what they can be awaited from."""
    name, is_of_client = one.transactional_id, context.api_version < _OF_BROKERS_SINCE
    resource = AclResourceType.TRANSACTIONAL_ID
    if is_of_client and not is_allowed(broker, context, AclOperation.WRITE, resource, name):
        return ErrorCode.transactional_id_authorization_failed
    errors, is_refused = await piece.go_on(_checked(broker, context if is_of_client else None, one))
    if is_refused:
        return errors
    partitions = frozenset(errors)
    producer = TransactionalProducer(one.producer_id, one.producer_epoch)
    wanted = AddPartitions(name, producer, partitions, TV0 if is_of_client else TV2)
    try:
        check_id(name)
        coordinator = coordinator_of(broker)
        if one.verify_only:
            return coordinator.read(name, lambda shard, _: shard.verify_partitions(wanted))
        answer = coordinator.write(name, lambda shard, _, now_ms: shard.add_partitions(wanted, now_ms))
    except RequestError as e:
        return error_for(e.code, context.api_version, _FENCED_SINCE)
    return ErrorCode.none if answer is None else _added(answer, context.api_version)


async def _added(answer: Awaitable[None], api_version: int) -> Errors:
    try:
        await answer
    except RequestError as e:
        return error_for(e.code, api_version, _FENCED_SINCE)
    finally:
        del answer  # see `coordinator.answers`
    return ErrorCode.none


def _checked(
    broker: Broker, client: RequestContext | None, one: AddPartitionsToTxnTransaction
) -> Steps[tuple[Mapping[Partition, ErrorCode], bool]]:
    """Return the partitions, each with the error that it has if any of them cannot be added, and whether
    one cannot.

    `client`: whose rights are asked; None for a broker's request, which may name the topic of groups'
    offsets, too. No other internal topic takes markers.
    """
    may_write = None
    if client is not None:
        may_write = topics_allowed(broker, client, AclOperation.WRITE)
    errors: dict[Partition, ErrorCode] = {}
    is_refused = False
    for topic in one.topics:
        denied = topic.name in INTERNAL_TOPICS and (client is not None or topic.name != OFFSETS)
        denied = denied or (may_write is not None and not may_write(topic.name))
        there = broker.image.topics_by_name.get(topic.name)
        yield
        for number, index in enumerate(topic.partitions, 1):
            if not number % _A_STEP:
                yield
            error = ErrorCode.operation_not_attempted
            if denied:
                error = ErrorCode.topic_authorization_failed
            elif there is None or index not in there.partitions:
                error = ErrorCode.unknown_topic_or_partition
            is_refused = is_refused or error is not ErrorCode.operation_not_attempted
            errors[topic.name, index] = error
    return errors, is_refused


def _result(one: AddPartitionsToTxnTransaction, errors: Errors) -> Steps[AddPartitionsToTxnResult]:
    """Return the errors of a transaction's partitions."""
    topics = []
    for topic in one.topics:
        partitions = []
        yield
        for number, index in enumerate(topic.partitions, 1):
            if not number % _A_STEP:
                yield
            error = errors if isinstance(errors, ErrorCode) else errors[topic.name, index]
            partitions.append(
                AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=error)
            )
        topics.append(AddPartitionsToTxnTopicResult(name=topic.name, results_by_partition=tuple(partitions)))
    return AddPartitionsToTxnResult(transactional_id=one.transactional_id, topic_results=tuple(topics))
