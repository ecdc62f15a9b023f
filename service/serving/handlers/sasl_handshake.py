"""SaslHandshake outside a login: refused; the connection stays (logins: `network/authenticating`)."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode
from kio.schema.sasl_handshake.v1.request import SaslHandshakeRequest
from kio.schema.sasl_handshake.v1.response import SaslHandshakeResponse

from service.network.request import RequestContext


def handle(node: Any, context: RequestContext, request: SaslHandshakeRequest) -> SaslHandshakeResponse:
    """Return ILLEGAL_SASL_STATE: the listener has no logins, or this one is complete and does not end."""
    return SaslHandshakeResponse(error_code=ErrorCode.illegal_sasl_state)
