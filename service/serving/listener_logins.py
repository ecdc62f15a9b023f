"""Logins of a node's listeners, from its settings and the credentials in its metadata."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from service.base.errors import ConfigError
from service.base.rate_limited_log import RateLimitedLog
from service.base.world import World
from service.config.listeners import Listener
from service.config.oauthbearer import OAUTHBEARER, OAuthBearerSettings
from service.config.security import NodeSecurity, SaslSettings
from service.metadata.credentials import NUMBERS
from service.metadata.image import MetadataImage
from service.network.authenticating import AnswerVersions, ListenerLogins
from service.network.metrics import NetworkMetrics
from service.security.jaas import OAUTHBEARER_MODULE, PLAIN_MODULE, SCRAM_MODULE, LoginModule, read_jaas
from service.security.login_settings import LoginSettings, make_servers
from service.security.plain import PLAIN, PlainUsers
from service.security.scram import UnknownUsers, base36
from service.security.scram_credential import ScramCredential
from service.security.scram_tokens import TokenCredentials
from service.security.tokens import TokenLookup, TokenSecret

if TYPE_CHECKING:
    from service.network.jwks.key_sets import KeySets
    from service.security.oauthbearer import ValidateToken

_LOG = logging.getLogger("service.network")
_NONCE_BITS = 130
_MODULES: Final = {PLAIN: PLAIN_MODULE, OAUTHBEARER: OAUTHBEARER_MODULE}
"""Login modules of the mechanisms that are not SCRAM."""


class NodeLogins:
    """Makes the logins of each listener of a node that has some."""

    def __init__(
        self,
        security: NodeSecurity,
        world: World,
        image: Callable[[], MetadataImage],
        cluster_id: str,
        metrics: NetworkMetrics,
        token_secret: TokenSecret | None = None,
        key_sets: KeySets | None = None,
    ) -> None:
        """`token_secret`: None where there are no delegation tokens. `key_sets`: of issuers of tokens, None
        if no listener takes signed ones."""
        self._security = security
        self._world = world
        self._image = image
        self._unknown = UnknownUsers(cluster_id.encode())
        self._metrics = metrics
        self._key_sets = key_sets
        self._tokens: TokenCredentials | None = None
        if token_secret is not None:
            lookup = TokenLookup(token_secret, lambda one: image().tokens.get(one), world.clock.now_ms)
            self._tokens = TokenCredentials(lookup, self._unknown)

    def of(self, listener: Listener, answer_versions: AnswerVersions | None = None) -> ListenerLogins | None:
        """Return the logins of the listener, None where clients do not log in. Raises `ConfigError`.

        Without `answer_versions` the server's handler brings it (`Server.set_handler`).
        """
        if not listener.protocol.uses_sasl:
            return None
        found = self._security.listener(listener.name).sasl
        assert found is not None
        settings = self._settings(found)
        now = asyncio.get_running_loop().time
        logins = ListenerLogins(
            settings,
            make_servers(settings, self._credential, self._unknown, self._new_nonce, self._tokens),
            listener.protocol.name,
            self._metrics.logins_of(listener.name),
            now=now,
            now_ms=self._world.clock.now_ms,
            warnings=RateLimitedLog(_LOG, now=now),
        )
        if answer_versions is not None:
            logins.answer_versions = answer_versions
        return logins

    def _settings(self, sasl: SaslSettings) -> LoginSettings:
        """Return the settings of a listener's logins. Raises `ConfigError` for a wrong login module."""
        users, validate_token = PlainUsers({}), None
        for one in sasl.mechanisms:
            module = _module(one.name, one.jaas.reveal())
            if one.name == PLAIN:
                users = PlainUsers(module.options)
            if one.oauthbearer is not None:
                validate_token = self._validation(one.oauthbearer, module)
        return LoginSettings(
            tuple(one.name for one in sasl.mechanisms),
            users,
            {one.name: one.max_reauth_ms for one in sasl.mechanisms},
            sasl.max_receive_size,
            self._security.failed_authentication_delay_ms,
            self._security.authentication_timeout_ms,
            validate_token,
        )

    def _validation(self, settings: OAuthBearerSettings, module: LoginModule) -> ValidateToken:
        from service.serving.token_validation import token_validation  # only nodes that take tokens load it

        try:
            return token_validation(settings, module.options, self._key_sets, self._world.clock.now_ms)
        except ConfigError as e:
            raise ConfigError(f"sasl.jaas.config of {OAUTHBEARER}: {e}") from e

    def _credential(self, user: str, mechanism: str) -> ScramCredential | None:
        return self._image().scram.get(user, {}).get(NUMBERS[mechanism])

    def _new_nonce(self) -> str:
        return new_nonce(self._world)


def new_nonce(world: World) -> str:
    """Return a nonce as Kafka's are: 130 random bits in 36 digits."""
    return base36(world.random.getrandbits(_NONCE_BITS))


def _module(mechanism: str, jaas: str) -> LoginModule:
    try:
        module = read_jaas(jaas)
    except ConfigError as e:
        raise ConfigError(f"sasl.jaas.config of {mechanism}: {e}") from e
    wanted = _MODULES.get(mechanism, SCRAM_MODULE)
    if module.name != wanted:
        raise ConfigError(f"sasl.jaas.config of {mechanism}: the login module has to be {wanted}")
    return module
