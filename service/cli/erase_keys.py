"""Keys of an order, as they are given: from a file, or as base64. Errors name their line, never a key."""

from __future__ import annotations

import binascii
import codecs
import sys
from pathlib import Path
from typing import Final

from service.base.errors import ConfigError
from service.remote.format.erase_codec import MAX_KEYS

_MOST_BYTES: Final = 1 << 30
_NO_TEXT: Final = (b"\0", b"\r")
"""Bytes that no line of text has: the file is UTF-16, binary, or its lines end otherwise."""


def decoded(text: bytes, what: str) -> bytes:
    """Return the bytes that `text` is the base64 of."""
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except ValueError:
        raise ConfigError(f"{what} is not base64") from None


def lines_of_file(name: str, *, is_base64: bool) -> list[bytes]:
    """Return a key for each line of a file, or of standard input for `-`; empty lines are none.

    Raises `ConfigError` for too many, none, or a line that is not base64, or not text, where it has to be;
    `OSError`.
    """
    data = sys.stdin.buffer.read(_MOST_BYTES + 1) if name == "-" else _read(Path(name))
    if len(data) > _MOST_BYTES:
        raise ConfigError(f"--keys-file {name}: more than {_MOST_BYTES} bytes")
    if data.startswith(codecs.BOM_UTF8) and not is_base64:
        raise ConfigError(
            f"--keys-file {name}: it begins with a byte order mark, which would be part of the first key; "
            f"remove it, or give keys that begin so as base64"
        )
    lines = [line.removesuffix(b"\r") for line in data.split(b"\n")]
    for number, line in enumerate(() if is_base64 else lines, 1):
        if any(one in line for one in _NO_TEXT):
            raise ConfigError(
                f"--keys-file {name}: line {number} is no text in UTF-8 that ends with a line feed; "
                f"give keys with NUL or carriage return as base64"
            )
    keys = [
        decoded(line, f"--keys-file {name}: line {number}") if is_base64 else line
        for number, line in enumerate(lines, 1)
        if line
    ]
    if not keys:
        raise ConfigError(f"--keys-file {name}: it has no key")
    if len(set(keys)) > MAX_KEYS:
        raise ConfigError(f"--keys-file {name}: {len(set(keys))} keys, an order has at most {MAX_KEYS}")
    return keys


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_MOST_BYTES + 1)
