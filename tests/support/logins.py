"""Logins of a listener without a socket: alice (PLAIN), bob (SCRAM), and a handler that tells of itself."""

from __future__ import annotations

import logging
import struct
from typing import Any, Final

from kio.schema.errors import ErrorCode

from service.base.rate_limited_log import RateLimitedLog
from service.network.authenticating import Authenticator, ListenerLogins
from service.network.metrics import AuthenticationMetrics
from service.network.request import PeerContext, RequestContext, Response
from service.security.login_settings import LoginSettings, make_servers
from service.security.plain import PlainUsers
from service.security.scram import UnknownUsers, credential_from, salted_password
from service.security.scram_credential import ScramCredential
from service.security.scram_tokens import TokenCredentials
from service.serving.handlers import sasl_authenticate, sasl_handshake
from service.wire.api import (
    ApiKey,
    is_served,
    parse_request_header,
    read_request,
    response_frame,
    response_module,
    unsupported_api_versions_frame,
)
from service.wire.errors import UnsupportedRequest

SCRAM: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512")
BOB: Final = {
    one: credential_from(one, salted_password(one, b"pencil", b"salt", 4096), b"salt", 4096) for one in SCRAM
}


def bobs(name: str, mechanism: str) -> ScramCredential | None:
    """The credential of bob; of nobody else."""
    return BOB[mechanism] if name == "bob" else None


class Clock:
    """Seconds that stand still until somebody moves them."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Listener:
    """A listener and what its handler was asked: (who, API key)."""

    def __init__(
        self, clock: Clock | None = None, tokens: TokenCredentials | None = None, **settings: Any
    ) -> None:
        self.clock = clock or Clock()
        users = PlainUsers({"user_alice": "secret", "user_eve": "evil"})
        given: dict[str, Any] = {"mechanisms": ("PLAIN", *SCRAM), "plain_users": users, "failed_delay_ms": 0}
        self.settings = LoginSettings(**given | settings)
        self.metrics = AuthenticationMetrics()
        self.asked: list[tuple[str, int]] = []
        unknown = UnknownUsers(b"cluster")
        self.logins = ListenerLogins(
            self.settings,
            make_servers(self.settings, bobs, unknown, lambda: "of-the-server", tokens),
            "SASL_PLAINTEXT",
            self.metrics,
            now=self.clock,
            now_ms=lambda: int(self.clock() * 1000),
            warnings=RateLimitedLog(logging.getLogger("tests"), now=self.clock),
        )
        self.logins.handler = self.handle
        self.logins.answer_versions = answer_versions

    def connect(self) -> Authenticator:
        return Authenticator(self.logins, PeerContext(1, "127.0.0.1", 5000, "SASL"))

    def handle(self, context: RequestContext, frame: memoryview) -> Response:
        """What a broker's dispatcher does, for the APIs that logins know."""
        header = parse_request_header(frame)
        self.asked.append((str(context.session.principal), header.api_key))
        if header.api_key == ApiKey.SASL_HANDSHAKE:
            return Response([response_frame(header, sasl_handshake.handle(None, context, None))])  # type: ignore[arg-type]
        if header.api_key == ApiKey.SASL_AUTHENTICATE:
            return Response([response_frame(header, sasl_authenticate.handle(None, context, None))])  # type: ignore[arg-type]
        if header.api_key == ApiKey.API_VERSIONS:
            if not is_served(header):
                return Response([unsupported_api_versions_frame(header)])
            answer = answer_versions(header.api_version, read_request(header, frame))
            return Response([response_frame(header, answer)])
        if header.api_key not in (ApiKey.METADATA, ApiKey.PRODUCE):
            raise UnsupportedRequest("not served")
        return Response([struct.pack(">ii", 4, header.correlation_id)])


def answer_versions(version: int, request: Any) -> Any:
    """INVALID_REQUEST for software without a name, as the real handler."""
    code = ErrorCode.none if version < 3 or request.client_software_name else ErrorCode.invalid_request
    module = response_module(ApiKey.API_VERSIONS)
    return module.ApiVersionsResponse(error_code=code, api_keys=(), throttle_time=0)
