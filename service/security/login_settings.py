"""Settings of SASL on one listener, and the servers of its mechanisms. [P]"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from service.config.oauthbearer import OAUTHBEARER
from service.security.plain import PLAIN, PlainServer, PlainUsers
from service.security.sasl_server import SaslServer
from service.security.scram import SCRAM_MECHANISMS, ScramServer, UnknownUsers, no_tokens
from service.security.scram_credential import ScramCredential
from service.security.scram_tokens import TokenCredentials

if TYPE_CHECKING:
    from service.security.oauthbearer import ValidateToken

MECHANISMS: Final = (PLAIN, *SCRAM_MECHANISMS, OAUTHBEARER)
"""Mechanisms that a listener may enable."""
FindCredential = Callable[[str, str], ScramCredential | None]
"""Returns the credential of a user for a mechanism: (user, mechanism)."""


@dataclass(frozen=True, slots=True)
class LoginSettings:
    """Settings of one listener; names in brackets are Kafka's keys, under the listener's prefix."""

    mechanisms: tuple[str, ...]
    """enabled ones (sasl.enabled.mechanisms)"""
    plain_users: PlainUsers = field(default_factory=lambda: PlainUsers({}))
    """of PLAIN's login module (plain.sasl.jaas.config)"""
    max_reauth_ms: Mapping[str, int] = field(default_factory=dict)
    """longest life of a session by mechanism, 0 for no end (connections.max.reauth.ms)"""
    max_receive_bytes: int = 524288
    """largest message of a login (sasl.server.max.receive.size)"""
    failed_delay_ms: int = 100
    """time until a failed login is answered (connection.failed.authentication.delay.ms)"""
    timeout_ms: int = 10_000
    """time for a login (firn.authentication.timeout.ms)"""
    validate_token: ValidateToken | None = None
    """of OAUTHBEARER's login module and keys"""


def make_servers(
    settings: LoginSettings,
    find_credential: FindCredential,
    unknown: UnknownUsers,
    new_nonce: Callable[[], str],
    tokens: TokenCredentials | None = None,
) -> dict[str, Callable[[], SaslServer]]:
    """Return what begins a login, by enabled mechanism. `new_nonce` returns fresh randomness that cannot be
    guessed, in printable ASCII without commas. `tokens`: None where there are no delegation tokens."""
    made: dict[str, Callable[[], SaslServer]] = {}
    for mechanism in settings.mechanisms:
        if mechanism == PLAIN:
            made[mechanism] = partial(PlainServer, settings.plain_users)
        elif mechanism == OAUTHBEARER:
            from service.security.oauthbearer import OAuthBearerServer  # only a listener with it loads it

            assert settings.validate_token is not None
            made[mechanism] = partial(OAuthBearerServer, settings.validate_token)
        else:
            made[mechanism] = _scram(mechanism, find_credential, unknown, new_nonce, tokens)
    return made


def _scram(
    mechanism: str,
    find_credential: FindCredential,
    unknown: UnknownUsers,
    new_nonce: Callable[[], str],
    tokens: TokenCredentials | None,
) -> Callable[[], SaslServer]:
    find_token = no_tokens if tokens is None else partial(tokens.find, mechanism)

    def find(name: str) -> ScramCredential | None:
        return find_credential(name, mechanism)

    return lambda: ScramServer(mechanism, find, unknown, new_nonce(), find_token)
