"""Explanation of given properties: each key, its outcome on this node, its default and its effect. [P]"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from service.base.errors import ConfigError
from service.config.keys import ConfigKey, to_text
from service.config.overrides import PREFIX, split
from service.config.parsing import effective
from service.config.tables import BROKER_KEYS, refusal


class KeyOutcome(StrEnum):
    """KeyOutcome of one given key."""

    TAKEN = "taken"
    IGNORED = "ignored"
    REFUSED = "refused"


class ExplainedKey(NamedTuple):
    """One given key. `value` is None for a secret, and where it may be one; `default` is None without one."""

    key: str
    value: str | None
    outcome: KeyOutcome
    default: str | None
    effect: str


def explain(properties: Mapping[str, str]) -> list[ExplainedKey]:
    """Return what becomes of each of these properties, in their order."""
    counting = effective(properties)
    return [_explained(name, text, is_counted=name in counting) for name, text in properties.items()]


def _explained(name: str, text: str, *, is_counted: bool) -> ExplainedKey:
    key = _key(name)
    if key is not None:
        shown = None if key.is_secret else text
        return ExplainedKey(name, shown, KeyOutcome.TAKEN, to_text(key.default), key.doc)
    why = refusal(name) or "unknown"
    return ExplainedKey(name, None, KeyOutcome.REFUSED if is_counted else KeyOutcome.IGNORED, None, why)


def _key(name: str) -> ConfigKey | None:
    if not name.startswith(PREFIX):
        return BROKER_KEYS.get(name)
    try:
        return split(name).key
    except ConfigError:
        return None
