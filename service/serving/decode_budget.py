"""How much memory the decoded forms of long requests take at once: who finds no room waits, as bytes.

A decoded request takes many times its bytes, and its answer as much again. So it is weighed before it is
decoded, and begins when there is room; until then it is a frame that the listener's memory counts
(`network/buffers.py`). The least weight goes first, and what weighs little has room that the heavy ones
cannot take: a follower's fetch of a thousand partitions does not wait for a hundred requests of a hundred
thousand. Something always has room where nothing is inside.

What is inside may wait for others: a long poll for records, a commit for followers. A poll is hurried as soon
as somebody waits for its room (its client asks again). For all else there is patience: when nobody was let in
for `PATIENCE_S`, one more is, so that requests which wait for each other go on.

Owned by the loop.
"""

from __future__ import annotations

import asyncio
import heapq
from typing import Final

from service.network.request import RequestContext

ROOM_BYTES: Final = 64 << 20
LIGHT_BYTES: Final = 1 << 20
"""What weighs no more has as much room again."""
MOST_BYTES: Final = 96 << 20
"""What any message weighs at most: it is bounded in elements (`MAX_ELEMENTS`)."""
GROWTH: Final = 32
"""Bytes of memory for a byte of a request that is decoded to objects, and for its answer."""
GROWTH_BY_HAND: Final = 8
"""The same where partitions are tuples and records stay where they are."""
LOOK_S: Final = 0.1
PATIENCE_S: Final = 5.0
"""More than the greatest request takes, less than a follower has until it is out of sync."""


class DecodedMemory:
    """The room for decoded requests of one listener's dispatcher."""

    def __init__(self) -> None:
        self.in_use = 0
        self._inside: dict[RequestContext, int] = {}
        self._line: list[tuple[int, int, asyncio.Future[None], RequestContext]] = []
        self._number = 0
        self._look: asyncio.TimerHandle | None = None
        self._let_in_s = 0.0
        """when somebody was let in"""

    @property
    def waiting(self) -> int:
        """Requests that wait for room."""
        return sum(not place.done() for _, _, place, _ in self._line)

    async def enter(self, context: RequestContext, frame_bytes: int, growth: int) -> None:
        """Wait until the request of `context` may be decoded. `leave` follows, unless this was cancelled,
        or cancels itself because its peer has left already."""
        if context.ends_with_peer and context.has_left:
            raise asyncio.CancelledError
        weight = min(frame_bytes * growth, MOST_BYTES)
        if not self._line and self._has_room(weight):
            self._let_in(context, weight)
            return
        loop = asyncio.get_running_loop()
        place: asyncio.Future[None] = loop.create_future()
        self._number += 1
        heapq.heappush(self._line, (weight, self._number, place, context))
        if self._look is None:
            self._let_in_s = loop.time()
            self._look = loop.call_later(LOOK_S, self._look_at_line)
        self._go_on()
        try:
            await place
        except asyncio.CancelledError:
            if not place.cancelled():  # it was let in, and cancelled in the same turn
                self.leave(context)
            raise

    def leave(self, context: RequestContext) -> None:
        """Nothing of the decoded request is held any more."""
        self.in_use -= self._inside.pop(context)
        self._go_on()

    def _has_room(self, weight: int) -> bool:
        room = 2 * ROOM_BYTES if weight <= LIGHT_BYTES else ROOM_BYTES
        return self.in_use + weight <= room or not self.in_use

    def _let_in(self, context: RequestContext, weight: int) -> None:
        self._inside[context] = weight
        self.in_use += weight

    def _go_on(self, more: int = 0) -> None:
        """Let in those for whom there is room, and `more` of the others."""
        while self._line:
            weight, _, place, context = self._line[0]
            if place.done():  # its client has gone
                heapq.heappop(self._line)
                continue
            if not self._has_room(weight):
                if not more:
                    return
                more -= 1
            heapq.heappop(self._line)
            self._let_in(context, weight)
            self._let_in_s = asyncio.get_running_loop().time()
            place.set_result(None)

    def _look_at_line(self) -> None:
        self._look = None
        self._go_on()
        if not self._line:
            return
        loop = asyncio.get_running_loop()
        for context in list(self._inside):
            if context.hurry is not None:
                context.hurry()
        if loop.time() - self._let_in_s >= PATIENCE_S:
            self._go_on(more=1)
        self._look = loop.call_later(LOOK_S, self._look_at_line)
