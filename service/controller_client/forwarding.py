"""Requests that a broker hands to the controller as they came, in an Envelope (KIP-590).

Both sides are here. A broker wraps the request's own bytes, header included, gives back the inner answer's
bytes, and waits until its own image has reached the change, so that a created topic is known where it was
created. A controller unwraps what is forwardable and nothing else.

Source: Kafka ``ForwardingManager``, ``EnvelopeUtils`` and ``RequestChannel.Request.buildResponseSend`` of
4.3.1.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple, Protocol

from kio.schema.envelope.v0.request import EnvelopeRequest
from kio.schema.envelope.v0.response import EnvelopeResponse
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.printable import printable
from service.base.rate_limited_log import RateLimitedLog
from service.base.slices import Slice
from service.base.types import Buffer
from service.controller_client.controller_channel import OutcomeUnknown, is_not_controller
from service.network.request import RequestContext, Response
from service.wire.api import (
    APIS,
    ApiKey,
    RequestHeader,
    decode_request_steps,
    decode_response_steps,
    millis,
    parse_request_header,
    response_frame,
)
from service.wire.apis import RequestEffect
from service.wire.errors import MalformedMessage, UnsupportedRequest, UnsupportedVersion, WireError
from service.wire.primitives import Cursor, write_compact_string, write_int16
from service.wire.refusals import refusal

_LOG = logging.getLogger(__name__)
_TIMEOUT_MS: Final = 60_000
"""Of requests that bring none, and the most of all others: a client that is gone is waited for no longer.
Kafka's for all forwarded ones (``NodeToControllerChannelManagerImpl``, its ``retryTimeoutMs``)."""
_CORRELATION_ID: Final = struct.Struct(">i").unpack_from


# The principal. Without security every client is the same one.


def _principal(kind: str, name: str) -> bytes:
    out = bytearray()
    write_int16(out, 0)
    write_compact_string(out, kind)
    write_compact_string(out, name)
    out += b"\0\0"  # not authenticated by a token; no tagged fields
    return bytes(out)


ANONYMOUS: Final = _principal("User", "ANONYMOUS")
"""``User:ANONYMOUS`` as Kafka's DefaultPrincipalData, version 0, behind its version."""


def read_principal(data: Buffer | None) -> str:
    """``Type:Name`` of DefaultPrincipalData. Raises `MalformedMessage`."""
    if data is None:
        raise MalformedMessage("no principal")
    cursor = Cursor(data)
    try:
        version = cursor.int16()
        if version != 0:
            raise MalformedMessage(f"version {version} of the principal")
        kind, name = cursor.compact_string(), cursor.compact_string()
        cursor.boolean()
        cursor.skip_tagged_fields()
    except struct.error as e:
        raise MalformedMessage(str(e)) from e
    return f"{kind}:{name}"


# A broker's side


class Asker(Protocol):
    """The queue to the controller (`controllers.Controllers`)."""

    async def ask(
        self, api_key: int, message: Any, *, timeout_ms: int, inner_key: int | None = None
    ) -> Any: ...


CaughtUp = Callable[[], Awaitable[object]]
"""Returns once this node's image has all that the controller had committed when it was called."""


def wrap(frame: Buffer, client_host: str) -> EnvelopeRequest:
    """The Envelope around a request frame (without its size) of that client."""
    try:
        address = ipaddress.ip_address(client_host.partition("%")[0]).packed
    except ValueError:
        address = bytes(4)  # it was gone before it could be asked for
    return EnvelopeRequest(
        request_data=bytes(frame), request_principal=ANONYMOUS, client_host_address=address
    )


def timeout_of(request: Any) -> int:
    """Return how long the client waits, in ms, as far as its request says."""
    timeout = getattr(request, "timeout", None)
    return _TIMEOUT_MS if timeout is None else max(0, millis(timeout))


