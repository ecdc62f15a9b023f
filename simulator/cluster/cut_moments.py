"""Moments at which a keeper begins a cut: clients are busy then, as nothing else shows whether it is torn.

A cut is torn by what happens within the few milliseconds in which brokers close their gates and note their
ends. Keepers take cuts at even intervals, so the next moment is known before it comes. `CutAttempt` is
patched, in the history's own process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from service.tiering.cuts.round import CutAttempt
from simulator.loop import Loop
from simulator.process import Process

LEAD_S: Final = 0.03
"""so long before an expected cut its moment begins: what changes the metadata takes that long"""
_NEAR_S: Final = 0.008
"""so long before it clients begin"""
_LASTS_S: Final = 0.03
"""longer than gates are closed, and slow links deliver"""
_SHORTEST_S: Final = 0.1
_RESTS_S: Final = 0.5
"""least time between two moments: attempts that follow a void one are not looked at"""
_LONGEST_S: Final = 4.0


class CutMoments:
    """The moments of one world. Made and used on its own loop."""

    def __init__(self, loop: Loop, clients: Process) -> None:
        self.number = 0
        """of the newest one"""
        self._loop, self._clients = loop, clients
        self._at_s = self._until_s = 0.0
        self._began_s = float("-inf")
        self._begun = 0
        self._woken = asyncio.Event()
        _watch(self._begins)

    @property
    def is_now(self) -> bool:
        return self._loop.now_s < self._until_s

    async def next(self, within_s: float) -> bool:
        """Wait until there is one, at most so long; return whether there is."""
        if not self.is_now:
            try:
                async with asyncio.timeout(within_s):
                    await self._woken.wait()
            except TimeoutError:
                return False
        return True

    async def near(self) -> None:
        """Wait until the cut is about to begin."""
        await asyncio.sleep(max(self._at_s - _NEAR_S - self._loop.now_s, 0.0))

    def _begins(self) -> None:
        """A keeper asks the first broker; expect the next moment as long after this one as this is after the
        one before."""
        now_s = self._loop.now_s
        after_s, self._began_s = now_s - self._began_s, now_s
        self._begun += 1
        self._come(now_s)
        if _SHORTEST_S < after_s < _LONGEST_S:
            self._clients.run(self._loop.call_later, after_s - LEAD_S, self._expect, self._begun)

    def _expect(self, begun: int) -> None:
        if begun == self._begun:
            self._come(self._loop.now_s + LEAD_S)

    def _come(self, at_s: float) -> None:
        now_s = self._loop.now_s
        if self._until_s <= now_s < self._until_s + _RESTS_S:
            return
        self.number += not self.is_now
        self._at_s, self._until_s = at_s, at_s + _LASTS_S
        self._woken.set()
        self._woken.clear()


_told: Callable[[], None] | None = None
_start = CutAttempt.start


def _watch(told: Callable[[], None]) -> None:
    global _told
    _told = told
    CutAttempt.start = _watched  # type: ignore[method-assign]


def _watched(self: CutAttempt, now_ms: int) -> Any:
    if _told is not None:
        _told()
    return _start(self, now_ms)
