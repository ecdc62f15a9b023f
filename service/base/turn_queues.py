"""Queues of the loop's work, in order of arrival. Each turn of the loop does as much as its budget allows.

Limits for each peer, task or wait do not limit a turn: a thousand of them make the turn a thousand times as
long. So work that can come in large numbers goes into one of three queues that all peers of a node share:

- `calls`: short calls, such as a request that came when the turn was old, a fetch that an append woke, or the
  end of a connection that is too slow. A turn spends `CALLS_S` on them, by the clock.
- `more`: further requests of peers that pipeline several. Their separate budget keeps them from delaying
  peers that send one.
- `slices`: tasks of long work (`base/slices.py`). One of them continues in each turn, for a slice of
  `SLICE_S`.

A turn leaves the rest to the next one, after the reads of what peers have sent meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, MutableMapping
from contextvars import ContextVar
from typing import Any, Final
from weakref import WeakKeyDictionary

CALLS_S: Final = 0.002
"""Time that the calls of one turn may take; the last call may begin just before the end. `more` gets the same
again."""
CALLS_AT_ONCE: Final = 256
"""Most calls of one turn, if the clock stands still."""
SLICE_S: Final = 0.002
"""Time that long work may take in one turn; the last step may begin just before the end."""
STEPS_AT_ONCE: Final = 200
"""Most steps of a slice, if the clock stands still."""


class SliceClock:
    """The end of a slice, by the clock of the running loop. A new one begins at once."""

    __slots__ = ("_began_s", "_left", "_now_s")

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin the next slice."""
        self._began_s = self._now_s = asyncio.get_running_loop().time()
        self._left = STEPS_AT_ONCE

    def is_over(self) -> bool:
        """Return whether the slice is used up. Called once before each step."""
        now_s = asyncio.get_running_loop().time()
        if now_s == self._now_s:
            # A simulated clock stands still during a turn: there the number of steps ends a slice.
            self._left -= 1
        else:
            self._now_s, self._left = now_s, STEPS_AT_ONCE
        return now_s - self._began_s >= SLICE_S or self._left < 0


class CallQueue:
    """Queue of short calls. Used by one loop, which must be running when a call is added."""

    __slots__ = ("_is_due", "_waiting")

    def __init__(self) -> None:
        self._waiting: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._is_due = False

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, call: Callable[..., object], *args: Any) -> None:
        """Call `call` in a later turn, after the calls already queued."""
        self._waiting.append((call, args))
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._run_calls)

    def _run_calls(self) -> None:
        loop, waiting = asyncio.get_running_loop(), self._waiting
        end = loop.time() + CALLS_S
        # Calls that these calls add wait for the next turn.
        left = min(len(waiting), CALLS_AT_ONCE)
        try:
            while left:
                left -= 1
                call, args = waiting.popleft()
                try:
                    call(*args)
                except Exception as e:
                    loop.call_exception_handler({"message": f"{call!r} failed", "exception": e})
                if loop.time() >= end:
                    break
        finally:
            if waiting:
                # A due timer runs after the reads of what peers sent meanwhile, `call_soon` before.
                loop.call_later(0, self._run_calls)
            else:
                self._is_due = False


class SliceQueue:
    """Queue of tasks with long work. Used by one loop."""

    __slots__ = ("_clock", "_is_due", "_is_taken", "_waiting", "taken")

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_taken = False
        """whether a task has the slice of the next turn"""
        self._is_due = False
        self._clock = SliceClock()
        self.taken = 0
        """number of slices that tasks have waited for"""

    def __len__(self) -> int:
        return len(self._waiting)

    def is_over(self) -> bool:
        """Return whether this turn's slice is used up, so that the next step belongs to a later turn."""
        if not self._is_due:
            self._schedule()
            self._clock.begin()
        return self._clock.is_over()

    async def next_turn(self) -> None:
        """Wait for a slice, behind the tasks already queued. The task can be cancelled here."""
        self.taken += 1
        if self._is_taken or self._waiting:
            place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(place)
            await place
        else:
            self._is_taken = True
            self._schedule()
            await asyncio.sleep(0)
        self._schedule()
        self._clock.begin()

    def _schedule(self) -> None:
        """Have the next turn begin a slice of its own."""
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        self._is_due = self._is_taken = False
        self._clock.begin()
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():  # its task has not been cancelled
                self._is_taken = True
                self._schedule()
                place.set_result(None)  # the task goes on in the next turn
                return


class TurnQueues:
    """The three queues of one node."""

    __slots__ = ("calls", "more", "slices")

    def __init__(self) -> None:
        self.calls = CallQueue()
        self.more = CallQueue()
        self.slices = SliceQueue()


ByLoop = MutableMapping[asyncio.AbstractEventLoop, TurnQueues]
NODES: Final[ContextVar[ByLoop]] = ContextVar("queues", default=WeakKeyDictionary())  # noqa: B039
"""Queues by loop. Where several nodes share a loop, each node's context has its own mapping."""


def turn_queues(loop: asyncio.AbstractEventLoop) -> TurnQueues:
    """Return the queues of the node that runs on `loop`."""
    by_loop = NODES.get()
    found = by_loop.get(loop)
    if found is None:
        found = by_loop[loop] = TurnQueues()
    return found
