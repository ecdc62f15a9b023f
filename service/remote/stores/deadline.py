"""Deadline of the first byte of an answer, and of each pause after it, adapted to the store. [P]

A dead connection sends nothing, so the deadline is short; a store that is slow with everything would miss a
short one again and again, so successive misses double it. When the store has answered promptly for a while,
it is short again.

>>> deadline = Deadline(first_s=2.0)
>>> deadline.missed(), deadline.missed(), deadline.missed()
(2.0, 4.0, 8.0)
>>> any(deadline.answered(0.1) for _ in range(99)), deadline.answered(0.1), deadline.seconds
(False, True, 2.0)
"""

from __future__ import annotations

from typing import Final

_LONGEST: Final = 8
_PROMPT: Final = 100


class Deadline:
    """Deadline of the reads of one store. Not thread-safe, and need not be: a lost count does no harm."""

    __slots__ = ("_first_s", "_missed", "_prompt", "seconds")

    def __init__(self, first_s: float) -> None:
        self._first_s = first_s
        self.seconds = first_s
        self._missed = 0
        self._prompt = 0

    def missed(self) -> float:
        """Record a missed deadline; return the deadline of later requests.

        The first miss may be a dead connection; a second one in a row says something about the store.
        """
        self._prompt = 0
        if self._missed:
            self.seconds = min(self.seconds * 2, self._first_s * _LONGEST)
        self._missed += 1
        return self.seconds

    def answered(self, took_s: float) -> bool:
        """Record an answer; return True when the deadline is the short one again."""
        self._missed = 0
        if self.seconds == self._first_s:
            return False
        self._prompt = self._prompt + 1 if took_s < self._first_s / 2 else 0
        if self._prompt < _PROMPT:
            return False
        self.seconds = self._first_s
        return True
