"""EndTxn: the decision to commit or to abort a transaction."""

from __future__ import annotations

from typing import Final

from kio.schema.end_txn.v5.request import EndTxnRequest
from kio.schema.end_txn.v5.response import EndTxnResponse
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.network.request import RequestContext
from service.security.operations import AclOperation, AclResourceType
from service.serving.authorization import is_allowed
from service.serving.request_host import NO_THROTTLE, Broker
from service.serving.transactional_requests import decided, error_for
from service.transactions.config import TV0, TV2
from service.transactions.requests import NO_PRODUCER, EndTransaction, TransactionalProducer, check_id

_RAISES_EPOCH_SINCE: Final = 5
_FENCED_SINCE: Final = 2


async def handle(broker: Broker, context: RequestContext, request: EndTxnRequest) -> EndTxnResponse:
    """Answer once the decision is committed; markers are written afterwards."""
    version, name = context.api_version, request.transactional_id
    asked = EndTransaction(
        name,
        TransactionalProducer(request.producer_id, request.producer_epoch),
        request.committed,
        TV2 if version >= _RAISES_EPOCH_SINCE else TV0,
    )
    error, producer = ErrorCode.none, NO_PRODUCER
    if not is_allowed(broker, context, AclOperation.WRITE, AclResourceType.TRANSACTIONAL_ID, name):
        error = ErrorCode.transactional_id_authorization_failed
    else:
        try:
            check_id(name)
            producer = await decided(
                broker,
                name,
                lambda shard, fresh_id, now_ms: shard.end_transaction(asked, fresh_id, now_ms),
            )
        except RequestError as e:
            error = error_for(e.code, version, _FENCED_SINCE)
    return EndTxnResponse(
        throttle_time=NO_THROTTLE,
        error_code=error,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
    )
