"""From a request frame to its handler and back to a response frame.

Produce and Fetch work on views of the frame; every other API goes through canonical messages. Nothing is
caught here: a handler answers for its own peer's mistakes, a `WireError` costs the peer its connection, and
anything else is a bug that the server logs with the peer's address before it closes the connection.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from service.base.printable import printable
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
Parse = Callable[[int, memoryview, int], Any]


NO_ERROR: Final = ErrorCode.none
COUNTED_ERRORS: Final = 1000
"""Topics or resources of an answer that are looked at for an error."""


class Served(NamedTuple):
    """Who answers an API on the broker's listeners. `parse`: by hand, and so is the answer."""

    handle: Handler
    parse: Parse | None = None


BROKER_APIS: Final[dict[int, Served]] = {
    ApiKey.PRODUCE: Served(produce.handle, parse_produce),
    ApiKey.FETCH: Served(fetch.handle, parse_fetch),
    ApiKey.LIST_OFFSETS: Served(list_offsets.handle),
    ApiKey.METADATA: Served(metadata.handle),
    ApiKey.API_VERSIONS: Served(api_versions.handle),
    ApiKey.CREATE_TOPICS: Served(create_topics.handle),
    ApiKey.DELETE_TOPICS: Served(delete_topics.handle),
    ApiKey.INIT_PRODUCER_ID: Served(init_producer_id.handle),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: Served(offset_for_leader_epoch.handle),
    ApiKey.DESCRIBE_CONFIGS: Served(describe_configs.handle),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Served(incremental_alter_configs.handle),
    ApiKey.DESCRIBE_CLUSTER: Served(describe_cluster.handle),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: Served(describe_topic_partitions.handle),
}
"""One row per API, as in `wire.api.APIS`, which says in which versions it is spoken and advertised."""


class Dispatcher:
    """The server's handler: called on the loop with each whole request frame, in order per connection."""

    def __init__(self, broker: Broker, apis: Mapping[int, Served] = BROKER_APIS) -> None:
        self._broker = broker
        self._apis = apis

    def __call__(
        self, context: RequestContext, frame: memoryview
    ) -> Response | Awaitable[Response | None] | None:
        """Raises `WireError` for what is not a request that this node serves."""
        header = parse_request_header(frame)
        context.api_key, context.api_version = header.api_key, header.api_version
        context.correlation_id, context.client_id = header.correlation_id, header.client_id
        handle, parse = self._apis[header.api_key]
        if parse is not None:
            request = parse(header.api_version, frame, header.body)
            by_hand: Response | Awaitable[Response | None] | None = handle(self._broker, context, request)
            return by_hand
        if not is_served(header):
            return Response([unsupported_api_versions_frame(header)])
        answer = handle(self._broker, context, decode_request(header, frame))
        if isinstance(answer, Awaitable):
            return self._later(header, answer)
        self._count_errors(header.api_key, answer)
        return Response([response_frame(header, answer)])

    async def _later(self, header: RequestHeader, waited_for: Awaitable[Any]) -> Response:
        answer = await waited_for
        self._count_errors(header.api_key, answer)
        return Response([response_frame(header, answer)])

    def _count_errors(self, api_key: int, answer: Any) -> None:
        """Errors of the whole answer and of the topics or resources in it, as far as they are few."""
        error, api = self._broker.metrics.error, ApiKey(api_key).name
        if (code := getattr(answer, "error_code", NO_ERROR)) != NO_ERROR:
            error(api, code)
        for name in ("topics", "responses", "results"):
            for one in getattr(answer, name, ())[:COUNTED_ERRORS]:
                if (code := getattr(one, "error_code", NO_ERROR)) != NO_ERROR:
                    error(api, code)

    def describe(self, context: RequestContext, frame: memoryview | None) -> str:
        """What is asked and by whom, in words, with the first partition that is named where that is cheap to
        say."""
        try:
            api = ApiKey(context.api_key).name
        except ValueError:
            api = f"API key {context.api_key}"
        asked = "" if frame is None else self._partitions(context, frame)
        return f"{api}{asked} from {context}"

    def _partitions(self, context: RequestContext, frame: memoryview) -> str:
        served = self._apis.get(context.api_key)
        if served is None or served.parse is None:
            return f" ({len(frame)} bytes)"
        header = parse_request_header(frame)
        request = served.parse(header.api_version, frame, header.body)
        named = [(topic, one) for topic, partitions in request.topics for one in partitions]
        if not named:
            return ""
        topic, one = named[0]
        index = getattr(one, "partition", None)
        first = f"{printable(topic)}-{one[0] if index is None else index}"
        return f" of {first}" + (f" and {len(named) - 1} more partitions" if len(named) > 1 else "")
