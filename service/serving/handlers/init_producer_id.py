"""InitProducerId for idempotent producers. Transactions are not served: a transactional id is refused."""

from __future__ import annotations

from kio.schema.errors import ErrorCode
from kio.schema.init_producer_id.v5.request import InitProducerIdRequest
from kio.schema.init_producer_id.v5.response import InitProducerIdResponse

from service.base.errors import RequestError
from service.base.types import NO_PRODUCER_ID
from service.network.request import RequestContext
from service.serving.request_host import NO_THROTTLE, Broker


async def handle(
    broker: Broker, context: RequestContext, request: InitProducerIdRequest
) -> InitProducerIdResponse:
    """A fresh producer id with epoch 0 (Kafka `TransactionCoordinator.handleInitProducerId` without
    transactional id: there the id and epoch that the client had do not matter, only that it sends both or
    neither).
    """
    if request.transactional_id is not None:
        # Finding a coordinator comes first for every client, and that is not served; this is the last word
        # for one that skips it. INVALID_REQUEST is fatal: the client reports it and does not retry for ever.
        return _refused(ErrorCode.invalid_request)
    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == -1):
        return _refused(ErrorCode.invalid_request)
    try:
        producer_id = await broker.producer_ids.next()
    except RequestError as e:
        return _refused(e.code)
    return InitProducerIdResponse(
        throttle_time=NO_THROTTLE, error_code=ErrorCode.none, producer_id=producer_id, producer_epoch=0
    )


def _refused(error: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(
        throttle_time=NO_THROTTLE, error_code=error, producer_id=NO_PRODUCER_ID, producer_epoch=-1
    )
