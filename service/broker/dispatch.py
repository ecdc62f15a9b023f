"""From a request frame to its handler and back to a response frame.

Produce and Fetch work on views of the frame; every other API goes through canonical messages. Nothing is
caught here: a handler answers for its own peer's mistakes, a `WireError` costs the peer its connection, and
anything else is a bug that the server logs with the peer's address before it closes the connection.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from service.broker.broker import Broker
from service.broker.handlers import (
    api_versions,
    create_topics,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_topic_partitions,
    fetch,
    incremental_alter_configs,
    init_producer_id,
    list_offsets,
    metadata,
    offset_for_leader_epoch,
    produce,
)
from service.network.server import RequestContext, Response
from service.wire.api import (
    ApiKey,
    RequestHeader,
    decode_request,
    is_served,
    parse_request_header,
    response_frame,
    unsupported_api_versions_frame,
)
from service.wire.fetch import parse_fetch
from service.wire.produce import parse_produce

Handler = Callable[[Broker, RequestContext, Any], Any]

HANDLERS: Final[dict[int, Handler]] = {
    ApiKey.LIST_OFFSETS: list_offsets.handle,
    ApiKey.METADATA: metadata.handle,
    ApiKey.API_VERSIONS: api_versions.handle,
    ApiKey.CREATE_TOPICS: create_topics.handle,
    ApiKey.DELETE_TOPICS: delete_topics.handle,
    ApiKey.INIT_PRODUCER_ID: init_producer_id.handle,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: offset_for_leader_epoch.handle,
    ApiKey.DESCRIBE_CONFIGS: describe_configs.handle,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: incremental_alter_configs.handle,
    ApiKey.DESCRIBE_CLUSTER: describe_cluster.handle,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: describe_topic_partitions.handle,
}


class Dispatcher:
    """The server's handler: called on the loop with each whole request frame, in order per connection."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def __call__(
        self, context: RequestContext, frame: memoryview
    ) -> Response | Awaitable[Response | None] | None:
        """Raises `WireError` for what is not a request that this node serves."""
        header = parse_request_header(frame)
        context.api_key, context.api_version = header.api_key, header.api_version
        context.correlation_id, context.client_id = header.correlation_id, header.client_id
        if header.api_key == ApiKey.PRODUCE:
            return produce.handle(
                self._broker, context, parse_produce(header.api_version, frame, header.body)
            )
        if header.api_key == ApiKey.FETCH:
            return fetch.handle(self._broker, context, parse_fetch(header.api_version, frame, header.body))
        if not is_served(header):
            return Response([unsupported_api_versions_frame(header)])
        answer = HANDLERS[header.api_key](self._broker, context, decode_request(header, frame))
        if isinstance(answer, Awaitable):
            return _later(header, answer)
        return Response([response_frame(header, answer)])


async def _later(header: RequestHeader, answer: Awaitable[Any]) -> Response:
    return Response([response_frame(header, await answer)])
