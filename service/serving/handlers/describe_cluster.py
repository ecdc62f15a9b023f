"""DescribeCluster (KIP-700): who the brokers are and where clients reach them."""

from __future__ import annotations

from kio.schema.describe_cluster.v2.request import DescribeClusterRequest
from kio.schema.describe_cluster.v2.response import DescribeClusterBroker, DescribeClusterResponse
from kio.schema.errors import ErrorCode

from service.network.request import RequestContext
from service.serving.metadata_cache import NOBODY
from service.serving.request_host import CLUSTER_OPERATIONS, NO_THROTTLE, Broker
from service.wire.metadata import OPERATIONS_NOT_ASKED

BROKERS = 1
CONTROLLERS = 2


def handle(
    broker: Broker, context: RequestContext, request: DescribeClusterRequest
) -> DescribeClusterResponse:
    """The brokers as seen from the listener the request came in by; fenced ones only where they are asked
    for.

    Endpoint type 2 (controllers) is asked of controllers' listeners only: MISMATCHED_ENDPOINT_TYPE; any other
    number is UNSUPPORTED_ENDPOINT_TYPE (KIP-919).
    """
    if request.endpoint_type != BROKERS:
        return _refused(request.endpoint_type)
    asked = request.include_cluster_authorized_operations
    seen = broker.cluster.seen_by(context.listener)
    brokers = seen.everybody if request.include_fenced_brokers else seen.alive
    return DescribeClusterResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        error_message=None,
        endpoint_type=BROKERS,
        cluster_id=broker.cluster_id,
        controller_id=broker.cluster.controller_id(seen),
        brokers=tuple(
            DescribeClusterBroker(
                broker_id=one.id, host=one.host, port=one.port, rack=one.rack, is_fenced=one.is_fenced
            )
            for one in brokers
        ),
        cluster_authorized_operations=CLUSTER_OPERATIONS if asked else OPERATIONS_NOT_ASKED,
    )


def _refused(endpoint_type: int) -> DescribeClusterResponse:
    """The error, and nothing else of the cluster."""
    error, message = ErrorCode.unsupported_endpoint_type, f"Unsupported endpoint type {endpoint_type}"
    if endpoint_type == CONTROLLERS:
        error = ErrorCode.mismatched_endpoint_type
        message = (
            "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER"
        )
    return DescribeClusterResponse(
        throttle_time=NO_THROTTLE,
        error_code=error,
        error_message=message,
        cluster_id="",
        controller_id=NOBODY,
        brokers=(),
    )
