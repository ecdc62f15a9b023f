"""Settings that a node is given, each with its place: a file, the command line, the environment.

The command line counts before the file, and the file before the environment.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from service.base.errors import ConfigError
from service.base.printable import escaped
from service.base.properties import PropertyLine
from service.base.properties_file import load_property_lines
from service.config.environment import of_environment
from service.config.parsing import is_strict, without_effect
from service.config.problems import ConfigProblem, Places, attributed, in_one_style
from service.config.providers import resolved

_VARIABLES: Final = re.compile(r"\$\{[^}:]*:([^}:]+)\}")
_LIKE_A_SECRET: Final = 6
"""Characters of a value from which on a text about other keys has it by no accident."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GivenConfig:
    """Properties of a node, with the values of config providers.

    `places`: where each stands. `remarks`: a text for each setting that a stronger one overrules. `unknown`:
    one for each environment variable that begins as a setting does and is none; `mistyped`: for one that is
    almost a setting's, without which a node may be less safe than it is meant to be. `variables`: by key the
    variables that its text names, with their values, which may be secrets: nothing shows them. `texts`: those
    texts.
    """

    properties: Mapping[str, str]
    places: Places
    remarks: tuple[str, ...]
    unknown: tuple[str, ...]
    mistyped: tuple[str, ...] = ()
    variables: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)
    texts: Mapping[str, str] = field(default_factory=dict)

    def checked(self, parse: Callable[[Mapping[str, str]], T]) -> T:
        """Return what `parse` makes of the properties. `ConfigError` has the place of each problem."""
        parsed, problems = self.tried(parse)
        if parsed is None:
            raise ConfigError(*map(str, problems))
        return parsed

    def tried(self, parse: Callable[[Mapping[str, str]], T]) -> tuple[T | None, list[ConfigProblem]]:
        """Return what `parse` makes of the properties, and no problem; or None, and the problems.

        A variable that is almost a setting's is a problem, too; with `firn.config.strict` also one that only
        begins as they do.
        """
        unknown = self.unknown if is_strict(self.properties) else ()
        problems = [ConfigProblem(None, "", text) for text in (*self.mistyped, *unknown)]
        try:
            parsed = parse(self.properties)
        except ConfigError as e:
            found = attributed(e.problems, self.places)
            return None, [*(one._replace(words=self.hidden(one.words, one.key)) for one in found), *problems]
        return (None, problems) if problems else (parsed, [])

    def warnings(self) -> list[str]:
        """Return a text for each setting that a node takes and that has no effect."""
        rows = without_effect(self.properties)
        texts = [f"{name} has no effect here: {row.why}" for name, row in rows.items()]
        return [*self.unknown, *self.remarks, *in_one_style(texts, self.places)]

    def written(self, key: str) -> str:
        """Return a value as it was given: with the names of variables."""
        return self.texts.get(key, self.properties[key])

    def hidden(self, text: str, of: str | None = None) -> str:
        """Return a text, about the key `of`, with the names of variables in place of their values."""
        for key, values in self.variables.items():
            for variable, value in values.items():
                if value and (key == of or len(value) >= _LIKE_A_SECRET):
                    text = text.replace(value, variable)
        return text


def gather(
    path: Path | str | None, overrides: Sequence[tuple[str, str]], environ: Mapping[str, str]
) -> GivenConfig:
    """Read the file and add the overrides and the environment. Raises `ConfigError`."""
    lines = load_property_lines(path) if path is not None else []
    given = {**{line.key: line.value for line in lines}, **dict(overrides)}
    named = _VARIABLES.findall("\n".join(given.values()))
    environment = of_environment(environ, named)
    properties = {**environment.properties, **given}
    places = Places(
        str(path or ""),
        {line.key: line.number for line in lines},
        frozenset(key for key, _ in overrides),
        environment.variables,
    )
    named_values: dict[str, dict[str, str]] = {}
    try:
        values = resolved(properties, environ, named_values)
    except ConfigError as e:
        raise ConfigError(*in_one_style(e.problems, places)) from None
    overruled = _overruled(environment.variables, {**properties, **values}, environ, places)
    remarks = (*_repeated(lines, path), *overruled)
    texts = {key: properties[key] for key in named_values}
    return GivenConfig(
        values, places, remarks, environment.unknown, environment.mistyped, named_values, texts
    )


def _repeated(lines: Iterable[PropertyLine], path: Path | str | None) -> Iterable[str]:
    """Return a text for each line whose key stands in a later one again, with another value."""
    last = {line.key: line for line in lines}
    for line in lines:
        if line.value != last[line.key].value:
            counts = last[line.key].number
            yield f"{path}:{line.number}: {escaped(line.key)}: set again in line {counts}, which counts"


def _overruled(
    variables: Mapping[str, str], properties: Mapping[str, str], environ: Mapping[str, str], places: Places
) -> Iterable[str]:
    """Return a text for each environment variable that something stronger overrules."""
    for key, variable in variables.items():
        if properties[key] != environ[variable]:
            yield f"{variable}: overruled by {places.of(key)}"
