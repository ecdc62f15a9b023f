"""Durations in options, in Spark's syntax. [P]"""

from __future__ import annotations

import re
from typing import Final

from service.base.errors import ConfigError

_TIME: Final = re.compile(r"([0-9]{1,18})\s*([a-z]*)")
_UNITS_US: Final = {
    "us": 1,
    "": 1000,
    "ms": 1000,
    "s": 1_000_000,
    "m": 60_000_000,
    "min": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
}


def duration_ms(name: str, text: str, *, most_ms: int) -> int:
    """Parse a duration (`JavaUtils.timeStringAsMs`): a whole number and a unit, ms without one.

    `ConfigError` names the option.

    >>> duration_ms("storeTimeout", "3m", most_ms=3_600_000)
    180000
    """
    match = _TIME.fullmatch(text.strip().lower())
    if match is None or match[2] not in _UNITS_US or int(match[1]) * _UNITS_US[match[2]] > most_ms * 1000:
        raise ConfigError(
            f"option {name} is {text[:100]!r}, not a time of at most {most_ms // 1000} s, "
            "as in 500ms, 5s or 1m"
        )
    return int(match[1]) * _UNITS_US[match[2]] // 1000
