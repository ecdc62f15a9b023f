"""Envelope (KIP-590): handles a request that a broker forwards as if its client had sent it here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from kio.schema.envelope.v0.request import EnvelopeRequest
from kio.schema.envelope.v0.response import EnvelopeResponse
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.controller_client import forwarding
from service.controller_server.request_host import ControllerSide, check_active
from service.network.request import RequestContext
from service.security.session import Session
from service.serving.served_api import Served
from service.wire.api import ApiKey

_ANYWHERE = frozenset({ApiKey.DESCRIBE_QUORUM})
"""APIs that a controller handles while it is not active, with an error in the inner response"""


def refuse(context: RequestContext, request: Any, code: ErrorCode, message: str) -> EnvelopeResponse:
    """Return the response to an Envelope of a sender that may not send any."""
    return forwarding.envelope_error(code)


def handling(
    rows: Mapping[int, Served],
) -> Callable[[ControllerSide, RequestContext, EnvelopeRequest], Awaitable[EnvelopeResponse]]:
    """Return the Envelope handler of a listener that serves `rows`."""

    async def handle(
        side: ControllerSide, context: RequestContext, envelope: EnvelopeRequest
    ) -> EnvelopeResponse:
        """Handle the request in `envelope`. One that cannot be unwrapped is refused without any change."""
        context.cancel_on_disconnect = False
        connection_id, port, listener = context.connection_id, context.client_port, context.listener
        try:
            forwarded = await forwarding.unwrap(envelope)
            header = forwarded.header
            if header.api_key not in _ANYWHERE:
                check_active(side)
        except RequestError as e:
            return forwarding.envelope_error(e.code)
        outer = context.session
        # Over which protocol the client came is not told.
        session = Session(forwarded.principal, forwarded.client_host, outer.listener, "")
        inner = RequestContext(connection_id, forwarded.client_host, port, listener, session)
        inner.api_key, inner.api_version = header.api_key, header.api_version
        inner.correlation_id, inner.client_id = header.correlation_id, header.client_id
        answer: Any = rows[header.api_key].handle(side, inner, forwarded.request)
        if isinstance(answer, Awaitable):
            answer = await answer
        return forwarding.wrap_response(header, answer)

    return handle
