"""WriteTxnMarkers: ends transactions in partitions, for their coordinator (KIP-98; KIP-664 for admins)."""

from __future__ import annotations

import re
from collections.abc import Awaitable
from typing import Final

from kio.schema.errors import ErrorCode
from kio.schema.write_txn_markers.v2.request import WriteTxnMarkersRequest
from kio.schema.write_txn_markers.v2.response import WriteTxnMarkersResponse

from service.base.slices import in_slices
from service.network.request import RequestContext
from service.security.change_audit import Requester, tell
from service.security.operations import AclOperation
from service.serving.authorization import is_allowed_on_cluster
from service.serving.change_words import written_markers
from service.serving.received_markers import refused_markers, write_markers
from service.serving.request_host import Broker

_NODE: Final = re.compile(r"(?:firn|broker)-\d+-")
"""Client ids of brokers, Firn's and Kafka's: their coordinators end transactions all the time"""


def handle(
    broker: Broker, context: RequestContext, request: WriteTxnMarkersRequest
) -> WriteTxnMarkersResponse | Awaitable[WriteTxnMarkersResponse]:
    """Write a marker into each partition, each with its own error."""
    if not is_allowed_on_cluster(
        broker, context, AclOperation.ALTER, quiet=True
    ) and not is_allowed_on_cluster(broker, context, AclOperation.CLUSTER_ACTION):
        return in_slices(refused_markers(request, ErrorCode.cluster_authorization_failed))
    context.meter = None  # exempt, as in Kafka
    written = write_markers(broker, request, lambda: context.has_left)
    if _NODE.match(context.client_id) and is_allowed_on_cluster(
        broker, context, AclOperation.CLUSTER_ACTION, quiet=True
    ):
        return written
    return _told(written, request, Requester.of(context.session, context.client_id))


async def _told(
    written: Awaitable[WriteTxnMarkersResponse], request: WriteTxnMarkersRequest, asker: Requester | None
) -> WriteTxnMarkersResponse:
    """Tell in the audit log what somebody ended who is no coordinator of transactions."""
    response = await written
    for change in written_markers(request, response):
        tell(change, asker)
    return response
