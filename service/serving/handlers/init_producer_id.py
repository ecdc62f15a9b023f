"""InitProducerId, for idempotent producers and transactional ones."""

from __future__ import annotations

from kio.schema.errors import ErrorCode
from kio.schema.init_producer_id.v5.request import InitProducerIdRequest
from kio.schema.init_producer_id.v5.response import InitProducerIdResponse

from service.base.errors import RequestError
from service.base.slices import Slice
from service.base.types import NO_PRODUCER_ID
from service.network.request import RequestContext
from service.security.operations import AclOperation, AclResourceType
from service.serving.authorization import allows_any, is_allowed, is_allowed_on_cluster
from service.serving.request_host import NO_THROTTLE, Broker


async def handle(
    broker: Broker, context: RequestContext, request: InitProducerIdRequest
) -> InitProducerIdResponse:
    """Return a new producer id with epoch 0, or the next producer of a transactional id (Kafka
    `TransactionCoordinator.handleInitProducerId`, which without such an id ignores the client's old id and
    epoch if it sends both or neither).
    """
    if request.transactional_id is not None:
        context = context.kept()
    if broker.authorizer is not None and (denied := await _denied(broker, context, request)) is not None:
        return _refused(denied)
    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == -1):
        return _refused(ErrorCode.invalid_request)
    try:
        if request.transactional_id is not None:
            return await _transactional(broker, context, request)
        producer_id = await broker.producer_ids.next()
    except RequestError as e:
        return _refused(e.code)
    return InitProducerIdResponse(
        throttle_time=NO_THROTTLE, error_code=ErrorCode.none, producer_id=producer_id, producer_epoch=0
    )


async def _transactional(
    broker: Broker, context: RequestContext, request: InitProducerIdRequest
) -> InitProducerIdResponse:
    if broker.transactions is None:
        # INVALID_REQUEST is fatal: the client reports it and does not retry for ever.
        raise RequestError(ErrorCode.invalid_request)
    module = await broker.load("service.serving.transactional_init")
    producer_id, epoch = await module.init_producer_id(broker, context, request)
    return InitProducerIdResponse(
        throttle_time=NO_THROTTLE, error_code=ErrorCode.none, producer_id=producer_id, producer_epoch=epoch
    )


async def _denied(
    broker: Broker, context: RequestContext, request: InitProducerIdRequest
) -> ErrorCode | None:
    """Return the error of a client that may write under no transactional id, or to no topic."""
    if request.transactional_id is not None:
        resource = AclResourceType.TRANSACTIONAL_ID
        if is_allowed(broker, context, AclOperation.WRITE, resource, request.transactional_id):
            return None
        return ErrorCode.transactional_id_authorization_failed
    if is_allowed_on_cluster(broker, context, AclOperation.IDEMPOTENT_WRITE, quiet=True):
        return None
    if await Slice().go_on(allows_any(broker, context, AclOperation.WRITE, AclResourceType.TOPIC)):
        return None
    return ErrorCode.cluster_authorization_failed


def _refused(error: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(
        throttle_time=NO_THROTTLE, error_code=error, producer_id=NO_PRODUCER_ID, producer_epoch=-1
    )
