"""Memory budget of decoded long requests: a request that does not fit waits undecoded.

A decoded request takes many times its bytes, and its response as much again. So a request is weighed before
it is decoded, and is decoded once the budget has room. Until then it is a frame that the listener's memory
counts (`network/buffers.py`). The lightest request goes first, and light requests have a share that heavy
ones cannot use: a follower's fetch of a thousand partitions does not wait for a hundred requests of a hundred
thousand. If no request is admitted, the next one always is.

An admitted request may wait for others: a long poll for records, a commit for followers. As soon as a request
waits for room, polls are answered early (their clients poll again). If no request was admitted for
`PATIENCE_S`, one more is, beyond the budget, so that requests which wait for each other go on.

Owned by the loop.
"""

from __future__ import annotations

import asyncio
import heapq
from typing import Final

from service.network.request import RequestContext

ROOM_BYTES: Final = 64 << 20
LIGHT_BYTES: Final = 1 << 20
"""Greatest weight of a light request. Light requests may use twice `ROOM_BYTES`."""
MOST_BYTES: Final = 96 << 20
"""Greatest weight of a request: its array elements are bounded (`MAX_ELEMENTS`)."""
GROWTH: Final = 32
"""Bytes of memory per byte of a request that is decoded to objects, with its response."""
GROWTH_BY_HAND: Final = 8
"""The same if partitions become tuples and records stay in the frame."""
CHECK_S: Final = 0.1
PATIENCE_S: Final = 5.0
"""Longer than the greatest request takes, shorter than ``replica.lag.time.max.ms``."""


class DecodeBudget:
    """Memory budget of the decoded requests of one listener."""

    def __init__(self) -> None:
        self.in_use = 0
        self._admitted: dict[RequestContext, int] = {}
        self._queue: list[tuple[int, int, asyncio.Future[None], RequestContext]] = []
        self._number = 0
        self._timer: asyncio.TimerHandle | None = None
        self._admitted_s = 0.0
        """time of the last admission"""

    @property
    def waiting(self) -> int:
        """Requests that wait for room."""
        return sum(not admitted.done() for _, _, admitted, _ in self._queue)

    async def acquire(self, context: RequestContext, frame_bytes: int, growth: int) -> None:
        """Wait until the request of `context` may be decoded. The caller must call `release` afterwards,
        unless this raises `CancelledError`: the task was cancelled, or the peer has left already.
        """
        if context.ends_with_peer and context.has_left:
            raise asyncio.CancelledError
        weight = min(frame_bytes * growth, MOST_BYTES)
        if not self._queue and self._has_room(weight):
            self._admit(context, weight)
            return
        loop = asyncio.get_running_loop()
        admitted: asyncio.Future[None] = loop.create_future()
        self._number += 1
        heapq.heappush(self._queue, (weight, self._number, admitted, context))
        if self._timer is None:
            self._admitted_s = loop.time()
            self._timer = loop.call_later(CHECK_S, self._check_queue)
        self._admit_waiting()
        try:
            await admitted
        except asyncio.CancelledError:
            if not admitted.cancelled():  # admitted and cancelled in the same turn
                self.release(context)
            raise

    def release(self, context: RequestContext) -> None:
        """Give back the budget of a request whose decoded form is freed."""
        self.in_use -= self._admitted.pop(context)
        self._admit_waiting()

    def _has_room(self, weight: int) -> bool:
        room = 2 * ROOM_BYTES if weight <= LIGHT_BYTES else ROOM_BYTES
        return self.in_use + weight <= room or not self.in_use

    def _admit(self, context: RequestContext, weight: int) -> None:
        self._admitted[context] = weight
        self.in_use += weight

    def _admit_waiting(self, extra: int = 0) -> None:
        """Admit waiting requests while there is room, and `extra` more beyond it."""
        while self._queue:
            weight, _, admitted, context = self._queue[0]
            if admitted.done():  # cancelled: the client has left
                heapq.heappop(self._queue)
                continue
            if not self._has_room(weight):
                if not extra:
                    return
                extra -= 1
            heapq.heappop(self._queue)
            self._admit(context, weight)
            self._admitted_s = asyncio.get_running_loop().time()
            admitted.set_result(None)

    def _check_queue(self) -> None:
        self._timer = None
        self._admit_waiting()
        if not self._queue:
            return
        loop = asyncio.get_running_loop()
        for context in list(self._admitted):
            if context.hurry is not None:
                context.hurry()
        if loop.time() - self._admitted_s >= PATIENCE_S:
            self._admit_waiting(extra=1)
        self._timer = loop.call_later(CHECK_S, self._check_queue)
