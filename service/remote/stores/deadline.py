"""How long the first byte of an answer may take, and each pause after it: by what the store has shown. [P]

A connection that died says nothing, so the deadline is short; a store that is slow with everything would miss
a short one again and again, so misses in a row double it. When it has answered promptly for a while, it is
short again.

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
    """Of the reads of one store. Not thread-safe, and need not be: a count that is lost costs nothing."""

    __slots__ = ("_first_s", "_missed", "_prompt", "seconds")

    def __init__(self, first_s: float) -> None:
        self._first_s = first_s
        self.seconds = first_s
        self._missed = 0
        self._prompt = 0

    def missed(self) -> float:
        """Nothing came in time; the deadline for what is asked from now on.

        The first miss may have been a connection that died: a second one in a row says something of the
        store.
        """
        self._prompt = 0
        if self._missed:
            self.seconds = min(self.seconds * 2, self._first_s * _LONGEST)
        self._missed += 1
        return self.seconds

    def answered(self, took_s: float) -> bool:
        """An answer came; True when the deadline is the short one again."""
        self._missed = 0
        if self.seconds == self._first_s:
            return False
        self._prompt = self._prompt + 1 if took_s < self._first_s / 2 else 0
        if self._prompt < _PROMPT:
            return False
        self.seconds = self._first_s
        return True
