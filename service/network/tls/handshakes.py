"""Handshakes of a node: which may be under way, and the threads that do their steps.

A step costs 0.2 to 2 ms of a processor, so it runs on one of two threads, where OpenSSL lets others go on.
The last one of TLS 1.3 takes 0.05 ms, less than to hand it over: the loop does it, a few in a turn.
At most `most` are under way over all listeners. Beyond that a connection waits, unread: first those of
addresses that have none under way, in the order in which they came. An address that has none takes the place
of a handshake whose peer has been silent for a second: of the address that has the most, and of these the one
that has been silent longest.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, Final, Protocol

from service.base.turn_queues import turn_queues

_SILENT_S: Final = 1.0
_MOST_ENDS: Final = 16
"""Handshakes that the loop ends in one turn."""


class Handshaker(Protocol):
    """Connection whose handshake is to be made."""

    @property
    def address(self) -> str:
        """The peer's address, or the network that counts as one (`addresses.source_of`)."""

    @property
    def silent_since_s(self) -> float | None:
        """Time of the loop since which the peer's next bytes are awaited; None while a step runs."""

    def begin(self) -> None:
        """Start the handshake: its turn has come."""

    def refuse(self, reason: str) -> None:
        """Close the connection."""


class Handshakes:
    """Owned by the event loop."""

    def __init__(self, pool: Executor | None, most: int) -> None:
        """`pool`: None for that of the loop."""
        self._pool = pool
        self._most = most
        self._under_way: dict[Handshaker, None] = {}
        """in order of their beginnings"""
        self._by_address: Counter[str] = Counter()
        """of those under way"""
        self._first: dict[str, dict[Handshaker, None]] = {}
        self._then: dict[str, dict[Handshaker, None]] = {}
        """waiting connections by address: of those without and with a handshake under way"""
        self._ends = 0
        """handshakes that the loop has ended in this turn"""
        self._again: asyncio.TimerHandle | None = None
        """when room is looked for again"""

    @property
    def under_way(self) -> int:
        return len(self._under_way)

    @property
    def waiting(self) -> int:
        return sum(len(line) for lines in (self._first, self._then) for line in lines.values())

    def enter(self, one: Handshaker) -> None:
        """Begin the handshake now or in its turn."""
        if len(self._under_way) < self._most:
            self._begin(one)
            return
        is_first = not self._by_address[one.address]
        lines = self._first if is_first else self._then
        lines.setdefault(one.address, {})[one] = None
        if is_first:
            self._make_room()

    def leave(self, one: Handshaker) -> None:
        """Note that the handshake is done or given up, or that the connection does not wait any more."""
        address = one.address
        if one in self._under_way:
            del self._under_way[one]
            self._by_address[address] -= 1
            if not self._by_address[address]:
                del self._by_address[address]
                if (line := self._then.pop(address, None)) is not None:
                    self._first[address] = line
            self._admit()
            return
        for lines in (self._first, self._then):
            if (line := lines.get(address)) is not None:
                line.pop(one, None)
                if not line:
                    del lines[address]

    def run(self, step: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Run a step on a thread."""
        return asyncio.get_running_loop().run_in_executor(self._pool, step, *args)

    def may_end(self) -> bool:
        """Return whether the loop has time for the last step of a handshake in this turn, and count it."""
        if not self._ends:
            turn_queues(asyncio.get_running_loop()).calls.add(self._turn_is_over)
        self._ends += 1
        return self._ends <= _MOST_ENDS

    def _turn_is_over(self) -> None:
        self._ends = 0

    def _begin(self, one: Handshaker) -> None:
        self._under_way[one] = None
        self._by_address[one.address] += 1
        if (line := self._first.pop(one.address, None)) is not None:
            self._then[one.address] = line
        one.begin()

    def _admit(self) -> None:
        while len(self._under_way) < self._most and (lines := self._first or self._then):
            address = next(iter(lines))
            line = lines.pop(address)
            one = next(iter(line))
            del line[one]
            if line:
                lines[address] = line  # behind the other addresses
            self._begin(one)

    def _make_room(self) -> None:
        """Let silent handshakes give way to the addresses that wait for their first one."""
        loop = asyncio.get_running_loop()
        if self._again is None:
            self._again = loop.call_later(_SILENT_S, self._make_room_again)
        before_s = loop.time() - _SILENT_S
        silent = [
            (-self._by_address[one.address], since_s, at, one)
            for at, one in enumerate(self._under_way)
            if (since_s := one.silent_since_s) is not None and since_s < before_s
        ]
        silent.sort()
        for *_, one in silent[: len(self._first)]:
            one.refuse("its handshake is slow, and others wait for its place")

    def _make_room_again(self) -> None:
        self._again = None
        if self._first:
            self._make_room()
