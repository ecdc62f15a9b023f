"""Java's `.properties` syntax, as `java.util.Properties.load` reads it. [P]

Comments start with `#` or `!`. The first unescaped `=`, `:` or blank separates key and value. A line with an
odd number of trailing backslashes continues in the next line, without that line's leading blanks.
`\\t \\n \\r \\f \\uXXXX` are escapes; a backslash before any other character is dropped.

>>> parse_properties("# a node\\nlog.dirs = /var/a,\\\\\\n   /var/b\\nnode.id:7\\n")
{'log.dirs': '/var/a,/var/b', 'node.id': '7'}
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from service.base.errors import ConfigError

_BLANK = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class MalformedProperty(ConfigError):
    """A key or value that cannot be read. `number`: its line."""

    def __init__(self, words: str, number: int) -> None:
        super().__init__(words)
        self.number = number


class PropertyLine(NamedTuple):
    """One key with its value, and the number of the line in which it begins, from 1 on."""

    key: str
    value: str
    number: int


def parse_properties(text: str) -> dict[str, str]:
    """Parse a properties text into keys and values. Raises `ConfigError` for a malformed `\\uXXXX`."""
    return {line.key: line.value for line in parse_property_lines(text)}


def parse_property_lines(text: str) -> Iterator[PropertyLine]:
    """Parse a properties text into its keys, as often as they stand there. Raises `MalformedProperty`."""
    for number, line in _logical_lines(text):
        key, value = _split(line)
        try:
            name = _unescape(key, "a key")
            yield PropertyLine(name, _unescape(value, f"the value of {name}"), number)
        except ConfigError as e:
            raise MalformedProperty(str(e), number) from None


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    pending, began = "", 0
    for number, raw in enumerate(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"), start=1):
        line = raw.lstrip(_BLANK)
        if not pending and (not line or line[0] in "#!"):
            continue
        began = began or number
        if (len(line) - len(line.rstrip("\\"))) % 2:
            pending += line[:-1]
            continue
        yield began, pending + line
        pending, began = "", 0
    if pending:
        yield began, pending


def _split(line: str) -> tuple[str, str]:
    position = 0
    while position < len(line):
        if line[position] == "\\":
            position += 2
            continue
        if line[position] in "=:" + _BLANK:
            break
        position += 1
    rest = line[position:].lstrip(_BLANK)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_BLANK)
    return line[:position], rest


def _unescape(text: str, what: str) -> str:
    """Return the text without escapes. An error has no text of it: a value may be a password."""
    if "\\" not in text:
        return text
    out: list[str] = []
    position = 0
    while position < len(text):
        char = text[position]
        position += 1
        if char != "\\" or position == len(text):
            out.append(char)
            continue
        char = text[position]
        position += 1
        if char == "u":
            digits = text[position : position + 4]
            if len(digits) < 4 or any(d not in "0123456789abcdefABCDEF" for d in digits):
                raise ConfigError(f"malformed \\uxxxx encoding in {what}")
            out.append(chr(int(digits, 16)))
            position += 4
        else:
            out.append(_ESCAPES.get(char, char))
    return _whole("".join(out), what)


def _whole(text: str, what: str) -> str:
    """Return the text with one character for the two halves by which Java's escapes write a rare one."""
    if not any("\ud800" <= char <= "\udfff" for char in text):
        return text
    try:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError:  # its text would have a part of a value
        raise ConfigError(f"half of a character (\\uD800 to \\uDFFF) in {what}") from None
