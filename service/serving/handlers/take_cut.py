"""TakeCut, an API of Firn's own: the keeper of the prefix asks this broker for its part of a cut."""

from __future__ import annotations

from collections.abc import Awaitable

from kio.schema.errors import ErrorCode

from service.config.listeners import PLAINTEXT
from service.network.request import RequestContext
from service.serving.request_host import Broker
from service.wire.cuts import TakeCutRequest, TakeCutResponse


def handle(
    broker: Broker, context: RequestContext, request: TakeCutRequest
) -> TakeCutResponse | Awaitable[TakeCutResponse]:
    """Carry out one step, for a broker: on the listener between brokers alone."""
    between_brokers = broker.config.cluster.inter_broker_listener_name or PLAINTEXT
    if context.listener != between_brokers:
        return TakeCutResponse(
            error_code=ErrorCode.invalid_request,
            error_message=f"TakeCut is for brokers, on their listener {between_brokers}",
        )
    context.meter = None  # brokers are exempt: a throttle would outlast the hold
    if broker.cuts is None:
        return TakeCutResponse(
            error_code=ErrorCode.operation_not_attempted,
            error_message="this broker's cold tier does not run",
        )
    return broker.cuts.answer(request)
