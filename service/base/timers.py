"""The purgatory of an event loop: one timer of the loop's drives all deadlines.

Deadlines come and go at every fetch, so the loop's own timer is only moved when an earlier one comes; when
it goes off for nothing, it is set to what is next. Long waits end together, a little late: thousands of
connections that do nothing but wait would wake the node for each of them otherwise.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Hashable, Iterable
from typing import Final

from service.base.purgatory import Operation, Purgatory

_EXACT_BITS: Final = 9
"""Waits of more bits (of ms) end on a grid, by less than 1/256 of their time late."""
_STOOD_STILL_S: Final = 1.0
_READ_FIRST_S: Final = 0.5
"""so long after a standstill nothing is due: what peers sent meanwhile waits in the sockets"""


class Timers:
    """`Purgatory` in seconds of the loop's clock. Owned by the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.purgatory = Purgatory(int(loop.time() * 1000))
        self._handle: asyncio.TimerHandle | None = None
        self._set_for_ms = 0
        self._is_put_off = False

    def watch(self, operation: Operation, keys: Iterable[Hashable], timeout_s: float) -> None:
        """Let `operation` wait for events on `keys`, for `timeout_s` seconds and never for less, nor for much
        more."""
        due_ms = math.ceil((self._loop.time() + timeout_s) * 1000)
        coarse_bits = int(timeout_s * 1000).bit_length() - _EXACT_BITS
        if coarse_bits > 0:
            due_ms = -(-due_ms >> coarse_bits) << coarse_bits
        self.purgatory.watch(operation, keys, due_ms)
        if self._handle is None or due_ms < self._set_for_ms:
            self._set()

    def _set(self) -> None:
        """Have `_due` called when it is time. A timer that is set for an earlier time stays."""
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
            # Of a process that was stopped, or a machine, every member's session would seem to be over.
            self._is_put_off = True
            self._handle = self._loop.call_at(now_s + _READ_FIRST_S, self._due)
            return
        # The loop calls a little early, within its clock's resolution; what it was set for is due anyway.
        self._handle, self._is_put_off = None, False
        try:
            self.purgatory.advance(max(self._set_for_ms, int(self._loop.time() * 1000)))
        finally:
            self._set()
