"""Fetches that wait for bytes: operations of the purgatory, on partitions or on a fetch session.

A waiting fetch is woken when enough bytes were appended to its partitions, when one of them changed in a way
that it must report, when its remote read has ended, or at its deadline: whichever comes first. It then reads
again from the start, so it holds no data that could be stale.

Owned by the event loop, except that `FetchWait.end_threadsafe` may be called from any thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable

from service.base.purgatory import ENOUGH, Operation, Purgatory
from service.base.turn_queues import turn_queues


class FetchWait(Operation):
    """One fetch that waits for more bytes.

    It may watch its keys before it is known how many bytes are missing, while the fetch reads its partitions
    one by one in several turns of the loop: what comes to those that are read already counts.

    The caller that completes it continues first: `then` is called in a later turn of the loop, in the order
    of completion, and as many as fit into a turn.
    """

    __slots__ = ("_has_begun", "_loop", "_missing_bytes", "_purgatory", "_then", "was_changed")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        purgatory: Purgatory,
        then: Callable[[], None],
    ) -> None:
        super().__init__()
        self._loop = loop
        self._purgatory = purgatory
        self._then = then
        self._missing_bytes = 0
        self._has_begun = False
        self.was_changed = False
        """a change other than more bytes, which the fetch must report"""

    def happened(self, key: Hashable, amount: int) -> bool:
        if amount >= ENOUGH:
            self.was_changed = True
        self._missing_bytes -= amount
        return self._missing_bytes <= 0 and self._has_begun

    def begin(self, missing_bytes: int) -> None:
        """Wait for `missing_bytes`, of which some may have come since the operation watches its keys."""
        self._missing_bytes += missing_bytes
        self._has_begun = True
        if self._missing_bytes <= 0:
            self.end()

    def completed(self, *, expired: bool) -> None:
        turn_queues(self._loop).calls.add(self._then)

    def end(self) -> None:
        """End the wait, if it is not over."""
        self._purgatory.complete(self)

    def end_threadsafe(self, _: object = None) -> None:
        """Call `end` on the loop, from another thread; does nothing if the loop has closed."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.end)
