"""The purgatory of an event loop: one timer of the loop drives all deadlines.

Deadlines come and go with every fetch, so the loop's timer moves only for an earlier deadline; if it fires
before the next deadline, it is set again. The ends of long waits are rounded up to a grid: otherwise
thousands of idle connections would wake the node one by one.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Hashable, Iterable
from typing import Final

from service.base.purgatory import Operation, Purgatory

_EXACT_BITS: Final = 9
"""Waits of more bits (of ms) end on a grid, late by less than 1/256 of their length."""
_STOOD_STILL_S: Final = 1.0
_READ_FIRST_S: Final = 0.5
"""Delay of all deadlines after a standstill, to read first what peers sent meanwhile."""


class Timers:
    """`Purgatory` with timeouts in seconds of the loop's clock. Owned by the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.purgatory = Purgatory(int(loop.time() * 1000))
        self._handle: asyncio.TimerHandle | None = None
        self._set_for_ms = 0
        self._is_put_off = False

    def watch(self, operation: Operation, keys: Iterable[Hashable], timeout_s: float) -> None:
        """Let `operation` wait for events on `keys`, for at least `timeout_s` seconds and little more."""
        self.purgatory.watch(operation, keys)
        self.set_deadline(operation, timeout_s)

    def set_deadline(self, operation: Operation, timeout_s: float) -> None:
        """Let an operation that waits without a deadline wait for `timeout_s` seconds and little more."""
        due_ms = math.ceil((self._loop.time() + timeout_s) * 1000)
        coarse_bits = int(timeout_s * 1000).bit_length() - _EXACT_BITS
        if coarse_bits > 0:
            due_ms = -(-due_ms >> coarse_bits) << coarse_bits
        self.purgatory.set_deadline(operation, due_ms)
        if self._handle is None or due_ms < self._set_for_ms:
            self._set()

    def _set(self) -> None:
        """Schedule `_due` for the next deadline, unless it is scheduled for an earlier time."""
        next_ms = self.purgatory.next_ms
        if next_ms is None or (self._handle is not None and self._set_for_ms <= next_ms):
            return
        if self._handle is not None:
            self._handle.cancel()
        self._set_for_ms = next_ms
        self._handle = self._loop.call_at(next_ms / 1000, self._due)

    def _due(self) -> None:
        now_s = self._loop.time()
        if now_s - self._set_for_ms / 1000 > _STOOD_STILL_S and not self._is_put_off:
            # After a stop of the process or the machine every member's session would seem to be over.
            self._is_put_off = True
            self._handle = self._loop.call_at(now_s + _READ_FIRST_S, self._due)
            return
        # The loop may fire early, within its clock's resolution; the deadline is due anyway.
        self._handle, self._is_put_off = None, False
        try:
            self.purgatory.advance(max(self._set_for_ms, int(self._loop.time() * 1000)))
        finally:
            self._set()
