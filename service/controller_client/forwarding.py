"""Envelopes (KIP-590): clients' requests that a broker forwards to the controller unchanged; both sides.

A broker wraps the request's bytes with its header, waits until its own image has the change, so that it knows
a topic that was created by it, and returns the bytes of the inner response. A controller unwraps requests of
forwardable APIs only.

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
from service.network.request import RequestContext, Response, Throttled
from service.security.principal import Principal
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
"""Timeout of requests that have none, and upper bound of all others: the client may be gone. Kafka's timeout
of all forwarded requests (``retryTimeoutMs`` of ``NodeToControllerChannelManagerImpl``)."""
_CORRELATION_ID: Final = struct.Struct(">i").unpack_from


def write_principal(principal: Principal) -> bytes:
    """Return Kafka's DefaultPrincipalData, which begins with its version, 0."""
    out = bytearray()
    write_int16(out, 0)
    write_compact_string(out, principal.type)
    write_compact_string(out, principal.name)
    out += b"\1\0" if principal.is_token else b"\0\0"  # then no tagged fields
    return bytes(out)


def read_principal(data: Buffer | None) -> Principal:
    """Read DefaultPrincipalData. Raises `MalformedMessage`."""
    if data is None:
        raise MalformedMessage("no principal")
    cursor = Cursor(data)
    try:
        version = cursor.int16()
        if version != 0:
            raise MalformedMessage(f"version {version} of the principal")
        kind, name = cursor.compact_string(), cursor.compact_string()
        is_token = cursor.boolean()
        cursor.skip_tagged_fields()
    except struct.error as e:
        raise MalformedMessage(str(e)) from e
    return Principal(kind, name, is_token)


# A broker's side


class Asker(Protocol):
    """Queue to the controller (`controller_channel.Controllers`)."""

    async def ask(
        self, api_key: int, message: Any, *, timeout_ms: int, inner_key: int | None = None
    ) -> Any: ...


CaughtUp = Callable[[], Awaitable[object]]
"""Returns once this node's image has all that the controller had committed when it was called."""


def wrap(frame: Buffer, client_host: str, principal: Principal) -> EnvelopeRequest:
    """Put a client's request frame, without its size, into an Envelope."""
    try:
        address = ipaddress.ip_address(client_host.partition("%")[0]).packed
    except ValueError:
        address = bytes(4)  # the client was gone before its address was read
    return EnvelopeRequest(
        request_data=bytes(frame), request_principal=write_principal(principal), client_host_address=address
    )


def timeout_of(request: Any) -> int:
    """Return the request's own timeout in ms, or the default where it has none."""
    timeout = getattr(request, "timeout", None)
    return _TIMEOUT_MS if timeout is None else max(0, millis(timeout))


class Forwarder:
    """Forwards clients' requests to the controller. Owned by the event loop."""

    def __init__(self, controllers: Asker, caught_up: CaughtUp) -> None:
        self._controllers = controllers
        self._caught_up = caught_up
        self._warnings = RateLimitedLog(_LOG, now=asyncio.get_running_loop().time)

    async def forward(
        self, context: RequestContext, header: RequestHeader, frame: Buffer, request: Any
    ) -> Response:
        """Return the controller's response to the request in `frame`, whose canonical form is `request`.

        REQUEST_TIMED_OUT without a controller within the client's time, or where the response was lost;
        UNKNOWN_SERVER_ERROR where the Envelope itself was refused. Raises `UnsupportedRequest`, which closes
        the client's connection, where the controller does not know the request's version: the client then
        negotiates versions again.
        """
        loop = asyncio.get_running_loop()
        timeout_ms = min(timeout_of(request), _TIMEOUT_MS)
        deadline = loop.time() + timeout_ms / 1000
        try:
            envelope = await self._controllers.ask(
                ApiKey.ENVELOPE,
                wrap(frame, context.client_host, context.session.principal),
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
            raise UnsupportedRequest(f"the controller does not know {_api_of(header)}")
        if envelope.error_code != ErrorCode.none:
            why = f"the controller refused the envelope: {_name(envelope.error_code)}"
            return self._refused(context, header, request, ErrorCode.unknown_server_error, why)
        data = envelope.response_data
        try:
            inner = await _read(header, data)
        except MalformedMessage as e:
            return self._refused(context, header, request, ErrorCode.unknown_server_error, str(e))
        if APIS[header.api_key].effect is not RequestEffect.READS:
            with suppress(TimeoutError):  # the change is committed even if this image has not got it yet
                async with asyncio.timeout_at(deadline):
                    await self._caught_up()
        parts, told = [struct.pack(">i", len(data)), data], getattr(inner, "throttle_time", None)
        # The controller counts changes of topics, and this node holds the client back (KIP-599).
        return Throttled(parts, told.total_seconds()) if told else Response(parts)

    def _refused(
        self, context: RequestContext, header: RequestHeader, request: Any, code: ErrorCode, why: str
    ) -> Response:
        self._warnings.warning("%s of %s was not forwarded: %s", _api_of(header), context, printable(why))
        message = why if code is ErrorCode.request_timed_out else None
        return Response([response_frame(header, refusal(header.api_key, request, code, message))])


async def _read(header: RequestHeader, data: Buffer | None) -> Any:
    """Return the inner response's canonical message. Raises `MalformedMessage` where it does not fit this
    request."""
    if data is None or len(data) < 4:
        raise MalformedMessage("the envelope's response is empty")
    if (correlation_id := _CORRELATION_ID(data)[0]) != header.correlation_id:
        raise MalformedMessage(
            f"the inner response is to request {correlation_id}, not {header.correlation_id}"
        )
    try:
        return await Slice().go_on(decode_response_steps(header.api_key, header.api_version, data))
    except WireError as e:
        raise MalformedMessage(f"the inner response is malformed: {e}") from e


def _api_of(header: RequestHeader) -> str:
    return f"{APIS[header.api_key].name} version {header.api_version}"


def _name(code: int) -> str:
    return code.name if isinstance(code, ErrorCode) else str(code)


# The controller's side


class Forwarded(NamedTuple):
    """A client's request out of an Envelope, as a listener would have read it."""

    header: RequestHeader
    frame: Buffer
    request: Any
    """canonical"""
    client_host: str
    principal: Principal


async def unwrap(envelope: EnvelopeRequest) -> Forwarded:
    """Return the request in `envelope`.

    Raises `RequestError`, in this order: PRINCIPAL_DESERIALIZATION_FAILURE; INVALID_REQUEST for a malformed
    address; UNSUPPORTED_VERSION for a header that does not parse or an unknown version; INVALID_REQUEST for
    an API that is not forwardable, such as Envelope; UNSUPPORTED_VERSION for a body that does not parse.
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


def wrap_response(header: RequestHeader, answer: Any) -> EnvelopeResponse:
    """Put the canonical `answer` to an unwrapped request into the Envelope's response.

    NOT_CONTROLLER becomes the Envelope's own error: the broker then finds the new controller, not its client.
    """
    if is_not_controller(answer):
        return envelope_error(ErrorCode.not_controller)
    return EnvelopeResponse(
        response_data=bytes(memoryview(response_frame(header, answer))[4:]), error_code=ErrorCode.none
    )


def envelope_error(code: ErrorCode) -> EnvelopeResponse:
    """Return the Envelope's response without an inner response."""
    return EnvelopeResponse(response_data=None, error_code=code)
