"""Escaping and shortening of foreign text for one line of a log or a terminal. [P]

Topics, client ids, object keys and peers' messages are chosen by others. They must not be able to end a log
line, forge another, move the cursor or fill the disk with one name.

>>> print(printable("t\\n2026-01-01 INFO all is well \\x1b[2J"))
t\\n2026-01-01 INFO all is well \\x1b[2J
>>> print(printable("a" * 1000, 5), quoted("it's\\t"))
aaaaa… (1000 characters) "it's\\t"
"""

from __future__ import annotations

from typing import Final

MOST_CHARACTERS: Final = 256
"""Longer than the longest topic name."""


def printable(value: object, most: int = MOST_CHARACTERS) -> str:
    """Return the first `most` characters of ``str(value)``, with escapes for unprintable ones."""
    text = str(value)
    end = "" if len(text) <= most else f"… ({len(text)} characters)"
    return escaped(text[:most]) + end


def quoted(value: str, most: int = MOST_CHARACTERS) -> str:
    """Return `value` as `printable` does, in quotes that it cannot close."""
    end = "" if len(value) <= most else f"… ({len(value)} characters)"
    return repr(value[:most]) + end


def escaped(text: str) -> str:
    """Return `text` with Python's escapes for control, format and other unprintable characters."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
