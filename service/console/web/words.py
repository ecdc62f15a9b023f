"""Quantities as readable text: bytes, times, money. [P]

>>> size(1_234_567), count(12345), span(0.0123), money(0.00012, "USD")
('1.2 MB', '12,345', '12.3 ms', '0.0001 USD')
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

NOTHING: Final = "–"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS: Final = ("kB", "MB", "GB", "TB", "PB")


def size(value: float | None) -> str:
    """Return bytes in decimal units."""
    if value is None:
        return NOTHING
    if value < 1000:
        return f"{value:.0f} B"
    step = 0
    value /= 1000
    while value >= 999.95 and step < len(_UNITS) - 1:
        value, step = value / 1000, step + 1
    return f"{value:,.1f} {_UNITS[step]}"


def rate(value: float | None) -> str:
    """Return bytes per second."""
    return NOTHING if value is None else f"{size(value)}/s"


def count(value: float | None) -> str:
    return NOTHING if value is None else f"{value:,.0f}"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, which takes an s unless there is one.

    >>> counted(1, "group"), counted(1200, "group")
    ('1 group', '1,200 groups')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def decimal(value: float | None, digits: int = 1) -> str:
    return NOTHING if value is None else f"{value:,.{digits}f}"


def span(seconds: float | None) -> str:
    """Return a duration."""
    if seconds is None:
        return NOTHING
    if seconds == float("inf"):
        return "over 30 s"
    if seconds < 0.001:
        return f"{1e6 * seconds:.0f} µs" if seconds > 0 else "0"
    if seconds < 1:
        return f"{1e3 * seconds:.1f} ms"
    if seconds < 120:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    if seconds < 172_800:
        return f"{seconds / 3600:.0f} h"
    return f"{seconds / 86_400:,.0f} d"


def share(value: float | None) -> str:
    return NOTHING if value is None else f"{100 * value:.0f} %"


def moment(ms: int | None, *, seconds: bool = True) -> str:
    """Return a time in UTC; the number itself if it is outside the calendar."""
    if ms is None or ms < 0:
        return NOTHING
    try:
        when = _EPOCH + timedelta(milliseconds=ms)
    except OverflowError:
        return f"{ms} ms"
    return when.strftime("%Y-%m-%d %H:%M:%S" if seconds else "%Y-%m-%d %H:%M")


def exact_moment(ms: int) -> str:
    """Return a time in UTC with milliseconds; a dash for a negative number, which stands for no time."""
    return f"{moment(ms)}.{ms % 1000:03d}" if ms >= 0 else NOTHING


def iso_moment(ms: int) -> str | None:
    """Return a time as ISO 8601 has it; None for one outside the calendar."""
    try:
        when = _EPOCH + timedelta(milliseconds=ms)
    except OverflowError:
        return None
    return when.strftime("%Y-%m-%dT%H:%M:%S") + f".{ms % 1000:03d}Z"


def ago(ms: int | None, now_ms: int) -> str:
    return NOTHING if ms is None or ms < 0 else f"{span(max(now_ms - ms, 0) / 1000)} ago"


def money(value: float | None, currency: str) -> str:
    """Return an amount with enough digits to be meaningful."""
    if value is None:
        return NOTHING
    if value == 0:
        return f"0 {currency}"
    digits = 2 if value >= 1 else 4 if value >= 0.00005 else 7
    return f"{value:,.{digits}f} {currency}"


def parse_moment(written: str) -> int | None:
    """Parse ``2026-01-31``, ``2026-01-31T12:30:00`` (UTC by default), or digits into milliseconds."""
    written = written.strip()
    if written.isascii() and written.isdigit() and len(written) <= 18:
        return int(written)
    try:
        when = datetime.fromisoformat(written)
    except ValueError:
        return None
    when = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
    return (when - _EPOCH) // timedelta(milliseconds=1)
