"""Texts about settings in one style: place, key, words. [P]

>>> places = Places("server.properties", {"node.id": 3}, frozenset({"log.dirs"}), {})
>>> in_one_style(["log.dirs: a directory is named twice"], places)
['--set log.dirs: a directory is named twice']
>>> in_one_style(["Invalid value x for configuration node.id: Not a number of type INT"], places)
["server.properties:3: node.id: invalid value 'x': Not a number of type INT"]
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from service.base.printable import escaped

_INVALID: Final = re.compile(r"Invalid value (.*) for configuration ([^\s:]+): (.*)", re.DOTALL)
_LONGEST: Final = 80
"""Characters of a value that are shown"""


class Places(NamedTuple):
    """Places of settings. `lines`: those of the file `path`; `variables`: of the environment, by key."""

    path: str
    lines: Mapping[str, int]
    overrides: frozenset[str]
    variables: Mapping[str, str]

    def of(self, key: str) -> str:
        """Return the place of a key, "" if nothing sets it."""
        if key in self.overrides:
            return f"--set {key}"
        if key in self.lines:
            return f"{self.path}:{self.lines[key]}"
        return self.variables.get(key, "")

    def order(self, key: str | None) -> tuple[int, int]:
        """Return where a text about `key` stands among others: the file's lines first."""
        if key is None:
            return (3, 0)
        if key in self.overrides:
            return (1, 0)
        return (0, self.lines[key]) if key in self.lines else (2, 0)

    @property
    def keys(self) -> frozenset[str]:
        """Keys that are set."""
        return frozenset((*self.lines, *self.overrides, *self.variables))


class ConfigProblem(NamedTuple):
    """Words about a setting, with its place. `key` is None if they are about no setting that is there."""

    key: str | None
    place: str
    words: str

    def __str__(self) -> str:
        return f"{self.place}{self.words}"


def in_one_style(texts: Iterable[str], places: Places) -> list[str]:
    """Return each text with the place and the name of the first key in it that is set, the file's lines in
    their order."""
    return list(map(str, attributed(texts, places)))


def attributed(texts: Iterable[str], places: Places) -> list[ConfigProblem]:
    """Return the texts as `in_one_style` does, each with its key."""
    keys = sorted(places.keys)
    names = re.compile(rf"(?<![\w.-])({'|'.join(map(re.escape, keys))})(?![\w-]|\.\w)") if keys else None
    found = []
    for text in texts:
        text = _without_java_style(text)
        match = None if names is None else names.search(text)
        key = None if match is None else match[1]
        found.append(_problem(text, key, places))
    return sorted(found, key=lambda one: places.order(one.key))


def _without_java_style(text: str) -> str:
    match = _INVALID.fullmatch(text)
    if match is None:
        return text
    value = match[1] if len(match[1]) <= _LONGEST else match[1][:_LONGEST] + "…"
    return f"{match[2]}: invalid value {value!r}: {match[3]}"


def _problem(text: str, key: str | None, places: Places) -> ConfigProblem:
    words = escaped(text)
    if key is None:
        return ConfigProblem(None, f"{places.path}: " if places.path else "", words)
    if not text.startswith((f"{key}: ", f"{key} ")):
        words = f"{escaped(key)}: {words}"
    return ConfigProblem(key, "--set " if key in places.overrides else f"{places.of(key)}: ", words)
