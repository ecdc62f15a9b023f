"""Settings of a console. [P]"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from service.base.addresses import is_loopback
from service.base.errors import ConfigError
from service.console.web.broker_addresses import BrokerAddresses
from service.console.web.costs import Prices
from service.console.web.guard import LEAST_TOKEN
from service.console.web.schemas.settings import DecodeSettings

if TYPE_CHECKING:
    from service.client.node_http import NodeHttp
    from service.client.security import Security


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """Settings. `listeners`: (node id or None, URL) of nodes' HTTP listeners that the cluster does not name.

    `survey_s`: seconds between two surveys of the bucket, 0 for none.
    """

    bootstrap: str
    host: str = "127.0.0.1"
    port: int = 8080
    token: str | None = None
    token_file: str | None = None
    """file that `token` was read from: it is read again when it changes"""
    url: str | None = None
    endpoint: str | None = None
    region: str | None = None
    listeners: tuple[tuple[int | None, str], ...] = ()
    prices: Prices = field(default_factory=Prices)
    fsck_path: str | None = None
    survey_s: int = 900
    survey_most: int = 1_000_000
    security: Security | None = None
    """of the connections to brokers; None: PLAINTEXT"""
    node_http: NodeHttp | None = None
    """for requests to nodes' HTTP listeners; None: without token"""
    certificate: str | None = None
    """PEM file of this console's own HTTPS; None: HTTP"""
    decode: DecodeSettings = field(default_factory=DecodeSettings)
    """how keys and values are decoded"""
    key: str | None = None
    """file of its private key, unless that stands in `certificate`"""
    allow_changes: bool = False
    """whether it changes topics, settings, groups and records for whoever has signed in"""

    def check(self) -> None:
        """Raise `ConfigError` for settings that cannot work, or would give access to everybody."""
        BrokerAddresses(self.bootstrap)
        if self.token is None and not is_loopback(self.host):
            raise ConfigError(f"--host {self.host}: others can reach it, so --token-file is needed")
        if self.allow_changes and self.token is None:
            raise ConfigError(
                "--allow-changes: whoever changes something signs in, so --token-file is needed"
            )
        if self.token is not None and len(self.token) < LEAST_TOKEN:
            raise ConfigError(f"the token has {len(self.token)} characters, it needs {LEAST_TOKEN} at least")
        if self.key is not None and self.certificate is None:
            raise ConfigError("--tls-key has no effect without --tls-cert")
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"--port {self.port}: not a port")
