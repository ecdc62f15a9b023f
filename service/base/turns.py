"""How long the loop's turns take, and who held it. [P]

A turn is what the loop does between two times that it asks for events. Whoever drives the loop
(`node/event_loop.py`) tells when turns begin and end; in a world without such a driver nothing is ever told,
and nothing counted. Whoever had the loop for long says so with `held`; what nobody claims is told by
`sampled`, by whoever interrupts it.

Times are in seconds of the loop's clock. Owned by the loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from service.base.metrics import Histogram

NOTICED_S: Final = 0.01
"""Who holds the loop for longer is asked for a name."""
LONG_S: Final = 0.05
"""No turn is to take longer: those that do are logged."""
KEPT: Final = 16
LATEST: Final = 256
NO_TURN: Final = float("inf")
"""`Turns.began` while the loop waits for events."""


class LongTurn(NamedTuple):
    """One of the longest turns so far."""

    took_s: float
    ended_s: float
    who: str
    """API, client and partition of the request, or the task and where in the code it was"""
    cpu_s: float = 0.0
    """CPU time of the loop's thread in it: less than `took_s` where something else had the processor"""


class Sample(NamedTuple):
    """What the loop was seen doing in the middle of a turn."""

    began: float
    who: Callable[[], str]
    """called on the loop, when the turn has ended"""


class Turns:
    """All turns of one loop."""

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
    )

    def __init__(self) -> None:
        self.began = NO_TURN
        """when the present turn began"""
        self.cpu_began = 0.0
        """the thread's CPU time then"""
        self.histogram = Histogram()
        self.on_long: Callable[[LongTurn], None] | None = None
        self._held = ""
        self._held_s = 0.0
        self._sample: Sample | None = None
        self._kept: list[LongTurn] = []
        self._latest: deque[LongTurn] = deque(maxlen=LATEST)

    def held(self, took_s: float, who: str) -> None:
        """`who` had the loop for `took_s` of this turn; to be told where it is more than `NOTICED_S`."""
        if took_s > self._held_s:
            self._held_s, self._held = took_s, who

    def sampled(self, sample: Sample) -> None:
        """What the loop does in the turn that began when `sample` says."""
        self._sample = sample

    def ended(self, took_s: float, now_s: float, cpu_s: float = 0.0) -> None:
        """Note a turn of more than `NOTICED_S`, which is over."""
        held, held_s, sample, began = self._held, self._held_s, self._sample, self.began
        self._held, self._held_s, self._sample = "", 0.0, None
        who = held
        if held_s < took_s / 2:
            seen = sample.who() if sample is not None and sample.began == began else ""
            who = " and ".join(one for one in (seen, held and f"{held} ({1000 * held_s:.0f} ms)") if one)
        turn = LongTurn(took_s, now_s, who or "many small steps", cpu_s)
        self._latest.append(turn)
        if len(self._kept) < KEPT or took_s > self._kept[-1].took_s:
            self._kept = sorted((*self._kept, turn), key=lambda one: -one.took_s)[:KEPT]
        if took_s > LONG_S and self.on_long is not None:
            self.on_long(turn)

    @property
    def longest(self) -> tuple[LongTurn, ...]:
        """The longest turns so far, the longest first, at most `KEPT`."""
        return tuple(self._kept)

    @property
    def latest(self) -> tuple[LongTurn, ...]:
        """The last turns of more than `NOTICED_S`, the oldest first, at most `LATEST`."""
        return tuple(self._latest)
