"""Chunks in memory under one account: cached, on their way here, and on their way to clients. [P]

A chunk is found by any block it holds. It is *held* while responses send slices of it, and *wanted* while a
stream has it for its current chunk: the part that it has not read yet would have to come again. When room is
needed, first goes what a stream has read to its end, then the least recently used, and what is wanted only
when there is nothing else. What is held does not go at all, as that would free nothing.

Small slices of large chunks are copied: the copy is what the account has then, not the chunk. So is a slice
when chunks that are held would take more than a quarter of the budget, unless it is most of its chunk.

>>> cache = ChunkCache(budget_bytes=100)
>>> slot = Slot(chunk=None, keys=("a", "b"), size=40)
>>> cache.put(slot)
>>> cache.reserve(50)
>>> cache.get("b") is slot, cache.used_bytes, cache.has_room(50), cache.has_room(51)
(True, 90, True, False)
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any, Final

SHARES: Final = 32
"""One response may hold this part of what is left of the half of the budget that is for responses: however
many take it and read nothing, there is something left for the next one.
"""
_LEAST_SHARES: Final = 1024
"""No share is less than this part of the budget, as long as there is as much."""
_COPIED_BYTES: Final = 64 << 10
"""Slices below that are always copied: it costs less than keeping account of a chunk."""


@dataclass(slots=True, eq=False)
class Slot:
    """One chunk in the account: `keys` are those of its blocks, `size` its bytes.

    `holds` counts responses that send slices of it, `readers` the streams that have not read all of it yet.
    """

    chunk: Any
    keys: tuple[Hashable, ...]
    size: int
    holds: int = 0
    readers: int = 0
    is_cached: bool = False
    is_consumed: bool = False


class ChunkCache:
    """The account of one reader. Not thread-safe: `Flights` guards it with its lock."""

    def __init__(self, budget_bytes: int) -> None:
        self._budget = budget_bytes
        self._slots: dict[Hashable, Slot] = {}
        self._fresh: OrderedDict[int, Slot] = OrderedDict()
        self._consumed: OrderedDict[int, Slot] = OrderedDict()
        self.cached_bytes = 0
        self.in_flight_bytes = 0
        self.held_bytes = 0
        """Chunks that are held, each counted once, cached or not."""
        self.copied_bytes = 0
        self.wanted_bytes = 0
        """Chunks that streams have not read to the end, each counted once."""
        self._evicted_bytes = 0  # held, and no longer cached

    @property
    def used_bytes(self) -> int:
        """All that the account has."""
        return self.cached_bytes + self._evicted_bytes + self.in_flight_bytes + self.copied_bytes

    @property
    def sending_bytes(self) -> int:
        """What responses keep in memory."""
        return self.held_bytes + self.copied_bytes

    def get(self, key: Hashable) -> Slot | None:
        """The chunk that holds this block, used just now."""
        slot = self._slots.get(key)
        if slot is not None:
            self._queue(slot).move_to_end(id(slot))
        return slot

    def __contains__(self, key: Hashable) -> bool:
        return key in self._slots

    def put(self, slot: Slot) -> None:
        """Cache a chunk that has arrived; others go for it, or it goes itself where all room is taken."""
        for key in slot.keys:
            before = self._slots.get(key)
            if before is not None:
                self._drop(before)
            self._slots[key] = slot
        slot.is_cached, slot.is_consumed = True, False
        self.cached_bytes += slot.size
        if slot.holds:
            self._evicted_bytes -= slot.size
        if slot.readers:
            self.wanted_bytes += slot.size
        self._fresh[id(slot)] = slot
        self._make_room()

    def drop(self, key: Hashable) -> None:
        """The chunk that holds this block goes, if it is here."""
        if (slot := self._slots.get(key)) is not None:
            self._drop(slot)

    def has_room(self, size: int) -> bool:
        """Whether `size` more bytes may be on their way, if need be for others that nobody wants or holds.

        A quarter of the budget may be on its way even so, or one chunk that is larger: else nobody went on.
        """
        room = self._budget - self.sending_bytes - self.wanted_bytes
        return self.in_flight_bytes + size <= max(room, self._budget // 4) or not self.in_flight_bytes

    def reserve(self, size: int) -> None:
        """`size` bytes are on their way here from now on."""
        self.in_flight_bytes += size
        self._make_room()

    def unreserve(self, size: int) -> None:
        self.in_flight_bytes -= size

    # Responses.

    def share(self) -> int:
        """Bytes that one more response may have; 0 when responses hold all that they may."""
        left = self._budget // 2 - self.sending_bytes
        if left <= 0:
            return 0
        return max(left // SHARES, min(left, self._budget // _LEAST_SHARES), 1)

    def is_to_be_copied(self, slot: Slot, size: int) -> bool:
        """Whether a slice of `size` bytes should rather be copied than hold its chunk."""
        if size < _COPIED_BYTES and size < slot.size:
            return True
        if slot.holds or 2 * size >= slot.size:
            return False
        return self.held_bytes + slot.size > self._budget // 4

    def hold(self, slot: Slot) -> None:
        if not slot.holds:
            self.held_bytes += slot.size
            if not slot.is_cached:
                self._evicted_bytes += slot.size
        slot.holds += 1

    def let_go(self, slots: Iterable[Slot], copied: int) -> None:
        """A response is out, or nobody wants it any more."""
        self.copied_bytes -= copied
        for slot in slots:
            slot.holds -= 1
            if not slot.holds:
                self.held_bytes -= slot.size
                if not slot.is_cached:
                    self._evicted_bytes -= slot.size

    def copy(self, size: int) -> None:
        """`size` bytes were copied for a response."""
        self.copied_bytes += size
        self._make_room()

    # Streams.

    def move(self, before: Slot | None, after: Slot | None, *, consumed: bool) -> None:
        """A stream goes on from `before` in `after`; `consumed` when it has read `before` to its end."""
        if before is after:
            return
        if after is not None:
            after.readers += 1
            if after.readers == 1 and after.is_cached:
                self.wanted_bytes += after.size
        if before is not None:
            before.readers -= 1
            if not before.readers and before.is_cached:
                self.wanted_bytes -= before.size
            if consumed:
                self.consumed(before)

    def consumed(self, slot: Slot) -> None:
        """Somebody has read it to its end: it goes before those that nobody has."""
        if not slot.is_consumed:
            slot.is_consumed = True
            if self._fresh.pop(id(slot), None) is not None:
                self._consumed[id(slot)] = slot

    def clear(self) -> None:
        for slot in [*self._fresh.values(), *self._consumed.values()]:
            self._drop(slot)

    def _queue(self, slot: Slot) -> OrderedDict[int, Slot]:
        return self._consumed if slot.is_consumed else self._fresh

    def _make_room(self) -> None:
        while self.used_bytes > self._budget:
            slot = self._next_to_go()
            if slot is None:
                return
            self._drop(slot)

    def _next_to_go(self) -> Slot | None:
        wanted = None
        for queue in (self._consumed, self._fresh):
            for slot in queue.values():
                if slot.holds:
                    continue
                if not slot.readers:
                    return slot
                wanted = wanted or slot
        return wanted

    def _drop(self, slot: Slot) -> None:
        slot.is_cached = False
        self.cached_bytes -= slot.size
        if slot.readers:
            self.wanted_bytes -= slot.size
        if slot.holds:
            self._evicted_bytes += slot.size
        self._queue(slot).pop(id(slot), None)
        for key in slot.keys:
            if self._slots.get(key) is slot:
                del self._slots[key]
