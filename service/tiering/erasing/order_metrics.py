"""Progress of orders to erase keys, as the keeper of the prefix sees them: plain values. [P]"""

from __future__ import annotations

from typing import NamedTuple


class OrderStanding(NamedTuple):
    """An order: when it was given, when it was done (-1: it is open), when the grace of what it dropped is
    over (-1 as long), and what it waits for. Wall clock."""

    started_ms: int
    done_ms: int
    grace_until_ms: int
    why: str

    @property
    def is_open(self) -> bool:
        return self.done_ms < 0
