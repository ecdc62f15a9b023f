"""Times and durations as people write them, in ISO 8601. [P]"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from service.base.errors import ConfigError

_DURATION: Final = re.compile(
    r"([+-]?)P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)(?:\.(\d{1,9}))?S)?)?", re.ASCII | re.IGNORECASE
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MOST_MS: Final = 2**63 - 1
_LAST_DATE_MS: Final = 253_402_300_799_999
"""The last millisecond that has a date: what documents say may be anything."""


def time_ms(text: str) -> int:
    """Return a time as milliseconds since 1970, UTC where it names no zone. Raises `ConfigError`.

    >>> time_ms("2013-02-01T00:00:00.250"), time_ms("2013-02-01T01:00+01:00")
    (1359676800250, 1359676800000)
    """
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ConfigError(f"{text!r} is not a time like 2026-01-31T12:00:00Z") from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    if found < _EPOCH:  # brokers take such numbers for the names of other offsets: -1 is the end of a log
        raise ConfigError(f"{text!r} is before 1970")
    return round(found.timestamp() * 1000)


def time_text(ms: int) -> str:
    """Return milliseconds since 1970 as a time in UTC, or as their number where no date has it.

    >>> time_text(1359676800250), time_text(10**18)
    ('2013-02-01T00:00:00.250Z', '1000000000000000000 ms since 1970')
    """
    if not 0 <= ms <= _LAST_DATE_MS:
        return f"{ms} ms since 1970"
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def duration_ms(text: str) -> int:
    """Return an ISO 8601 duration of days and less as milliseconds. Raises `ConfigError`.

    >>> duration_ms("P1DT2H"), duration_ms("PT0.5S")
    (93600000, 500)
    """
    found = _DURATION.fullmatch(text.strip())
    if found is None or not any(found.groups()[1:]) or text.strip().upper().endswith("T"):
        raise ConfigError(f"{text!r} is not a duration like P7D or PT1H30M")
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups()[1:5])
    fraction_ms = int((found[6] or "0").ljust(9, "0")) // 1_000_000
    total = (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000 + fraction_ms
    if total > _MOST_MS:
        raise ConfigError(f"{text!r} is too long")
    return -total if found[1] == "-" else total
