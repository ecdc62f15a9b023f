"""Queues of the loop's work, in order of arrival: each turn takes from them what its budget allows.

A limit for each peer, task or wait is no limit of a turn: a thousand of them make the turn a thousand times
as long, and everybody else waits for its end. So whatever can be many at once stands in one of three queues
that all of a node's peers share:

- `calls`: short calls, such as a request that came when the turn was old, a fetch that an append woke, or the
  end of a connection that is too slow. A turn takes `CALLS_S` of them, by the clock.
- `more`: further requests of peers that have sent several ahead. They have a share of their own, so that who
  asks for one thing does not wait behind them.
- `slices`: tasks of long work. One of them goes on in each turn, for a slice of `SLICE_US`, which it
  *estimates* before it works (`base/slices.py`), so that a request is cut at the same places in every run.

What a turn leaves is taken in the next one, behind what peers have sent meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, MutableMapping
from contextvars import ContextVar
from typing import Any, Final
from weakref import WeakKeyDictionary

CALLS_S: Final = 0.002
"""How long the calls of one turn may take, and little more: the last of them may begin just before. As much
again of further requests."""
CALLS_AT_ONCE: Final = 256
"""Calls of one turn at most, where the clock stands still."""
SLICE_US: Final = 2000
"""How much the long work of one turn may be."""


class CallQueue:
    """Short calls that wait for their turn. Used by one loop, which is running when something is added."""

    __slots__ = ("_is_due", "_waiting")

    def __init__(self) -> None:
        self._waiting: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._is_due = False

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, call: Callable[..., object], *args: Any) -> None:
        """Have `call` called in a later turn, behind those that wait already."""
        self._waiting.append((call, args))
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._take)

    def _take(self) -> None:
        loop, waiting = asyncio.get_running_loop(), self._waiting
        end = loop.time() + CALLS_S
        # What these calls add is for the next turn.
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
                # A timer that is due comes behind what peers have sent meanwhile, `call_soon` before it.
                loop.call_later(0, self._take)
            else:
                self._is_due = False


class SliceQueue:
    """Tasks of long work that wait for their turn. Used by one loop."""

    __slots__ = ("_is_due", "_is_taken", "_left_us", "_waiting", "taken")

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_taken = False
        """One task has the slice of the next turn."""
        self._is_due = False
        self._left_us = SLICE_US
        self.taken = 0
        """slices that tasks have waited for so far"""

    def __len__(self) -> int:
        return len(self._waiting)

    def charge(self, work_us: int) -> bool:
        """Count a step of a task that is about to be done; True when it belongs to a later turn."""
        if not self._is_due:
            self._ask()
        self._left_us -= work_us
        return self._left_us < 0

    async def next_turn(self) -> None:
        """Wait for a slice, behind the tasks that wait already. A task may be cancelled here."""
        self.taken += 1
        if self._is_taken or self._waiting:
            place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(place)
            await place
        else:
            self._is_taken = True
            if not self._is_due:
                self._ask()
            await asyncio.sleep(0)
        self._left_us = SLICE_US

    def _ask(self) -> None:
        self._is_due = True
        asyncio.get_running_loop().call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        self._is_due = self._is_taken = False
        self._left_us = SLICE_US
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():  # its task was not cancelled meanwhile
                self._is_taken = True
                self._ask()
                place.set_result(None)  # the task goes on in the next turn
                return


class TurnQueues:
    """The queues of one node."""

    __slots__ = ("calls", "more", "slices")

    def __init__(self) -> None:
        self.calls = CallQueue()
        self.more = CallQueue()
        self.slices = SliceQueue()


ByLoop = MutableMapping[asyncio.AbstractEventLoop, TurnQueues]
NODES: Final[ContextVar[ByLoop]] = ContextVar("queues", default=WeakKeyDictionary())  # noqa: B039
"""The queues of each loop. Where several nodes share a loop, each has a mapping of its own in its context."""


def turn_queues(loop: asyncio.AbstractEventLoop) -> TurnQueues:
    """The queues of the node that runs on `loop`."""
    by_loop = NODES.get()
    found = by_loop.get(loop)
    if found is None:
        found = by_loop[loop] = TurnQueues()
    return found
