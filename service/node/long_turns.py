"""Log of turns that held the loop long: one line for those of a minute, with the longest.

A turn of some hundred ms is ordinary under load, so that it is no warning; one of a second delays heartbeats.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Protocol

from service.base.printable import printable
from service.base.turns import LONG_S, LongTurn

_log = logging.getLogger(__name__)

SUM_S: Final = 60.0
"""Time whose turns are one line"""
FIRST_S: Final = 2.0
"""The same time after a minute without a long turn, so that a single one is told soon"""
WORRYING_S: Final = 1.0
"""Duration from which on a turn is a warning"""


class CallLater(Protocol):
    """Timer of the loop: `loop.call_later`."""

    def __call__(self, delay: float, callback: Callable[[], None], /) -> object: ...


class LongTurnLog:
    """Sum of long turns, told from time to time. Owned by the loop."""

    def __init__(self, later: CallLater) -> None:
        self._later = later
        self._longest: LongTurn | None = None
        self._count = 0
        self._waits_s = 0.0
        """time between the first turn of the sum and its line; 0 while nothing waits"""

    def note(self, turn: LongTurn) -> None:
        """Add a turn to the sum."""
        self._count += 1
        if self._longest is None or turn.took_s > self._longest.took_s:
            self._longest = turn
        if not self._waits_s:
            self._wait(FIRST_S)

    def tell(self) -> None:
        """Write the line, unless nothing is to be told."""
        longest, self._longest = self._longest, None
        count, self._count = self._count, 0
        waited_s, self._waits_s = self._waits_s, 0.0
        if longest is None:
            return
        level = logging.WARNING if longest.took_s >= WORRYING_S else logging.INFO
        took_ms, who = round(1000 * longest.took_s), printable(longest.who, 1024)
        if count == 1:
            _log.log(level, "a turn of the loop took %d ms: %s", took_ms, who)
        else:
            _log.log(
                level,
                "%d turns of the loop took more than %d ms within %d s, the longest %d ms: %s",
                *(count, round(1000 * LONG_S), waited_s, took_ms, who),
            )
        self._wait(SUM_S)

    def _wait(self, seconds: float) -> None:
        self._waits_s = seconds
        self._later(seconds, self.tell)
