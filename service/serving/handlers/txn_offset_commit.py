"""TxnOffsetCommit: stores offsets of a group as part of a transaction (KIP-98, KIP-447, KIP-890)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from kio.schema.errors import ErrorCode
from kio.schema.txn_offset_commit.v5.request import TxnOffsetCommitRequest
from kio.schema.txn_offset_commit.v5.response import (
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

from service.base.errors import RequestError, StorageError
from service.base.slices import Slice, next_turn
from service.base.steps import Steps
from service.coordinator.answers import settled
from service.coordinator.errors import client_error
from service.coordinator.shard import Producer
from service.groups.offset_pieces import add_topics, pieces
from service.groups.requests import (
    CommittedTopic,
    GroupCommitRequest,
    GroupCommitResponse,
    commit_failed,
)
from service.groups.txn_offset_commits import as_commit, known_txn_commit
from service.hot.verification import VERIFICATION_OFF, VerificationGuard
from service.network.request import RequestContext
from service.security.operations import AclOperation, AclResourceType
from service.serving.authorization import is_allowed, topics_allowed
from service.serving.handlers.offset_commit import AT_ONCE
from service.serving.internal_topics import OFFSETS
from service.serving.request_host import NO_THROTTLE, Broker
from service.transactions.verification import Mode, mode_of_txn_offset_commit

_NO_SEQUENCE: Final = -1
_LOADING_FROM: Final = 2
"""First version whose clients know COORDINATOR_LOAD_IN_PROGRESS here."""


async def handle(
    broker: Broker, context: RequestContext, request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse:
    """Add the offsets of each partition to the transaction, each with its own error. If no topic exists, the
    group is not consulted.

    A request with very many partitions is committed in pieces of one transaction.
    """
    refusal = _refusal(broker, context, request)
    topics: dict[Any, CommittedTopic] = {}
    producer: Producer | None = None
    may_use = topics_allowed(broker, context, AclOperation.READ)
    for some in pieces(request, AT_ONCE):
        piece = as_commit(some)
        if refusal is not None:
            add_topics(topics, commit_failed(piece, refusal).topics)
            await next_turn()
            continue
        known = known_txn_commit(piece, broker.groups.topics, may_use)
        answer = commit_failed(known.request, ErrorCode.none)
        if known.request.topics:
            try:
                if producer is None:
                    producer = await _verified(broker, context, request)
                answer = await _commit(broker, known.request, producer)
                if answer.topics:
                    producer = producer._replace(guard=None)  # its transaction is open from now on
            except RequestError as e:
                answer = commit_failed(known.request, e.code)
        add_topics(topics, known.answer(answer).topics)
        await next_turn()
    return await Slice().go_on(_response(topics.values(), context.api_version))


def _refusal(broker: Broker, context: RequestContext, request: TxnOffsetCommitRequest) -> ErrorCode | None:
    """Return the error of the whole request, before its topics are looked at."""
    write, read = AclOperation.WRITE, AclOperation.READ
    of_id = AclResourceType.TRANSACTIONAL_ID
    if not is_allowed(broker, context, write, of_id, request.transactional_id):
        return ErrorCode.transactional_id_authorization_failed
    if not is_allowed(broker, context, read, AclResourceType.GROUP, request.group_id):
        return ErrorCode.group_authorization_failed
    return None


async def _verified(broker: Broker, context: RequestContext, request: TxnOffsetCommitRequest) -> Producer:
    """Return the producer, whose transaction has the group's partition: it is open there already, or its
    coordinator says so. Raises `RequestError`."""
    if not request.group_id:
        raise RequestError(ErrorCode.invalid_group_id)
    producer_id, epoch = request.producer_id, request.producer_epoch
    if producer_id < 0:
        raise RequestError(ErrorCode.invalid_producer_id_mapping)
    if epoch < 0:
        raise RequestError(ErrorCode.invalid_producer_epoch)
    mode = mode_of_txn_offset_commit(context.api_version)
    guard: VerificationGuard | None = VERIFICATION_OFF
    coordinators = broker.transactions
    if coordinators is None:
        raise RequestError(ErrorCode.coordinator_not_available)
    if mode is Mode.ADD or coordinators.verifies:
        try:
            partition = broker.replicas.find(OFFSETS, broker.groups.partition_of(request.group_id))
            partition.check_leads()
        except (RequestError, StorageError) as e:
            raise client_error(e) from e
        guard = partition.log.begin_verification(producer_id, epoch, _NO_SEQUENCE, mode is Mode.ADD)
        if guard is not None:
            errors = await coordinators.verify(
                request.transactional_id, producer_id, epoch, (partition.tip,), mode
            )
            error = errors[partition.tip]
            if error == ErrorCode.network_exception:
                error = ErrorCode.coordinator_load_in_progress
            if error != ErrorCode.none:
                raise client_error(RequestError(ErrorCode(error)))
    return Producer(producer_id, epoch, guard)


async def _commit(broker: Broker, request: GroupCommitRequest, producer: Producer) -> GroupCommitResponse:
    return await settled(
        broker.groups.write(
            request.group_id,
            lambda shard, _, now_ms: shard.commit_offsets_of_transaction(request, producer, now_ms),
        )
    )


def _response(topics: Iterable[CommittedTopic], version: int) -> Steps[TxnOffsetCommitResponse]:
    """Return the response. Clients before version 2 would fail for good while a coordinator loads."""
    loading, instead = ErrorCode.coordinator_load_in_progress, ErrorCode.coordinator_not_available
    if version >= _LOADING_FROM:
        instead = loading
    made = []
    for topic in topics:
        yield
        partitions: list[TxnOffsetCommitResponsePartition] = []
        for at in range(0, len(topic.partitions), AT_ONCE):
            if at:
                yield
            partitions += [
                TxnOffsetCommitResponsePartition(
                    partition_index=one.partition_index,
                    error_code=instead if one.error_code is loading else one.error_code,
                )
                for one in topic.partitions[at : at + AT_ONCE]
            ]
        made.append(TxnOffsetCommitResponseTopic(name=topic.name, partitions=tuple(partitions)))
    return TxnOffsetCommitResponse(throttle_time=NO_THROTTLE, topics=tuple(made))
