"""Settings of delegation tokens: the keys of `tables.tokens`, as one object. [P]"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from service.config.keys import Value
from service.config.passwords import Password

_PREFIX: Final = "delegation.token."


@dataclass(frozen=True, slots=True)
class TokenConfig:
    """Settings of delegation tokens. A field is its key without `delegation.token.`, `_` for `.`."""

    secret_key: Password | None
    """None: there are no tokens"""
    max_lifetime_ms: int
    expiry_time_ms: int
    expiry_check_interval_ms: int


def read_tokens(values: Mapping[str, Value]) -> TokenConfig:
    """Build the settings from the parsed `values` of all keys."""
    every: dict[str, Any] = dict(values)
    return TokenConfig(
        every[f"{_PREFIX}secret.key"] or None,
        every[f"{_PREFIX}max.lifetime.ms"],
        every[f"{_PREFIX}expiry.time.ms"],
        every[f"{_PREFIX}expiry.check.interval.ms"],
    )
