"""Erasures, an API of Firn's own: orders to erase keys are started, cancelled and asked about."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.network.request import RequestContext
from service.security.operations import AclOperation
from service.serving.authorization import check_cluster, topics_allowed
from service.serving.change_audit import audited
from service.serving.change_words import changed_erasures
from service.serving.request_host import Broker
from service.serving.topic_rights import TopicRights
from service.wire.erasures import ErasureOp, ErasuresRequest, ErasuresResponse

_CHANGES: Final = frozenset({ErasureOp.START, ErasureOp.CANCEL})


@audited(changed_erasures)
def handle(
    broker: Broker, context: RequestContext, request: ErasuresRequest
) -> ErasuresResponse | Awaitable[ErasuresResponse]:
    """Carry out one request: a start and a cancel take ALTER on the cluster, and DELETE on each topic of the
    order; all others DESCRIBE on the cluster, and counts READ on the topics that are counted in. Topics that
    the client may not describe are told by their ids."""
    operation = AclOperation.ALTER if request.op in _CHANGES else AclOperation.DESCRIBE
    try:
        check_cluster(broker, context, operation)
    except RequestError as e:
        return ErasuresResponse(error_code=e.code, error_message=e.message)
    reason = request.malformed()
    if reason is not None:
        return ErasuresResponse(error_code=ErrorCode.invalid_request, error_message=f"Erasures: {reason}")
    if broker.erasure_orders is None:
        return ErasuresResponse(
            error_code=ErrorCode.operation_not_attempted,
            error_message="this broker's cold tier does not run",
        )
    rights = TopicRights(
        delete=topics_allowed(broker, context, AclOperation.DELETE),
        read=topics_allowed(broker, context, AclOperation.READ),
        describe=topics_allowed(broker, context, AclOperation.DESCRIBE, quiet=True),
    )
    return broker.erasure_orders.answer(request, rights)
