"""DescribeCluster on a controller's listener: the registered controllers (KIP-919)."""

from __future__ import annotations

from kio.schema.describe_cluster.v2.request import DescribeClusterRequest
from kio.schema.describe_cluster.v2.response import DescribeClusterBroker, DescribeClusterResponse
from kio.schema.errors import ErrorCode

from service.controller_server.request_host import ControllerSide
from service.network.request import RequestContext
from service.serving.authorization import cluster_operations
from service.serving.request_host import NO_THROTTLE

BROKERS = 1
CONTROLLERS = 2
_NO_CONTROLLER = -1


def handle(
    side: ControllerSide, context: RequestContext, request: DescribeClusterRequest
) -> DescribeClusterResponse:
    """Handle DescribeCluster: list the registered controllers at the request's listener, and the leader.

    Version 0 has no endpoint type and means brokers: INVALID_REQUEST.
    """
    kind = request.endpoint_type
    if kind != CONTROLLERS:
        if kind == BROKERS:
            error = ErrorCode.mismatched_endpoint_type
            message = (
                "The request was sent to an endpoint of type CONTROLLER, but we wanted an endpoint of type "
                "BROKER"
            )
        else:
            error, message = ErrorCode.unsupported_endpoint_type, f"Unsupported endpoint type {kind}"
        if context.api_version == 0:
            error = ErrorCode.invalid_request
        return DescribeClusterResponse(
            throttle_time=NO_THROTTLE,
            error_code=error,
            error_message=message,
            cluster_id="",
            controller_id=_NO_CONTROLLER,
            brokers=(),
        )
    nodes = tuple(_controllers(side, context.listener))
    leader_id = side.metadata.quorum.machine.leader_id
    asked = request.include_cluster_authorized_operations
    return DescribeClusterResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        error_message=None,
        endpoint_type=CONTROLLERS,
        cluster_id=side.cluster_id,
        controller_id=leader_id if any(one.broker_id == leader_id for one in nodes) else _NO_CONTROLLER,
        brokers=nodes,
        cluster_authorized_operations=cluster_operations(side, context, asked=asked),
    )


def _controllers(side: ControllerSide, listener: str) -> list[DescribeClusterBroker]:
    """List the registered controllers that have `listener`."""
    return [
        DescribeClusterBroker(
            broker_id=one.id, host=endpoint.host, port=endpoint.port, rack=None, is_fenced=False
        )
        for one in side.image.controllers.values()
        for endpoint in one.endpoints
        if endpoint.name == listener
    ]
