"""Settings of KIP-848 groups: the broker's, and those of one group as a GROUP config resource. [P]

A group's value outside the broker's bounds is rejected; where the bounds change later, the nearest bound is
used. Names, defaults and messages are Kafka's (``GroupCoordinatorConfig``, ``GroupConfig``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from service.base.errors import ConfigError
from service.groups.config import UNBOUNDED

SESSION_TIMEOUT: Final = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL: Final = "consumer.heartbeat.interval.ms"
ASSIGNMENT_INTERVAL: Final = "consumer.assignment.interval.ms"

GroupSettings: TypeAlias = Callable[[str], Mapping[str, str]]
"""Settings of one group, by its id; empty if it has none."""


class MigrationPolicy(Enum):
    """``group.consumer.migration.policy``."""

    BIDIRECTIONAL = "bidirectional"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    DISABLED = "disabled"

    @property
    def upgrades(self) -> bool:
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.UPGRADE)

    @property
    def downgrades(self) -> bool:
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.DOWNGRADE)


class ConsumerConfig(NamedTuple):
    """Broker settings ``group.consumer.*``; times in ms. The first of `assignors` is the default."""

    session_timeout_ms: int = 45_000
    min_session_timeout_ms: int = 45_000
    max_session_timeout_ms: int = 60_000
    heartbeat_interval_ms: int = 5_000
    min_heartbeat_interval_ms: int = 5_000
    max_heartbeat_interval_ms: int = 15_000
    assignment_interval_ms: int = 1_000
    min_assignment_interval_ms: int = 0
    max_assignment_interval_ms: int = 15_000
    max_size: int = UNBOUNDED
    assignors: tuple[str, ...] = ("uniform", "range")
    regex_refresh_interval_ms: int = 600_000
    migration_policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL
    classic_max_size: int = UNBOUNDED
    """``group.max.size``, the limit for a group that becomes classic"""

    def bounds(self, key: str) -> tuple[int, int, int]:
        """Return default, minimum and maximum of a group's key."""
        return {
            SESSION_TIMEOUT: (
                self.session_timeout_ms,
                self.min_session_timeout_ms,
                self.max_session_timeout_ms,
            ),
            HEARTBEAT_INTERVAL: (
                self.heartbeat_interval_ms,
                self.min_heartbeat_interval_ms,
                self.max_heartbeat_interval_ms,
            ),
            ASSIGNMENT_INTERVAL: (
                self.assignment_interval_ms,
                self.min_assignment_interval_ms,
                self.max_assignment_interval_ms,
            ),
        }[key]

    def effective(self, key: str, settings: Mapping[str, str]) -> int:
        """Return the value in use for a group with these settings."""
        value = settings.get(key) if settings else None
        if value is None:  # the case of most groups, at each heartbeat
            return int(getattr(self, _FIELDS[key]))
        _, least, most = self.bounds(key)
        return min(max(int(value), least), most)

    def check(self) -> None:
        """Raise ConfigError if the broker's own values contradict each other."""
        for key in GROUP_KEYS:
            default, least, most = self.bounds(key)
            name = f"group.{key}"
            bound = name.replace("group.consumer.", "group.consumer.{}.")
            if most < least:
                raise ConfigError(
                    f"{bound.format('max')} must be greater than or equal to {bound.format('min')}"
                )
            if default < least:
                raise ConfigError(f"{name} must be greater than or equal to {bound.format('min')}")
            if default > most:
                raise ConfigError(f"{name} must be less than or equal to {bound.format('max')}")
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            raise ConfigError(f"group.{HEARTBEAT_INTERVAL} must be less than group.{SESSION_TIMEOUT}")


_FIELDS: Final = {
    key: key.removeprefix("consumer.").replace(".", "_")
    for key in (SESSION_TIMEOUT, HEARTBEAT_INTERVAL, ASSIGNMENT_INTERVAL)
}

GROUP_KEYS: Final = (SESSION_TIMEOUT, HEARTBEAT_INTERVAL, ASSIGNMENT_INTERVAL)
"""Keys of a GROUP resource; all are 32-bit integers."""


def check_group_settings(settings: Mapping[str, str], config: ConsumerConfig) -> None:
    """Raise ConfigError, which becomes INVALID_CONFIG, for settings that a group may not have under
    `config`."""
    values = {}
    for key, text in settings.items():
        if key not in GROUP_KEYS:
            raise ConfigError(f"Unknown group config name: {key}")
        try:
            values[key] = int(text)
        except ValueError:
            raise ConfigError(
                f"Invalid value {text} for configuration {key}: Not a number of type INT"
            ) from None
    for key in GROUP_KEYS:
        if key not in values:
            continue
        _, least, most = config.bounds(key)
        bound = f"group.{key}".replace("group.consumer.", "group.consumer.{}.")
        if values[key] < least:
            raise ConfigError(f"{key} must be greater than or equal to {bound.format('min')}")
        if values[key] > most:
            raise ConfigError(f"{key} must be less than or equal to {bound.format('max')}")
    session_ms = values.get(SESSION_TIMEOUT, config.session_timeout_ms)
    if session_ms <= values.get(HEARTBEAT_INTERVAL, config.heartbeat_interval_ms):
        raise ConfigError(f"{SESSION_TIMEOUT} must be greater than {HEARTBEAT_INTERVAL}")
