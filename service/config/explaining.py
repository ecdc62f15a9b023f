"""Explanation of given settings: each key, its outcome on this node, its default and its effect."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Final, NamedTuple

from service.base.errors import ConfigError
from service.config.foreign import FOREIGN
from service.config.given import GivenConfig
from service.config.keys import ConfigKey, to_text
from service.config.overrides import PREFIX, split
from service.config.parsing import foreign_tail, without_effect
from service.config.problems import ConfigProblem
from service.config.processes import processes_of
from service.config.settings import BrokerConfig
from service.config.tables import BROKER_KEYS

_SECRETIVE: Final = re.compile(r"credential|jaas|license|password|secret|token|\bkey$")
"""Names of keys without effect whose values may be secrets"""


class KeyOutcome(StrEnum):
    """Outcome of one given key."""

    TAKEN = "taken"
    IGNORED = "ignored"
    REFUSED = "refused"


class ExplainedKey(NamedTuple):
    """One given key. `value` is None where it is a secret or may be one, and names variables as its file
    does; `default` is None without one.

    `effect`: what the key does; of one without effect why it has none; of a refused one what is wrong.
    """

    key: str
    value: str | None
    place: str
    outcome: KeyOutcome
    default: str | None
    effect: str


class ExplainedProcess(NamedTuple):
    """One of several processes of a machine: its node, and the settings in which it differs from the given
    ones; None: it does not have the key."""

    number: int
    node_id: int
    roles: tuple[str, ...]
    settings: dict[str, str | None]


class ConfigExplanation(NamedTuple):
    """All given keys in the order of their places, and what is wrong with them, alone or together.

    `processes`: what each has, where the settings are those of several.
    """

    keys: list[ExplainedKey]
    problems: list[ConfigProblem]
    warnings: list[str]
    processes: list[ExplainedProcess]


def explain(given: GivenConfig, cores: int = 1) -> ConfigExplanation:
    """Return what becomes of each of these settings. `cores`: the machine's."""
    parsed, problems = given.tried(BrokerConfig.from_properties)
    warnings = [*given.unknown, *given.remarks]
    if parsed is not None:
        warnings += map(given.hidden, parsed.cluster.complaints())
    processes = [] if problems else list(_processes(given, cores, problems))
    left_out = without_effect(given.properties)
    keys = []
    for name in sorted(given.properties, key=given.places.order):
        key, default, effect = _own_key(name), None, ""
        outcome = KeyOutcome.TAKEN
        if key is not None:
            default, effect = to_text(key.default), key.doc
        if name in left_out:
            outcome, effect = KeyOutcome.IGNORED, f"no effect here: {left_out[name].why}"
        elif wrong := [one.words for one in problems if one.key == name]:
            outcome, effect = KeyOutcome.REFUSED, "; ".join(wrong)
        shown = given.written(name) if _is_open(name, key) else None
        keys.append(ExplainedKey(name, shown, given.places.of(name), outcome, default, effect))
    return ConfigExplanation(keys, problems, warnings, processes)


def _processes(given: GivenConfig, cores: int, problems: list[ConfigProblem]) -> Iterator[ExplainedProcess]:
    """Yield what each of several processes has; add what is wrong with one of them to `problems`."""
    try:
        processes = processes_of(given, cores)
    except ConfigError as e:
        problems += [ConfigProblem(None, "", text) for text in e.problems]
        return
    for number, one in enumerate(processes if len(processes) > 1 else (), 1):
        parsed, wrong = one.tried(BrokerConfig.from_properties)
        problems += [ConfigProblem(None, f"process {number}: ", str(problem)) for problem in wrong]
        if parsed is not None:
            changes = {**dict.fromkeys(given.properties), **one.properties}.items()
            settings = {
                key: None if value is None else given.hidden(value, key)
                for key, value in changes
                if given.properties.get(key) != value
            }
            yield ExplainedProcess(number, parsed.node_id, parsed.process_roles, settings)


def _own_key(name: str) -> ConfigKey | None:
    if not name.startswith(PREFIX):
        return BROKER_KEYS.get(name)
    try:
        return split(name).key
    except ConfigError:
        return None


def _is_open(name: str, key: ConfigKey | None) -> bool:
    """Return whether a value may be shown: of an unknown key, or one of a family, it may be a password."""
    if key is not None:
        return not key.is_secret
    name = foreign_tail(name) or name
    return name in FOREIGN and not _SECRETIVE.search(name)
