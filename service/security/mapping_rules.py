r"""Rules by which the name of a certificate becomes the name of a principal. [P]

Each of ``ssl.principal.mapping.rules`` is ``DEFAULT``, the name itself, or ``RULE:pattern/replacement/[LU]``:
where the pattern matches the whole name, each match is replaced, and the result made lower or upper case. The
first rule that matches decides. Source: Kafka ``SslPrincipalMapper``, with RE2 in place of Java's own:
its time is linear in the name, which a client chooses. Look-around and back references within a pattern are
refused, and so is a replacement that Kafka would trip over at every connection.

>>> rules = MappingRules(r"RULE:^CN=(.*?),OU=Users.*$/$1/L, DEFAULT")
>>> rules.apply("CN=Alice,OU=Users,O=Acme"), rules.apply("CN=Bob,O=Acme")
('alice', 'CN=Bob,O=Acme')
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from service.base.errors import ConfigError, FirnError
from service.base.name_pattern import compile_pattern

KEY: Final = "ssl.principal.mapping.rules"
_RULE: Final = r"(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?).*?|(.*?)"
_PARSER: Final = re.compile(_RULE, re.ASCII)
_SPLITTER: Final = re.compile(rf"\s*({_RULE})\s*(,\s*|$)", re.ASCII)
_REFERENCE: Final = re.compile(r"\$(\d+)", re.ASCII)
_BLANKS: Final = "".join(map(chr, range(0x21)))
"""Characters that Java's ``trim`` takes off."""
_LINE_ENDS: Final = dict.fromkeys(map(ord, "\r\u0085\u2028\u2029"), "\n")


class NoMatchingRule(FirnError):
    """A name that no rule matches: its connection fails."""


class MappingRules:
    """A list of rules. Immutable; for any thread."""

    def __init__(self, text: str) -> None:
        """Read the value of the key. Raises `ConfigError`."""
        self._rules: list[_Rule | None] = []
        """None: DEFAULT"""
        for found in _SPLITTER.finditer(text.strip(_BLANKS)):
            rule = found[1]
            parsed = _PARSER.match(rule)
            assert parsed is not None, "the last alternative matches anything"
            if parsed.end() != len(rule):
                raise ConfigError(f"{KEY}: {rule!r} is no rule: {rule[parsed.end() :]!r} is left")
            if parsed[1] is not None:
                self._rules.append(None)
            elif parsed[2] is not None:
                self._rules.append(_Rule(parsed[2], parsed[3], parsed[4]))

    def apply(self, name: str) -> str:
        """Return the principal's name for the certificate's. Raises `NoMatchingRule`."""
        for rule in self._rules:
            if rule is None:
                return name
            if (found := rule.apply(name)) is not None:
                return found
        raise NoMatchingRule("no rule of ssl.principal.mapping.rules matches the certificate's name")


class _Rule:
    """``RULE:pattern/replacement/case``."""

    def __init__(self, pattern: str, replacement: str, case: str) -> None:
        self._pattern = _compiled(pattern)
        escaped = _with_literals(replacement, self._pattern.groups)
        self._template = _template(escaped, self._pattern, replacement)
        self._case = case

    def apply(self, name: str) -> str | None:
        # A dot of Java's matches none of these, one of RE2's all but the last.
        lines = name.translate(_LINE_ENDS)
        if self._pattern.fullmatch(lines) is None:
            return None
        mapped = self._replaced(name, lines)
        if self._case:
            return mapped.lower() if self._case == "L" else mapped.upper()
        return mapped

    def _replaced(self, name: str, lines: str) -> str:
        """Replace every match, as Java does: one that is empty may follow another at its end."""
        pieces, kept, last = [], 0, (-1, -1)
        for found in self._pattern.finditer(lines):
            span = found.span()
            if span == last:
                continue  # RE2 tells an empty match twice
            last = span
            pieces.append(name[kept : span[0]])
            for part in self._template:
                start, end = found.span(part) if isinstance(part, int) else (0, 0)
                pieces.append(part if isinstance(part, str) else name[max(start, 0) : max(end, 0)])
            kept = span[1]
        pieces.append(name[kept:])
        return "".join(pieces)


def _compiled(pattern: str) -> Any:
    try:
        return compile_pattern(pattern)
    except ValueError as e:
        raise ConfigError(f"{KEY}: the pattern {pattern!r} is not served by RE2: {e}") from e


def _with_literals(replacement: str, groups: int) -> str:
    """Return the replacement with references to groups that are not there escaped, at the places at which
    Kafka puts the escapes: from the second on, one character too early for each before."""
    value = replacement
    if not groups:
        return value
    for found in _REFERENCE.finditer(replacement):
        if found[1].startswith("0"):
            continue
        index = int(found[1])
        while index > groups and index >= 10:
            index //= 10
        if index > groups:
            at = found.start(1) - 1
            value = value[:at] + "\\" + value[at:]
    return value


def _template(text: str, pattern: Any, shown: str) -> Sequence[str | int]:
    """Return the literals and groups that Java's ``appendReplacement`` reads. Raises `ConfigError` where it
    would throw."""
    parts: list[str | int] = []
    at = 0
    while at < len(text):
        one, at = text[at], at + 1
        if one == "\\":
            if at == len(text):
                raise ConfigError(f"{KEY}: the replacement {shown!r} ends with a backslash")
            parts.append(text[at])
            at += 1
        elif one == "$":
            group, at = _group(text, at, pattern, shown)
            parts.append(group)
        else:
            parts.append(one)
    return parts


def _group(text: str, at: int, pattern: Any, shown: str) -> tuple[int, int]:
    """Return the group that is named at `at`, behind the ``$``, and where the text goes on."""
    if text[at : at + 1] == "{":
        name, closed, _ = text[at + 1 :].partition("}")
        if not closed or name not in pattern.groupindex:
            raise ConfigError(f"{KEY}: the replacement {shown!r} names the group {name!r} of none")
        return pattern.groupindex[name], at + len(name) + 2
    if not ("0" <= text[at : at + 1] <= "9"):
        raise ConfigError(f"{KEY}: in the replacement {shown!r} a $ stands before no number")
    group, at = int(text[at]), at + 1
    while "0" <= text[at : at + 1] <= "9" and 10 * group + int(text[at]) <= pattern.groups:
        group, at = 10 * group + int(text[at]), at + 1
    if group > pattern.groups:
        raise ConfigError(f"{KEY}: the replacement {shown!r} names group {group} of {pattern.groups}")
    return group, at