class Forwarder:
    """Hands clients' requests to the controller. Owned by the event loop."""

    def __init__(self, controllers: Asker, caught_up: CaughtUp) -> None:
        self._controllers = controllers
        self._caught_up = caught_up
        self._warnings = RateLimitedLog(_LOG, now=asyncio.get_running_loop().time)

    async def forward(
        self, context: RequestContext, header: RequestHeader, frame: Buffer, request: Any
    ) -> Response:
        """The controller's answer to the request in `frame`, whose canonical form is `request`.

        REQUEST_TIMED_OUT without a controller within the client's time, or with one whose answer was lost;
        UNKNOWN_SERVER_ERROR where the Envelope itself was refused. Raises `UnsupportedRequest`, which costs
        the client its connection, where the controller does not know the request's version: it negotiates
        anew then.
        """
        loop = asyncio.get_running_loop()
        timeout_ms = min(timeout_of(request), _TIMEOUT_MS)
        deadline = loop.time() + timeout_ms / 1000
        try:
            envelope = await self._controllers.ask(
                ApiKey.ENVELOPE,
                wrap(frame, context.client_host),
                timeout_ms=timeout_ms,
                inner_key=header.api_key,
            )
        except OutcomeUnknown as e:
            return self._refused(context, header, request, e.code, str(e))
        except RequestError as e:
            return Response([response_frame(header, refusal(header.api_key, request, e.code, e.message))])
        except UnsupportedVersion as e:
            return self._refused(context, header, request, ErrorCode.unknown_server_error, str(e))
        if envelope.error_code == ErrorCode.unsupported_version:
            raise UnsupportedRequest(f"the controller does not know {_named(header)}")
        if envelope.error_code != ErrorCode.none:
            why = f"the controller refused the envelope: {_name(envelope.error_code)}"
            return self._refused(context, header, request, ErrorCode.unknown_server_error, why)
        data = envelope.response_data
        if (misfit := await _misfit(header, data)) is not None:
            return self._refused(context, header, request, ErrorCode.unknown_server_error, misfit)
        if APIS[header.api_key].effect is not RequestEffect.READS:
            with suppress(TimeoutError):  # it is done, whether it is known here or not
                async with asyncio.timeout_at(deadline):
                    await self._caught_up()
        return Response([struct.pack(">i", len(data)), data])

    def _refused(
        self, context: RequestContext, header: RequestHeader, request: Any, code: ErrorCode, why: str
    ) -> Response:
        self._warnings.warning("%s of %s was not forwarded: %s", _named(header), context, printable(why))
        message = why if code is ErrorCode.request_timed_out else None
        return Response([response_frame(header, refusal(header.api_key, request, code, message))])


async def _misfit(header: RequestHeader, data: Buffer | None) -> str | None:
    """Return why the inner answer is none to this request."""
    if data is None or len(data) < 4:
        return "the envelope's answer is empty"
    if (correlation_id := _CORRELATION_ID(data)[0]) != header.correlation_id:
        return f"the inner answer is to request {correlation_id}, not {header.correlation_id}"
    try:
        await Slice().go_on(decode_response_steps(header.api_key, header.api_version, data))
    except WireError as e:
        return f"the inner answer is none: {e}"
    return None


def _named(header: RequestHeader) -> str:
    return f"{APIS[header.api_key].name} version {header.api_version}"


def _name(code: int) -> str:
    return code.name if isinstance(code, ErrorCode) else str(code)


# The controller's side


class Forwarded(NamedTuple):
    """What an Envelope held: a client's request, as a listener would have read it."""

    header: RequestHeader
    frame: Buffer
    request: Any
    """canonical"""
    client_host: str
    principal: str


async def unwrap(envelope: EnvelopeRequest) -> Forwarded:
    """Return the request in `envelope`.

    Raises `RequestError`, in this order: PRINCIPAL_DESERIALIZATION_FAILURE; INVALID_REQUEST for an address
    that is none; UNSUPPORTED_VERSION for a header or version that is not understood; INVALID_REQUEST for an
    API that is not forwarded, another Envelope among them; UNSUPPORTED_VERSION for a body that does not
    parse.
    """
    try:
        principal = read_principal(envelope.request_principal)
    except MalformedMessage as e:
        raise RequestError(
            ErrorCode.principal_deserialization_failure,
            f"Failed to deserialize client principal from envelope: {e}",
        ) from e
    address = envelope.client_host_address
    if len(address) not in (4, 16):
        raise RequestError(ErrorCode.invalid_request, "Failed to parse client address from envelope")
    frame = envelope.request_data
    header = _inner_header(frame)
    if not APIS[header.api_key].is_forwardable:
        raise _not_forwardable(header.api_key)
    try:
        request = await Slice().go_on(decode_request_steps(header, frame))
    except MalformedMessage as e:
        raise RequestError(
            ErrorCode.unsupported_version, f"Failed to parse forwarded request with header {header}: {e}"
        ) from e
    return Forwarded(header, frame, request, str(ipaddress.ip_address(bytes(address))), principal)


def _inner_header(frame: Buffer) -> RequestHeader:
    try:
        return parse_request_header(frame)
    except UnsupportedRequest as e:
        key = int.from_bytes(frame[:2], "big", signed=True)
        if key in APIS and not APIS[key].is_forwardable:
            raise _not_forwardable(key) from e
        raise RequestError(ErrorCode.unsupported_version, str(e)) from e
    except MalformedMessage as e:
        message = f"Failed to parse request header from envelope: {e}"
        raise RequestError(ErrorCode.unsupported_version, message) from e


def _not_forwardable(key: int) -> RequestError:
    name = APIS[key].name
    return RequestError(
        ErrorCode.invalid_request, f"API {name} is not enabled or is not eligible for forwarding"
    )


def sealed(header: RequestHeader, answer: Any) -> EnvelopeResponse:
    """The Envelope's answer around the canonical `answer` to what it held.

    NOT_CONTROLLER goes on the outside: it is the broker that looks for another controller, not its client.
    """
    if is_not_controller(answer):
        return refused(ErrorCode.not_controller)
    return EnvelopeResponse(
        response_data=bytes(memoryview(response_frame(header, answer))[4:]), error_code=ErrorCode.none
    )


def refused(code: ErrorCode) -> EnvelopeResponse:
    """The Envelope's answer where what it held was not answered."""
    return EnvelopeResponse(response_data=None, error_code=code)
