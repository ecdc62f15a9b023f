"""Configuration keys: type, bounds, default and documentation, as in Apache Kafka's `ConfigDef`. [P]

A key that Firn accepts has an effect; `tables` has the keys. Error texts are Kafka's (`Invalid value x for
configuration y: Value must be at least 1`), which users of Kafka know.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from service.base.errors import ConfigError
from service.config.passwords import Password

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1

_LOGIN_OF_URL: Final = re.compile(r"://[^/\s]*@")

Value = bool | int | float | str | tuple[str, ...] | Password | None


class ConfigType(IntEnum):
    """Types by their number in DescribeConfigs responses (Kafka `DescribeConfigsResponse.ConfigType`)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class ConfigSource(IntEnum):
    """Source of a value (Kafka `DescribeConfigsResponse.ConfigSource`)."""

    TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    GROUP_CONFIG = 8


@dataclass(frozen=True, slots=True)
class Synonym:
    """A broker key that gives a topic key's default, in units `factor` times as large."""

    name: str
    factor: int = 1


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One key. `default` is the parsed value, None for no default.

    `any_case`: values of `one_of` may be in capitals or not.
    `synonyms` (topic keys only): the broker keys that give the default, strongest first.
    `dynamic` (broker keys only): can be altered while the node runs.
    `static` (broker keys only): can be set in the node's properties. Other keys can be set in the metadata
    log alone, and are shown only if set.
    `internal`: accepted, but shown and documented only if set.
    `per_listener` (broker keys only): can be set for one listener, too (`config.overrides`); with
    `per_mechanism` for one of its SASL mechanisms.
    `listener_dynamic` (broker keys only): can be altered while the node runs, for one listener of one broker.
    """

    name: str
    type: ConfigType
    default: Value
    doc: str
    at_least: float | None = None
    at_most: float | None = None
    one_of: tuple[str, ...] = ()
    any_case: bool = False
    check: Callable[[str], str | None] | None = None
    synonyms: tuple[Synonym, ...] = ()
    dynamic: bool = False
    static: bool = True
    internal: bool = False
    per_listener: bool = False
    per_mechanism: bool = False
    listener_dynamic: bool = False

    @property
    def is_secret(self) -> bool:
        """True if no description may have the value."""
        return self.type is ConfigType.PASSWORD

    def valid_values(self) -> str:
        """Return the bounds in Kafka's notation, "" if every value of the type is valid."""
        if self.one_of:
            return "[" + ", ".join(self.one_of) + "]"
        if self.at_least is None and self.at_most is None:
            return ""
        low = "" if self.at_least is None else f"{self.at_least},"
        high = "" if self.at_most is None else f",{self.at_most}"
        return f"[{low}...{high}]"


def invalid(name: str, value: object, reason: str) -> ConfigError:
    """Return an error with the text of Kafka's `ConfigException`; it has no password of a URL."""
    shown = _LOGIN_OF_URL.sub("://[hidden]@", str(value))
    return ConfigError(f"Invalid value {shown} for configuration {name}: {reason}")


def to_text(value: Value) -> str | None:
    """Return a value as in properties files and DescribeConfigs; None for a password."""
    if value is None or isinstance(value, Password):
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return str(value).upper().replace("E+", "E")  # as Java writes it
    return ",".join(value) if isinstance(value, tuple) else str(value)
