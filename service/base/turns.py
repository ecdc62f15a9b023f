"""Durations of the event loop's turns, and who caused the long ones. [P]

A turn is one iteration of the loop, between two polls for events. The driver of the loop
(`node/event_loop.py`) notes when turns begin and end; without such a driver nothing is counted. Code that has
held the loop for long calls `note_holder`. For a turn that no code claims, a sampler that interrupts the loop
calls `note_sample`.

Times are in seconds of the loop's clock. Owned by the loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from service.base.metrics import Histogram

NOTICED_S: Final = 0.01
"""Turns, and uses of the loop within one, that are longer are noted."""
LONG_S: Final = 0.05
"""Longer turns are logged."""
KEPT: Final = 16
LATEST: Final = 256
NO_TURN: Final = float("inf")
"""`TurnTimes.began` while the loop polls for events."""


class LongTurn(NamedTuple):
    """One long turn."""

    took_s: float
    ended_s: float
    who: str
    """API, client and partition of the request, or the task and its place in the code"""
    cpu_s: float = 0.0
    """CPU time of the loop's thread in the turn; less than `took_s` if other threads ran meanwhile"""


class TurnSample(NamedTuple):
    """Stack of the loop in the middle of a turn."""

    began: float
    who: Callable[[], str]
    """formats the stack; called on the loop, when the turn has ended"""


class TurnTimes:
    """Statistics of all turns of one loop."""

    __slots__ = (
        "_held",
        "_held_s",
        "_kept",
        "_latest",
        "_sample",
        "began",
        "cpu_began",
        "histogram",
        "on_long",
        "ready",
    )

    def __init__(self) -> None:
        self.began = NO_TURN
        """start of the current turn"""
        self.cpu_began = 0.0
        """CPU time of the thread at that start"""
        self.ready = 1
        """number of sockets that were ready at that start; 1 if turns are not measured"""
        self.histogram = Histogram()
        self.on_long: Callable[[LongTurn], None] | None = None
        self._held = ""
        self._held_s = 0.0
        self._sample: TurnSample | None = None
        self._kept: list[LongTurn] = []
        self._latest: deque[LongTurn] = deque(maxlen=LATEST)

    def note_holder(self, took_s: float, who: str) -> None:
        """Note that `who` has held the loop for `took_s` of this turn. Call it above `NOTICED_S`."""
        if took_s > self._held_s:
            self._held_s, self._held = took_s, who

    def note_sample(self, sample: TurnSample) -> None:
        """Note a sample of the turn that began at ``sample.began``."""
        self._sample = sample

    def note_turn(self, took_s: float, now_s: float, cpu_s: float = 0.0) -> None:
        """Note the end of a turn that took more than `NOTICED_S`."""
        held, held_s, sample, began = self._held, self._held_s, self._sample, self.began
        self._held, self._held_s, self._sample = "", 0.0, None
        who = held
        if held_s < took_s / 2:
            sampled_who = sample.who() if sample is not None and sample.began == began else ""
            who = " and ".join(
                one for one in (sampled_who, held and f"{held} ({1000 * held_s:.0f} ms)") if one
            )
        turn = LongTurn(took_s, now_s, who or "many small steps", cpu_s)
        self._latest.append(turn)
        if len(self._kept) < KEPT or took_s > self._kept[-1].took_s:
            self._kept = sorted((*self._kept, turn), key=lambda one: -one.took_s)[:KEPT]
        if took_s > LONG_S and self.on_long is not None:
            self.on_long(turn)

    @property
    def longest(self) -> tuple[LongTurn, ...]:
        """The longest turns so far, longest first, at most `KEPT`."""
        return tuple(self._kept)

    @property
    def latest(self) -> tuple[LongTurn, ...]:
        """The last turns of more than `NOTICED_S`, oldest first, at most `LATEST`."""
        return tuple(self._latest)
