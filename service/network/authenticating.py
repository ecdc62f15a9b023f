"""Gate before the handlers of a listener with SASL: nothing passes without a `Session`.

`Authenticator` reads ApiVersions, SaslHandshake and SaslAuthenticate, or bare tokens, and moves the
`ServerLogin` of one connection; whatever else comes ends it. When the login is complete, requests go to the
listener's handler. Where sessions end, the gate stays before it: it takes reauthentications (KIP-368) and
closes a connection whose session has ended.

Source: Kafka ``SaslServerAuthenticator``, ``SocketServer.processCompletedReceives``.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from kio.schema.errors import ErrorCode

from service.base.printable import printable
from service.base.rate_limited_log import RateLimitedLog
from service.network.metrics import AuthenticationMetrics
from service.network.request import (
    Answer,
    Closing,
    Handler,
    Later,
    LoggedIn,
    PeerContext,
    RequestContext,
    Response,
    TokensFollow,
    authenticated,
)
from service.security.login import LoginEnded, LoginState, ServerLogin, UnsupportedMechanism
from service.security.login_settings import LoginSettings
from service.security.sasl_server import (
    Evaluation,
    SaslRefused,
    SaslServer,
    SaslUnavailable,
    SlowEvaluation,
)
from service.security.session import Session
from service.wire.api import (
    ApiKey,
    RequestHeader,
    is_served,
    parse_request_header,
    read_request,
    response_frame,
    response_module,
    unsupported_api_versions_frame,
)
from service.wire.errors import MalformedMessage, WireError
from service.wire.refusals import refusal_frame

AnswerVersions = Callable[[int, Any], Any]
"""Returns the response to ApiVersions: (version, canonical request)."""
_MOST_ELEMENTS: Final = 1000
_SIZE: Final = struct.Struct(">i")
_API_VERSIONS: Final = int(ApiKey.API_VERSIONS)
_HANDSHAKE: Final = int(ApiKey.SASL_HANDSHAKE)
_AUTHENTICATE: Final = int(ApiKey.SASL_AUTHENTICATE)
_HANDSHAKE_BYTES: Final = _HANDSHAKE.to_bytes(2)
_MOST_TOLD: Final = 1000
"""Characters of a refusal: it may repeat names, and older versions carry 32,767 bytes."""
_SAME_MOMENT_S: Final = 0.1
"""Time after a pause in which the requests are handled that came during it."""


class ListenerLogins:
    """Logins of one listener: what they have in common. `handler` and `answer_versions` are set before it
    accepts connections."""

    def __init__(
        self,
        settings: LoginSettings,
        servers: Mapping[str, Callable[[], SaslServer]],
        protocol: str,
        metrics: AuthenticationMetrics,
        *,
        now: Callable[[], float],
        now_ms: Callable[[], int],
        warnings: RateLimitedLog,
    ) -> None:
        """`now`: seconds of the loop; `now_ms`: milliseconds since the epoch, in which credentials end."""
        self.settings = settings
        self.servers = servers
        self.protocol = protocol
        self.metrics = metrics
        self.now = now
        self.now_ms = now_ms
        self.warnings = warnings
        self.handler: Handler
        self.answer_versions: AnswerVersions

    def gate(self, client: PeerContext) -> Authenticator:
        """Return the gate of a new connection."""
        return Authenticator(self, client)


class Authenticator:
    """`request.Gate` of one connection."""

    __slots__ = ("_began_s", "_lifetime_ms", "_listener", "_login", "_read_s", "_unmuted_s", "context")

    def __init__(self, listener: ListenerLogins, context: PeerContext) -> None:
        self.context = context
        self._listener = listener
        self._login = ServerLogin(listener.servers)
        self._began_s: float | None = None
        """begin of the reauthentication"""
        self._lifetime_ms: int | None = None
        """of the session that begins, as its client was told; None if it does not end"""
        self._read_s: float | None = None
        """time at which what waited for the end of a pause had come"""
        self._unmuted_s = -1.0

    # -- the first login

    def handle(self, context: PeerContext, frame: memoryview) -> Answer | Later:
        """Handle a message of the login. Raises `WireError` where Kafka closes without an answer."""
        answer = self._step(context, frame)
        if isinstance(answer, Awaitable):
            return self._handled_later(context, answer)
        return self._handled(context, answer)

    async def _handled_later(self, context: PeerContext, answer: Later) -> Answer:
        return self._handled(context, await answer)

    def _handled(self, context: PeerContext, answer: Answer) -> Answer:
        """Begin the session if the login is complete."""
        if not self._login.is_complete or isinstance(answer, Closing):
            return answer
        session = self._begin_session(context)
        made = authenticated(context, session)
        self.context = made
        handler = self._listener.handler if session.expires_s is None else self.handle_expiring
        return LoggedIn(() if answer is None else answer.parts, made, handler)

    # -- requests of a session that ends

    def handle_expiring(self, context: RequestContext, frame: memoryview) -> Answer | Later:
        """Handle a request of a session that ends, or a message of its reauthentication."""
        login, listener = self._login, self._listener
        if login.is_complete:
            now = listener.now()
            if frame[:2] == _HANDSHAKE_BYTES:
                parse_request_header(frame)
                if login.reauthenticate(now):
                    self._began_s = now
                    return self._step(context, frame)
            if self._is_over(context.session, now):
                listener.metrics.expired += 1
                return Closing(())
            return listener.handler(context, frame)
        if self._is_late():
            listener.metrics.late += 1
            return Closing(())
        answer = self._step(context, frame)
        if isinstance(answer, Awaitable):
            return self._renewed_later(context, answer)
        return self._renewed(context, answer)

    async def _renewed_later(self, context: RequestContext, answer: Later) -> Answer:
        return self._renewed(context, await answer)

    def _renewed(self, context: RequestContext, answer: Answer) -> Answer:
        """Begin the next session if the reauthentication is complete."""
        if not self._login.is_complete or isinstance(answer, Closing):
            return answer
        context.session = self._begin_session(context)
        return LoggedIn(() if answer is None else answer.parts, context, self.handle_expiring)

    def _is_late(self) -> bool:
        """Return whether the reauthentication takes longer than a login may: what it was begun with may have
        been taken away since."""
        listener = self._listener
        assert self._began_s is not None
        return listener.now() - self._began_s > listener.settings.timeout_ms / 1000

    def unmuted(self, last_read: float) -> None:
        """Note that a pause is over. Requests that have waited count as come when they were read."""
        self._read_s, self._unmuted_s = last_read, self._listener.now()

    def _is_over(self, session: Session, now: float) -> bool:
        if session.expires_s is None or now <= session.expires_s:
            return False
        if self._read_s is not None and now - self._unmuted_s < _SAME_MOMENT_S:
            return self._read_s > session.expires_s
        return True

    # -- one message

    def _step(self, context: PeerContext, frame: memoryview) -> Answer | Later:
        login = self._login
        if login.takes_tokens:
            return self._take_token(context, frame)
        try:
            return self._take_request(context, frame)
        except (LoginEnded, WireError) as e:
            raise MalformedMessage(f"no login: {e}") from e

    def _take_request(self, context: PeerContext, frame: memoryview) -> Answer:
        login = self._login
        header = _read_header(context, frame)
        if header.api_key == _API_VERSIONS:
            return self._take_versions(header, frame)
        if header.api_key != _HANDSHAKE:
            raise login.ended(f"a request of {ApiKey(header.api_key).name} before it")
        request = read_request(header, frame, _MOST_ELEMENTS)
        login.request_came()
        module = response_module(_HANDSHAKE)
        try:
            login.handshake_came(request.mechanism, header.api_version)
        except UnsupportedMechanism as e:
            refused = module.SaslHandshakeResponse(
                error_code=ErrorCode.unsupported_sasl_mechanism, mechanisms=login.mechanisms
            )
            return self._refuse(context, e, response_frame(header, refused))
        response = module.SaslHandshakeResponse(error_code=ErrorCode.none, mechanisms=login.mechanisms)
        # At first the connection has this limit from its beginning.
        return TokensFollow([response_frame(header, response)], self._listener.settings.max_receive_bytes)

    def _take_versions(self, header: RequestHeader, frame: memoryview) -> Answer:
        login = self._login
        if not is_served(header):
            login.request_came()
            login.versions_came(is_valid=False)
            return Response([unsupported_api_versions_frame(header)])
        request = read_request(header, frame, _MOST_ELEMENTS)
        login.request_came()
        response = self._listener.answer_versions(header.api_version, request)
        login.versions_came(is_valid=response.error_code == ErrorCode.none)
        return Response([response_frame(header, response)])

    def _take_token(self, context: PeerContext, frame: memoryview) -> Answer | Later:
        login = self._login
        header: RequestHeader | None = None
        try:
            if not login.has_headers:
                context.api_key = _AUTHENTICATE
                token: Any = frame
            else:
                header = _read_header(context, frame)
                if header.api_key != _AUTHENTICATE and login.state is LoginState.AUTHENTICATE:
                    error = login.ended(f"a request of {ApiKey(header.api_key).name} in place of a token")
                    return self._refuse(
                        context, error, refusal_frame(header, frame, ErrorCode.illegal_sasl_state)
                    )
                token = read_request(header, frame, _MOST_ELEMENTS).auth_bytes
            found = login.token_came(bytes(token))
        except LoginEnded as e:
            return self._refuse(context, e, None)
        except SaslRefused as e:
            return self._refuse_token(context, header, e)
        if isinstance(found, SlowEvaluation):
            return self._compute(context, header, found)
        return self._answer_token(header, found)

    async def _compute(
        self, context: PeerContext, header: RequestHeader | None, slow: SlowEvaluation
    ) -> Answer:
        """Answer a token after computing on a thread."""
        result = await asyncio.get_running_loop().run_in_executor(None, slow.compute)
        try:
            found = self._login.computed(slow, result)
        except SaslRefused as e:
            return self._refuse_token(context, header, e)
        return self._answer_token(header, found)

    def _answer_token(self, header: RequestHeader | None, found: Evaluation) -> Response:
        self._lifetime_ms = self._lifetime_of(found) if found.name is not None else None
        if header is None:
            return Response([_SIZE.pack(len(found.token)) + found.token])
        return Response([response_frame(header, self._success(found))])

    def _refuse_token(self, context: PeerContext, header: RequestHeader | None, error: SaslRefused) -> Answer:
        if header is None or isinstance(error, SaslUnavailable):
            return self._refuse(context, error, None)
        return self._refuse(context, error, self._refusal(header, error))

    def _success(self, found: Evaluation) -> Any:
        return response_module(_AUTHENTICATE).SaslAuthenticateResponse(
            error_code=ErrorCode.none,
            error_message="",  # as Kafka's
            auth_bytes=found.token,
            session_lifetime=self._lifetime_ms or 0,
        )

    def _lifetime_of(self, found: Evaluation) -> int | None:
        """Return the milliseconds until the session ends, None if it does not."""
        most_ms = self._listener.settings.max_reauth_ms.get(self._login.mechanism, 0)
        left = [] if most_ms <= 0 else [most_ms]
        if found.expires_ms is not None:
            left.append(max(found.expires_ms - self._listener.now_ms(), 0))
        return min(left, default=None)

    def _refusal(self, header: RequestHeader, error: SaslRefused) -> bytearray:
        doing = "authentication" if self._began_s is None else "re-authentication"
        usual = (
            f"Authentication failed during {doing} due to invalid credentials with SASL mechanism "
            f"{self._login.mechanism}"
        )
        response = response_module(_AUTHENTICATE).SaslAuthenticateResponse(
            error_code=ErrorCode.sasl_authentication_failed,
            error_message=(error.told or usual)[:_MOST_TOLD],
            auth_bytes=b"",
        )
        return response_frame(header, response)

    def _refuse(self, context: PeerContext, error: Exception, answer: bytearray | None) -> Closing:
        """Count and log a failed login; return what ends the connection, after a while."""
        listener = self._listener
        if self._began_s is None:
            listener.metrics.failed += 1
        else:
            listener.metrics.failed_again += 1
        listener.warnings.warning("login of %s failed: %s", context, printable(error))
        delay_s = listener.settings.failed_delay_ms / 1000
        return Closing(() if answer is None else (answer,), delay_s)

    # -- the session

    def _begin_session(self, context: PeerContext) -> Session:
        listener, principal = self._listener, self._login.principal
        assert principal is not None
        metrics, now = listener.metrics, listener.now()
        if self._began_s is None:
            metrics.succeeded += 1
        else:
            metrics.succeeded_again += 1
            metrics.reauthentication.observe(now - self._began_s)
        lifetime_ms = self._lifetime_ms
        expires_s = None if lifetime_ms is None else now + lifetime_ms / 1000
        return Session(principal, context.client_host, context.listener, listener.protocol, expires_s)


def _read_header(context: PeerContext, frame: memoryview) -> RequestHeader:
    header = parse_request_header(frame)
    context.api_key, context.api_version = header.api_key, header.api_version
    context.correlation_id, context.client_id = header.correlation_id, header.client_id
    return header
