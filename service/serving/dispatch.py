"""Dispatch of request frames to handlers, and encoding of their responses.

Produce and Fetch work on views of the frame; every other API goes through canonical messages. No exception is
caught here: a handler responds to mistakes of its client, a `WireError` ends the peer's connection, and any
other exception is a bug that the server logs with the peer's address before it closes the connection.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from kio.schema.errors import ErrorCode

from service.base.printable import printable
from service.base.slices import Slice, next_turn
from service.network.request import Answer, Later, PeerContext, RequestContext, Response, Throttled
from service.network.request_meter import RequestMeter
from service.serving.decode_budget import GROWTH, GROWTH_BY_HAND, DecodeBudget
from service.serving.served_api import Host, Served, refused_first
from service.serving.throttles import throttled, throttled_as_told
from service.wire.api import (
    APIS,
    ApiKey,
    RequestHeader,
    decode_request_steps,
    is_served,
    parse_request_header,
    read_request,
    response_frame,
    response_steps,
    unsupported_api_versions_frame,
)
from service.wire.apis import ListenerType, RequestEffect
from service.wire.errors import UnsupportedRequest
from service.wire.primitives import ManyElements

AT_ONCE_ELEMENTS: Final = 256
"""Most array elements of a request that is decoded in one go; more are decoded and encoded in slices."""
LONG_BYTES: Final = 4096
"""Longest request to the controller that is decoded without a share of the memory budget."""


NO_ERROR: Final = ErrorCode.none
COUNTED_ERRORS: Final = 1000
"""Most topics or resources of a response whose errors are counted."""


class Dispatcher:
    """The server's handler: called on the loop with each whole request frame, in order per connection."""

    def __init__(self, broker: Host, apis: Mapping[int, Served]) -> None:
        self._broker = broker
        self._apis = dict(apis)
        self.budget = DecodeBudget()

    def __call__(self, context: RequestContext, frame: memoryview) -> Answer | Later:
        """Handle one request frame. Raises `WireError` if it is malformed or its API is not served."""
        header = parse_request_header(frame)
        context.api_key, context.api_version = header.api_key, header.api_version
        context.correlation_id, context.client_id = header.correlation_id, header.client_id
        served = self._apis.get(header.api_key)
        if served is None:
            raise UnsupportedRequest(f"{APIS[header.api_key].name} is not served on this listener")
        meter = context.meter
        if self._broker.quotas.active and meter is None:
            meter = context.meter = self._meter(context, len(frame))
        if served.quick is not None and (meter is None or meter.is_quick()):
            at_once = served.quick(self._broker, context, header, frame)
            if at_once is not None:
                return at_once
        if served.forwards is not None:
            return self._forward(context, header, frame, served, served.forwards)
        parse = served.parse
        try:
            if parse is not None:
                if served.has_many(frame):
                    return self._handle_in_slices(context, header, frame, served)
                request = parse(header.api_version, frame, header.body, AT_ONCE_ELEMENTS)
                by_hand: Response | Awaitable[Response | None] | None
                by_hand = served.handle(self._broker, context, request)
                return by_hand
            if served.late:
                return self._load_and_handle(context, header.api_key, frame)
            if not is_served(header):
                return Response([unsupported_api_versions_frame(header)])
            request = read_request(header, frame, AT_ONCE_ELEMENTS)
        except ManyElements:
            return self._handle_in_slices(context, header, frame, served)
        answer = served.handle(self._broker, context, request)
        if isinstance(answer, Awaitable):
            return self._encode_in_slices(context, header, answer)
        self._count_errors(header.api_key, answer)
        if (meter := context.meter) is not None:  # the handler may have exempted it
            answer, throttle_ms = throttled(answer, meter)
            if throttle_ms:
                return Throttled([response_frame(header, answer)], throttle_ms / 1000)
        return Response([response_frame(header, answer)])

    def _meter(self, context: RequestContext, size: int) -> RequestMeter | None:
        """Return the meter of a request; None for what nodes ask of each other, which no quota counts."""
        if APIS[context.api_key].listeners is ListenerType.CONTROLLER:
            return None
        return self._broker.quotas.meter(context.session, context.client_id, size)

    async def _forward(
        self,
        context: RequestContext,
        header: RequestHeader,
        frame: memoryview,
        served: Served,
        forwards: Callable[[Any], bool],
    ) -> Response:
        """Forward the request to the controller, or handle it here if it concerns only this node."""
        is_long = len(frame) > LONG_BYTES
        if is_long:
            await self._acquire(context, header, frame, GROWTH)
        try:
            request = await Slice().go_on(decode_request_steps(header, frame))
            if served.is_checked_first:
                refused = await refused_first(self._broker, context, request)
                if refused is not None:
                    return await self._encode_in_slices(context, header, refused)
            if forwards(request):
                response = await self._broker.forward(context, header, frame, request)
                return await throttled_as_told(response, header, context.meter)
            answer = served.handle(self._broker, context, request)
            return await self._encode_in_slices(context, header, answer)
        finally:
            if is_long:
                self.budget.release(context)

    async def _load_and_handle(
        self, context: RequestContext, api_key: int, frame: memoryview
    ) -> Response | None:
        """Load the API's handler module on a thread, then handle the request: the first one of its API."""
        served = self._apis[api_key]
        if served.late:
            module = await self._broker.load(f"service.serving.handlers.{served.late}")
            self._apis[api_key] = served.loaded(module)
        answer = self(context, frame)
        return await answer if isinstance(answer, Awaitable) else answer

    async def _handle_in_slices(
        self, context: RequestContext, header: RequestHeader, frame: memoryview, served: Served
    ) -> Response | None:
        """Handle a request with many elements: wait for the memory budget, decode and encode in slices."""
        growth = GROWTH if served.parse_steps is None else GROWTH_BY_HAND
        await self._acquire(context, header, frame, growth)
        try:
            return await self._decode_and_handle(context, header, frame, served)
        finally:
            self.budget.release(context)

    async def _acquire(
        self, context: RequestContext, header: RequestHeader, frame: memoryview, growth: int
    ) -> None:
        """Wait for the memory budget. Until then the request ends with its connection, since it has had no
        effect; a request that only reads does so later, too. Not so Produce: with acks=0 its peer may leave.
        """
        context.ends_with_peer = header.api_key != ApiKey.PRODUCE
        await self.budget.acquire(context, len(frame), growth)
        context.ends_with_peer = APIS[header.api_key].effect is RequestEffect.READS

    async def _decode_and_handle(
        self, context: RequestContext, header: RequestHeader, frame: memoryview, served: Served
    ) -> Response | None:
        if served.parse_steps is not None:
            steps = served.parse_steps(header.api_version, frame, header.body)
        else:
            steps = decode_request_steps(header, frame)
        await next_turn()  # so that many long requests do not all begin in one turn
        request = None
        if served.recall is not None:
            request = await Slice().go_on(served.recall(self._broker, context, header, frame))
        if request is None:
            request = await Slice().go_on(steps)
            await next_turn()
        answer = served.handle(self._broker, context, request)
        if served.parse_steps is None:
            return await self._encode_in_slices(context, header, answer)
        by_hand: Response | None = await answer if isinstance(answer, Awaitable) else answer
        return by_hand

    async def _encode_in_slices(
        self, context: RequestContext, header: RequestHeader, answer: Any
    ) -> Response:
        """Encode the response of a handler that needed a task, which may be large, in slices. Who asks again
        and again, and does not wait for the answer, must not keep the node busy with the earlier ones.
        """
        context.ends_with_peer = APIS[header.api_key].effect is RequestEffect.READS
        message, throttle_ms = await answer if isinstance(answer, Awaitable) else answer, 0
        self._count_errors(header.api_key, message)
        if context.meter is not None:
            message, throttle_ms = throttled(message, context.meter)
        parts = await Slice().go_on(response_steps(header, message))
        return Throttled(parts, throttle_ms / 1000) if throttle_ms else Response(parts)

    def _count_errors(self, api_key: int, answer: Any) -> None:
        """Count the error of the whole response, and those of its first `COUNTED_ERRORS` topics or
        resources.
        """
        error, api = self._broker.metrics.error, ApiKey(api_key).name
        if (code := getattr(answer, "error_code", NO_ERROR)) != NO_ERROR:
            error(api, code)
        for name in ("topics", "responses", "results", "filter_results", "entries"):
            for one in (getattr(answer, name, None) or ())[:COUNTED_ERRORS]:
                if (code := getattr(one, "error_code", NO_ERROR)) != NO_ERROR:
                    error(api, code)

    def describe(self, context: PeerContext, frame: memoryview | None) -> str:
        """Return a log text: the request's API and client and, for Produce and Fetch, its first partition."""
        try:
            api = ApiKey(context.api_key).name
        except ValueError:
            api = f"API key {context.api_key}"
        partitions = "" if frame is None else self._partitions(context, frame)
        return f"{api}{partitions} from {context}"

    def _partitions(self, context: PeerContext, frame: memoryview) -> str:
        served = self._apis.get(context.api_key)
        if served is None or served.parse is None or served.has_many(frame):
            return f" ({len(frame)} bytes)"
        header = parse_request_header(frame)
        try:
            request = served.parse(header.api_version, frame, header.body, AT_ONCE_ELEMENTS)
        except ManyElements:
            return f" ({len(frame)} bytes)"
        if not all(isinstance(topic, tuple) for topic in request.topics):
            return f" ({len(frame)} bytes)"  # Fetch of the metadata log, on a controller's listener
        named = [(topic, one) for topic, partitions in request.topics for one in partitions]
        if not named:
            return ""
        topic, one = named[0]
        index = getattr(one, "partition", None)
        first = f"{printable(topic)}-{one[0] if index is None else index}"
        return f" of {first}" + (f" and {len(named) - 1} more partitions" if len(named) > 1 else "")
