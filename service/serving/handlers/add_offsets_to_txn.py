"""AddOffsetsToTxn: the partition of a group's offsets becomes part of a transaction."""

from __future__ import annotations

from typing import Final

from kio.schema.add_offsets_to_txn.v4.request import AddOffsetsToTxnRequest
from kio.schema.add_offsets_to_txn.v4.response import AddOffsetsToTxnResponse
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.java_hash import partition_of
from service.network.request import RequestContext
from service.security.operations import AclOperation, AclResourceType
from service.serving.authorization import is_allowed
from service.serving.internal_topics import OFFSETS
from service.serving.request_host import NO_THROTTLE, Broker
from service.serving.transactional_requests import decided, error_for
from service.transactions.config import TV0
from service.transactions.requests import AddPartitions, TransactionalProducer, check_id

_FENCED_SINCE: Final = 2


async def handle(
    broker: Broker, context: RequestContext, request: AddOffsetsToTxnRequest
) -> AddOffsetsToTxnResponse:
    """Add the partition as clients up to TV1 do: those of TV2 leave it to TxnOffsetCommit."""
    version = context.api_version
    try:
        await _add(broker, context, request)
    except RequestError as e:
        error = error_for(e.code, version, _FENCED_SINCE)
        return AddOffsetsToTxnResponse(throttle_time=NO_THROTTLE, error_code=error)
    return AddOffsetsToTxnResponse(throttle_time=NO_THROTTLE, error_code=ErrorCode.none)


async def _add(broker: Broker, context: RequestContext, request: AddOffsetsToTxnRequest) -> None:
    name = request.transactional_id
    if not is_allowed(broker, context, AclOperation.WRITE, AclResourceType.TRANSACTIONAL_ID, name):
        raise RequestError(ErrorCode.transactional_id_authorization_failed)
    if not is_allowed(broker, context, AclOperation.READ, AclResourceType.GROUP, request.group_id):
        raise RequestError(ErrorCode.group_authorization_failed)
    check_id(name)
    # A producer may be the first that has offsets to commit.
    topic = await broker.groups.internal.find_or_create(OFFSETS)
    partition = OFFSETS, partition_of(request.group_id, len(topic.partitions))
    producer = TransactionalProducer(request.producer_id, request.producer_epoch)
    asked = AddPartitions(name, producer, frozenset((partition,)), TV0)
    await decided(broker, name, lambda shard, _, now_ms: shard.add_partitions(asked, now_ms))
