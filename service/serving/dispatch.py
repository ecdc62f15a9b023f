"""From a request frame to its handler and back to a response frame.

Produce and Fetch work on views of the frame; every other API goes through canonical messages. Nothing is
caught here: a handler answers for its own peer's mistakes, a `WireError` costs the peer its connection, and
anything else is a bug that the server logs with the peer's address before it closes the connection.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from kio.schema.errors import ErrorCode

from service.base.printable import printable
from service.base.slices import Slice, next_turn
from service.network.request import Answer, Later, RequestContext, Response
from service.serving.decode_budget import GROWTH, GROWTH_BY_HAND, DecodedMemory
from service.serving.served_api import Host, Served
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
from service.wire.apis import RequestEffect
from service.wire.errors import UnsupportedRequest
from service.wire.primitives import ManyElements

AT_ONCE_ELEMENTS: Final = 256
"""Array elements of a request that are read in one go; what has more is read and answered in slices."""
LONG_BYTES: Final = 4096
"""A request that goes to the controller, and is longer, waits for room like one of many elements."""


NO_ERROR: Final = ErrorCode.none
COUNTED_ERRORS: Final = 1000
"""Topics or resources of an answer that are looked at for an error."""


class Dispatcher:
    """The server's handler: called on the loop with each whole request frame, in order per connection."""

    def __init__(self, broker: Host, apis: Mapping[int, Served]) -> None:
        self._broker = broker
        self._apis = dict(apis)
        self.decoded = DecodedMemory()

    def __call__(self, context: RequestContext, frame: memoryview) -> Answer | Later:
        """Raises `WireError` for what is not a request that this node serves."""
        header = parse_request_header(frame)
        context.api_key, context.api_version = header.api_key, header.api_version
        context.correlation_id, context.client_id = header.correlation_id, header.client_id
        served = self._apis.get(header.api_key)
        if served is None:
            raise UnsupportedRequest(f"{APIS[header.api_key].name} is not served on this listener")
        if served.quick is not None:
            at_once = served.quick(self._broker, header, frame)
            if at_once is not None:
                return at_once
        if served.forwards is not None:
            return self._forwarded(context, header, frame, served, served.forwards)
        parse = served.parse
        try:
            if parse is not None:
                request = parse(header.api_version, frame, header.body, AT_ONCE_ELEMENTS)
                by_hand: Response | Awaitable[Response | None] | None
                by_hand = served.handle(self._broker, context, request)
                return by_hand
            if served.late:
                return self._once_loaded(context, header.api_key, frame)
            if not is_served(header):
                return Response([unsupported_api_versions_frame(header)])
            request = read_request(header, frame, AT_ONCE_ELEMENTS)
        except ManyElements:
            return self._in_slices(context, header, frame, served)
        answer = served.handle(self._broker, context, request)
        if isinstance(answer, Awaitable):
            return self._later(header, answer)
        self._count_errors(header.api_key, answer)
        return Response([response_frame(header, answer)])

    async def _forwarded(
        self,
        context: RequestContext,
        header: RequestHeader,
        frame: memoryview,
        served: Served,
        forwards: Callable[[Any], bool],
    ) -> Response:
        """What the controller answers, or this node where it is asked for what is its own."""
        is_long = len(frame) > LONG_BYTES
        if is_long:
            await self._enter(context, header, frame, GROWTH)
        try:
            request = await Slice().go_on(decode_request_steps(header, frame))
            if forwards(request):
                return await self._broker.forward(context, header, frame, request)
            return await self._later(header, served.handle(self._broker, context, request))
        finally:
            if is_long:
                self.decoded.leave(context)

    async def _once_loaded(self, context: RequestContext, api_key: int, frame: memoryview) -> Response | None:
        """As a call, for the first request whose code is not there yet: it is loaded on a thread."""
        served = self._apis[api_key]
        if served.late:
            module = await self._broker.load(f"service.serving.handlers.{served.late}")
            self._apis[api_key] = Served(module.handle, quick=getattr(module, "quick", None))
        answer = self(context, frame)
        return await answer if isinstance(answer, Awaitable) else answer

    async def _in_slices(
        self, context: RequestContext, header: RequestHeader, frame: memoryview, served: Served
    ) -> Response | None:
        """As a call, for a request with many elements: it waits for room as bytes, and reading and writing it
        is cut, too."""
        growth = GROWTH if served.parse_steps is None else GROWTH_BY_HAND
        await self._enter(context, header, frame, growth)
        try:
            return await self._decoded(context, header, frame, served)
        finally:
            self.decoded.leave(context)

    async def _enter(
        self, context: RequestContext, header: RequestHeader, frame: memoryview, growth: int
    ) -> None:
        """Wait for room. Until there is any, the request ends with its peer: nothing of it was done. What
        only reads ends with it later, too. A Produce may want no answer, so that its peer may leave."""
        context.ends_with_peer = header.api_key != ApiKey.PRODUCE
        await self.decoded.enter(context, len(frame), growth)
        context.ends_with_peer = APIS[header.api_key].effect is RequestEffect.READS

    async def _decoded(
        self, context: RequestContext, header: RequestHeader, frame: memoryview, served: Served
    ) -> Response | None:
        if served.parse_steps is not None:
            steps = served.parse_steps(header.api_version, frame, header.body)
        else:
            steps = decode_request_steps(header, frame)
        await next_turn()  # what many long requests begin with is shared out as well
        request = await Slice().go_on(steps)
        await next_turn()
        answer = served.handle(self._broker, context, request)
        if served.parse_steps is None:
            return await self._later(header, answer)
        by_hand: Response | None = await answer if isinstance(answer, Awaitable) else answer
        return by_hand

    async def _later(self, header: RequestHeader, answer: Any) -> Response:
        """What takes a task anyway may be large: it is written in slices."""
        message = await answer if isinstance(answer, Awaitable) else answer
        self._count_errors(header.api_key, message)
        return Response(await Slice().go_on(response_steps(header, message)))

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
        try:
            request = served.parse(header.api_version, frame, header.body, AT_ONCE_ELEMENTS)
        except ManyElements:
            return f" ({len(frame)} bytes)"
        if not all(isinstance(topic, tuple) for topic in request.topics):
            return f" ({len(frame)} bytes)"  # of the metadata log, on a controller's listener
        named = [(topic, one) for topic, partitions in request.topics for one in partitions]
        if not named:
            return ""
        topic, one = named[0]
        index = getattr(one, "partition", None)
        first = f"{printable(topic)}-{one[0] if index is None else index}"
        return f" of {first}" + (f" and {len(named) - 1} more partitions" if len(named) > 1 else "")
