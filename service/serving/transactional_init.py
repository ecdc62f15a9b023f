"""InitProducerId of a transactional producer, loaded with the first one."""

from __future__ import annotations

from typing import Final

from kio.schema.init_producer_id.v5.request import InitProducerIdRequest

from service.base.errors import RequestError
from service.network.request import RequestContext
from service.serving.request_host import Broker
from service.serving.transactional_requests import decided, error_for, max_timeout_ms
from service.transactions.init import check_init
from service.transactions.requests import InitTransactions, TransactionalProducer
from service.wire.schema import millis

_FENCED_SINCE: Final = 4


async def init_producer_id(
    broker: Broker, context: RequestContext, request: InitProducerIdRequest
) -> TransactionalProducer:
    """Return the producer of a transactional id, and fence the one before. Raises `RequestError`."""
    assert request.transactional_id is not None
    version = context.api_version
    asked = InitTransactions(
        request.transactional_id,
        millis(request.transaction_timeout),
        TransactionalProducer(request.producer_id, request.producer_epoch),
    )
    try:
        check_init(asked, max_timeout_ms(broker.config.transactions))
        return await decided(
            broker,
            asked.transactional_id,
            lambda shard, fresh_id, now_ms: shard.init_producer_id(asked, fresh_id, now_ms),
        )
    except RequestError as e:
        raise RequestError(error_for(e.code, version, _FENCED_SINCE), e.message or "") from e
