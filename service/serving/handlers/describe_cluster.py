"""DescribeCluster (KIP-700): the brokers, and their addresses for clients."""

from __future__ import annotations

from kio.schema.describe_cluster.v2.request import DescribeClusterRequest
from kio.schema.describe_cluster.v2.response import DescribeClusterBroker, DescribeClusterResponse
from kio.schema.errors import ErrorCode

from service.network.request import RequestContext
from service.serving.authorization import cluster_operations
from service.serving.metadata_cache import NO_BROKER
from service.serving.request_host import NO_THROTTLE, Broker

BROKERS = 1
CONTROLLERS = 2


def handle(
    broker: Broker, context: RequestContext, request: DescribeClusterRequest
) -> DescribeClusterResponse:
    """Return the brokers that have the request's listener; fenced ones only if the request includes them.

    Only controllers' listeners serve endpoint type 2 (controllers): here it is MISMATCHED_ENDPOINT_TYPE, and
    any other number UNSUPPORTED_ENDPOINT_TYPE (KIP-919).
    """
    if request.endpoint_type != BROKERS:
        return _refused(request.endpoint_type)
    asked = request.include_cluster_authorized_operations
    view = broker.cluster.view_for(context.listener)
    brokers = view.all_brokers if request.include_fenced_brokers else view.alive
    return DescribeClusterResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        error_message=None,
        endpoint_type=BROKERS,
        cluster_id=broker.cluster_id,
        controller_id=broker.cluster.controller_id(view),
        brokers=tuple(
            DescribeClusterBroker(
                broker_id=one.id, host=one.host, port=one.port, rack=one.rack, is_fenced=one.is_fenced
            )
            for one in brokers
        ),
        cluster_authorized_operations=cluster_operations(broker, context, asked=asked),
    )


def _refused(endpoint_type: int) -> DescribeClusterResponse:
    """Return an error response without data of the cluster."""
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
        controller_id=NO_BROKER,
        brokers=(),
    )
