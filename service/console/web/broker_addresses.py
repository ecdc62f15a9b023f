"""Addresses of a cluster's brokers, in the order in which a connection is tried. [P]"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from service.base.errors import ConfigError

MOST_LEARNED: Final = 100


class BrokerAddresses:
    """Addresses that were configured (`bootstrap`, a comma list), and those that the cluster has named since.

    The address that answered last comes first, one that failed comes last. Raises `ConfigError` for a list
    that is none.
    """

    def __init__(self, bootstrap: str) -> None:
        configured = [word.strip() for word in bootstrap.split(",")]
        for word in configured:
            host, _, port = word.rpartition(":")
            if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65536:
                raise ConfigError(f"--bootstrap: {word!r} is not HOST:PORT")
        self._configured = tuple(dict.fromkeys(configured))
        self._order = list(self._configured)

    @property
    def order(self) -> tuple[str, ...]:
        return tuple(self._order)

    def is_configured(self, address: str) -> bool:
        return address in self._configured

    def learn(self, named: Iterable[tuple[str, int]]) -> None:
        """Take the brokers that the cluster names now; forget others that it named before."""
        found = [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in named]
        found = list(dict.fromkeys(found))[:MOST_LEARNED]
        known = {*self._configured, *found}
        self._order = [one for one in self._order if one in known]
        self._order += [one for one in found if one not in self._order]

    def answered(self, address: str) -> None:
        """Put the address first; those that were tried before it have failed."""
        if address in self._order:
            at = self._order.index(address)
            self._order = [*self._order[at:], *self._order[:at]]

    def failed(self, address: str) -> None:
        """Put the address last."""
        if address in self._order:
            self._order.remove(address)
            self._order.append(address)

    def forget(self, address: str) -> None:
        """Drop an address that belongs to another cluster, unless it is configured."""
        if not self.is_configured(address) and address in self._order:
            self._order.remove(address)
