"""WriteTxnMarkers: ends transactions in partitions, for their coordinator (KIP-98; KIP-664 for admins)."""

from __future__ import annotations

from collections.abc import Awaitable

from kio.schema.errors import ErrorCode
from kio.schema.write_txn_markers.v2.request import WriteTxnMarkersRequest
from kio.schema.write_txn_markers.v2.response import WriteTxnMarkersResponse

from service.base.slices import in_slices
from service.network.request import RequestContext
from service.security.operations import AclOperation
from service.serving.authorization import is_allowed_on_cluster
from service.serving.received_markers import refused_markers, write_markers
from service.serving.request_host import Broker


def handle(
    broker: Broker, context: RequestContext, request: WriteTxnMarkersRequest
) -> WriteTxnMarkersResponse | Awaitable[WriteTxnMarkersResponse]:
    """Write a marker into each partition, each with its own error."""
    if not is_allowed_on_cluster(
        broker, context, AclOperation.ALTER, quiet=True
    ) and not is_allowed_on_cluster(broker, context, AclOperation.CLUSTER_ACTION):
        return in_slices(refused_markers(request, ErrorCode.cluster_authorization_failed))
    return write_markers(broker, request, lambda: context.has_left)
