"""Settings of quotas and of limits on connections: the keys of `tables.quotas`, as one object. [P]"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from service.base.addresses import normalized
from service.config.keys import Value
from service.config.tables.quotas import QUOTAS

_OF_LISTENER: Final = "listener.name."
_CREATION_RATE: Final = "max.connection.creation.rate"
_CONNECTIONS: Final = "max.connections"


@dataclass(frozen=True, slots=True)
class QuotaConfig:
    """Settings of quotas. A field is its key with `_` for `.`."""

    quota_window_num: int
    quota_window_size_seconds: int
    controller_quota_window_num: int
    controller_quota_window_size_seconds: int
    max_connections_per_ip: int
    max_connections_per_ip_overrides: Mapping[str, int]
    """by address, as `normalized` writes it"""
    max_connection_creation_rate: int
    max_connections: int
    listener_creation_rates: Mapping[str, int]
    listener_connections: Mapping[str, int]
    """by name in lower case, of listeners that have limits of their own"""

    def connections_of(self, listener: str) -> int:
        """Return how many connections a listener may have open."""
        return self.listener_connections.get(listener.lower(), self.max_connections)

    def creation_rate_of(self, listener: str) -> int:
        """Return how many connections a listener accepts per second."""
        return self.listener_creation_rates.get(listener.lower(), self.max_connection_creation_rate)

    def most_connections_of(self, address: str) -> int:
        """Return how many connections a normalized address may have."""
        return self.max_connections_per_ip_overrides.get(address, self.max_connections_per_ip)


def read_quotas(values: Mapping[str, Value]) -> QuotaConfig:
    """Build the settings from the parsed `values` of all keys."""
    fields: dict[str, Any] = {one.name.replace(".", "_"): values[one.name] for one in QUOTAS}
    overrides: dict[str, int] = {}
    for entry in fields["max_connections_per_ip_overrides"].split(","):
        address, _, count = entry.strip().rpartition(":")
        if address:
            overrides[normalized(address.strip("[]"))] = int(count)
    fields["max_connections_per_ip_overrides"] = overrides
    fields["listener_creation_rates"] = _of_listeners(values, _CREATION_RATE)
    fields["listener_connections"] = _of_listeners(values, _CONNECTIONS)
    fields["max_connections"] = values[_CONNECTIONS]
    return QuotaConfig(**fields)


def _of_listeners(values: Mapping[str, Value], key: str) -> dict[str, Value]:
    """Return the values of one key that listeners have for themselves, by the listener's name."""
    end = f".{key}"
    return {
        name.removeprefix(_OF_LISTENER).removesuffix(end): value
        for name, value in values.items()
        if name.startswith(_OF_LISTENER) and name.endswith(end)
    }
