"""RewriteRange, an API of Firn's own: a worker elsewhere rewrites a run of a chain that this broker leads."""

from __future__ import annotations

from collections.abc import Awaitable

from kio.schema.errors import ErrorCode

from service.network.request import RequestContext
from service.serving.request_host import Broker
from service.wire.rewrites import RewriteRangeRequest, RewriteRangeResponse


def handle(
    broker: Broker, context: RequestContext, request: RewriteRangeRequest
) -> RewriteRangeResponse | Awaitable[RewriteRangeResponse]:
    """Carry out one step, for whoever may do CLUSTER_ACTION. Workers are clients: their quotas apply."""
    reason = request.malformed()
    if reason is not None:
        return RewriteRangeResponse(
            error_code=ErrorCode.invalid_request, error_message=f"RewriteRange: {reason}"
        )
    if broker.range_publisher is None:
        return RewriteRangeResponse(
            error_code=ErrorCode.operation_not_attempted,
            error_message="this broker's cold tier does not run",
        )
    return broker.range_publisher.answer(request)
