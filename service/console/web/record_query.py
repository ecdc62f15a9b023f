"""Query for the records of one partition or of all. [P]"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from service.console.web.rows import RecordFilter

FROM_START: Final = "start"
FROM_END: Final = "end"
FROM_OFFSET: Final = "offset"
FROM_TIME: Final = "time"
ALL: Final = -1
"""all partitions"""
MOST_PARTITIONS: Final = 500
"""Most partitions of a topic whose records are merged."""
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
MOST_OFFSET: Final = 2**63 - 1


class RecordQuery(NamedTuple):
    """Query for at most `most` records from a position, filtered. `value`: an offset, or ms.

    `partition` may be `ALL`. `FROM_END` gives the newest first; `positions`: where each partition goes on.
    """

    topic: str
    partition: int
    where: str = FROM_END
    value: int = 0
    most: int = 50
    filter: RecordFilter = RecordFilter()
    positions: tuple[int, ...] | None = None


def written_positions(positions: Sequence[int]) -> str:
    """Return offsets as a word of an address.

    >>> written_positions([0, 35, 1296])
    '0-z-100'
    """
    return "-".join(map(_base36, positions))


def _base36(number: int) -> str:
    found = ""
    while number >= 36:
        number, digit = divmod(number, 36)
        found = _DIGITS[digit] + found
    return _DIGITS[number] + found


def parse_positions(written: str) -> tuple[int, ...] | None:
    """Parse what `written_positions` returns; None for anything else."""
    words = written.split("-")
    if len(words) > MOST_PARTITIONS:
        return None
    found = []
    for word in words:
        if not word or len(word) > 13 or not word.isascii() or not word.isalnum():
            return None
        number = int(word, 36)
        if number > MOST_OFFSET:
            return None
        found.append(number)
    return tuple(found)
