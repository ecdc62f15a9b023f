r"""UTF-8 as Java reads it: the same as everywhere, but for how many marks damaged bytes become. [P]

>>> decode_as_java(bytes.fromhex("61eda08062ff"))
'a\ufffdb\ufffd'
"""

from __future__ import annotations

import codecs
from typing import Final

_MARK: Final = "\ufffd"
_HANDLER: Final = "firn-java"


def decode_as_java(data: bytes) -> str:
    """Return the text; damaged bytes become U+FFFD (``String(bytes, UTF_8)`` of Java 11 to 21)."""
    return data.decode("utf-8", _HANDLER)


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return _MARK, error.start + _damaged_bytes(error.object, error.start)


def _damaged_bytes(data: bytes, at: int) -> int:
    """Return how many bytes from `at` Java takes together."""
    first, left = data[at], len(data) - at
    second = data[at + 1] if left > 1 else -1
    third = data[at + 2] if left > 2 else -1
    if 0xE0 <= first <= 0xEF:
        if second >= 0 and (not _continues(second) or (first == 0xE0 and second < 0xA0)):
            return 1
        if left < 3:
            return left
        return 3 if _continues(third) else 2  # three whole bytes are a surrogate
    if 0xF0 <= first <= 0xF4:
        if second >= 0 and not _second_of_four(first, second):
            return 1
        if third >= 0 and not _continues(third):
            return 2
        return min(left, 3)
    return 1


def _continues(byte: int) -> bool:
    return byte & 0xC0 == 0x80


def _second_of_four(first: int, second: int) -> bool:
    lowest, highest = (0x90 if first == 0xF0 else 0x80), (0x8F if first == 0xF4 else 0xBF)
    return lowest <= second <= highest


codecs.register_error(_HANDLER, _replace)
