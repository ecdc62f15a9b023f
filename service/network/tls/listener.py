"""TLS of one listener: its context of the moment, who its clients are, and which connections it refuses."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from service.base.printable import printable
from service.base.rate_limited_log import RateLimitedLog
from service.base.turn_queues import CallQueue, turn_queues
from service.network.metrics import AuthenticationMetrics
from service.network.tls.contexts import TlsContext
from service.network.tls.engine import OpenSslSeal, Seal, SealBroken
from service.network.tls.handshakes import Handshakes
from service.network.tls.identity import NOBODY, TlsIdentity
from service.network.tls.shell import OPEN, SCRATCH_BYTES, TlsTransport
from service.security.certificates import read_certificate
from service.security.der import DerError
from service.security.mapping_rules import MappingRules, NoMatchingRule
from service.security.principal import USER, Principal

_LOG = logging.getLogger("service.network.peer")
MOST_SUBJECT_BYTES: Final = 8 << 10
"""Most bytes of a subject that becomes a principal's name."""


class TlsListener:
    """Server's side of the TLS of one listener. Owned by the event loop; `identify` is for any thread."""

    is_server = True

    def __init__(
        self,
        name: str,
        context: TlsContext,
        handshakes: Handshakes,
        *,
        metrics: AuthenticationMetrics,
        is_login: bool,
        timeout_s: float,
        now_s: Callable[[], float] | None = None,
        ends_sessions: bool = False,
    ) -> None:
        """Read the mapping rules. Raises `ConfigError`.

        `is_login`: whether the handshake is all that a client does to log in. `timeout_s`: for it.
        `now_s`: seconds since 1970. `ends_sessions`: whether a session ends with its certificate.
        """
        self.name = name
        self.context = context
        """for connections from now on: it may be replaced at any time"""
        self.handshakes = handshakes
        self.timeout_s: float | None = timeout_s
        self._now_s = now_s
        self._ends_sessions = ends_sessions
        self._metrics = metrics
        self._is_login = is_login
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.calls: CallQueue
        self._rules = MappingRules(context.settings.principal_mapping_rules)
        self._warnings: RateLimitedLog
        self._loop: asyncio.AbstractEventLoop

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Take the queues of the loop, on which connections come from now on."""
        self._loop = loop
        self.calls = turn_queues(loop).calls
        self._warnings = RateLimitedLog(_LOG, now=loop.time)

    def secured(self) -> None:
        self._metrics.succeeded += self._is_login

    def new_seal(self) -> Seal:
        return OpenSslSeal(self.context.openssl, server_side=True)

    def identify(self, seal: Seal) -> TlsIdentity:
        """Return the principal of the client's certificate (Kafka `DefaultKafkaPrincipalBuilder`)."""
        data = seal.peer_certificate()
        if data is None:
            return NOBODY
        try:
            certificate = read_certificate(data)
            if len(certificate.subject) > MOST_SUBJECT_BYTES:
                raise SealBroken(f"its certificate has a subject of {len(certificate.subject)} bytes")
            name = certificate.name
            principal = Principal(USER, self._rules.apply(name))
        except DerError as e:
            raise SealBroken(f"its certificate cannot be read: {printable(e)}") from e
        except NoMatchingRule as e:
            raise SealBroken(f"{e}: {printable(name)}") from e
        if self._now_s is None:
            return TlsIdentity(principal)
        left_s = certificate.not_after_s - self._now_s()
        if left_s < 0:  # OpenSSL does not look again where a session of TLS 1.2 is resumed
            raise SealBroken("its certificate has expired")
        return TlsIdentity(principal, self._loop.time() + left_s if self._ends_sessions else None)

    def refused(self, transport: TlsTransport, reason: str) -> None:
        self._metrics.failed += transport.state < OPEN
        peer = transport.get_extra_info("peername") or ("?", 0)
        self._warnings.warning("closed %s:%s on %s: %s", peer[0], peer[1], self.name, printable(reason))
