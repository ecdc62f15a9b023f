"""Time for which gates may be closed: longer where brokers have missed it, until they are in time again. [P]

A broker that has no processor for a moment closes its gate too late. The cut is void then, and where that
goes on no cut is one moment. So the time is doubled after each second try in a row that was missed, and
halved after sixteen in a row that were not. It is a bound alone: gates open as soon as the last one has
closed.
"""

from __future__ import annotations

from typing import Final

_MISSED: Final = 2
_IN_TIME: Final = 16


class HoldTime:
    """Time in force, as the keeper of one prefix has learned it."""

    def __init__(self) -> None:
        self._doubled = self._missed = self._in_time = 0

    def now_ms(self, usual_ms: int, longest_ms: int) -> int:
        """Return it, from ``firn.cut.hold.max.ms`` and ``firn.cut.hold.longest.ms``."""
        longest_ms = max(longest_ms, usual_ms)
        while self._doubled and usual_ms << (self._doubled - 1) >= longest_ms:
            self._doubled -= 1  # to be halved at once when that may be
        return min(usual_ms << self._doubled, longest_ms)

    def missed(self) -> None:
        """Note a try at which a gate was closed too late, or had opened by itself."""
        self._missed, self._in_time = self._missed + 1, 0
        if self._missed >= _MISSED:
            self._doubled, self._missed = self._doubled + 1, 0

    def was_in_time(self) -> None:
        """Note a try at which all gates were closed at one moment."""
        self._missed, self._in_time = 0, self._in_time + 1
        if self._in_time >= _IN_TIME:
            self._doubled, self._in_time = max(self._doubled - 1, 0), 0

    def forget(self) -> None:
        """Begin anew."""
        self._doubled = self._missed = self._in_time = 0
