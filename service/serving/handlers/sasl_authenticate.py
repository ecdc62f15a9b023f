"""SaslAuthenticate outside a login: refused; the connection stays (logins: `network/authenticating`)."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode
from kio.schema.sasl_authenticate.v2.request import SaslAuthenticateRequest
from kio.schema.sasl_authenticate.v2.response import SaslAuthenticateResponse

from service.network.request import RequestContext


def handle(node: Any, context: RequestContext, request: SaslAuthenticateRequest) -> SaslAuthenticateResponse:
    """Return ILLEGAL_SASL_STATE: the listener has no logins, or this one is complete and does not end."""
    return SaslAuthenticateResponse(
        error_code=ErrorCode.illegal_sasl_state,
        error_message="SaslAuthenticate request received after successful authentication",
        auth_bytes=b"",
    )
