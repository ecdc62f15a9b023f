"""Deadlines of ongoing transactions, in groups of one sweep. [P]

A group has the transactions that are due between two sweeps; a heap has the groups' times. So beginning and
ending a transaction costs the same however many are open, and what has ended leaves nothing behind.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import islice


class Deadlines:
    """Times at which transactions are looked at. Times are wall-clock ms."""

    def __init__(self) -> None:
        self._groups: dict[int, dict[str, None]] = {}
        self._time_of: dict[str, int] = {}
        self._heap: list[int] = []

    def __len__(self) -> int:
        return len(self._time_of)

    @property
    def next_ms(self) -> int | None:
        """Return the time of the next sweep; None while nothing is open."""
        while self._heap and self._heap[0] not in self._groups:
            heapq.heappop(self._heap)
        return self._heap[0] if self._heap else None

    def set(self, transactional_id: str, at_ms: int) -> None:
        """Look at a transaction at `at_ms`, and no more at an earlier time."""
        self.discard(transactional_id)
        self._time_of[transactional_id] = at_ms
        group = self._groups.get(at_ms)
        if group is None:
            group = self._groups[at_ms] = {}
            heapq.heappush(self._heap, at_ms)
        group[transactional_id] = None

    def discard(self, transactional_id: str) -> None:
        """Forget a transaction, if there is one."""
        at_ms = self._time_of.pop(transactional_id, None)
        if at_ms is None:
            return
        group = self._groups[at_ms]
        del group[transactional_id]
        if not group:
            del self._groups[at_ms]

    def due(self, now_ms: int, most: int) -> list[str]:
        """Return transactions whose time has come, `most` of one group at a time."""
        next_ms = self.next_ms
        if next_ms is None or next_ms > now_ms:
            return []
        return list(islice(self._groups[next_ms], most))

    def __iter__(self) -> Iterator[str]:
        return iter(self._time_of)


def sweep_ms(due_ms: int, interval_ms: int) -> int:
    """Return the time of the sweep that finds what is due after `due_ms`: the next multiple of the
    interval."""
    return (due_ms // interval_ms + 1) * interval_ms
