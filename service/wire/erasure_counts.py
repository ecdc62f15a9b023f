"""Counts of records of an order's keys, which Erasures (`wire/erasures.py`) tells a part at a time. [P]"""

from __future__ import annotations

from typing import Final, NamedTuple

END: Final = -1
"""Stands for the offset from which to go on: the part was the last one."""


class Counted(NamedTuple):
    """Counts of one part; those of parts add up.

    `objects` were looked at, or files, or tails, of `size` bytes; of these `hit_objects` with `hit_size`
    bytes have records of the keys, or may have. `records` are known to be of the keys. `requests` and
    `bytes_read` are what it took.
    """

    objects: int = 0
    size: int = 0
    hit_objects: int = 0
    hit_size: int = 0
    records: int = 0
    requests: int = 0
    bytes_read: int = 0

    def plus(self, other: Counted) -> Counted:
        return Counted(*(one + another for one, another in zip(self, other, strict=True)))
