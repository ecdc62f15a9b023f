"""Chunks in memory under one account: cached, downloading, and being sent to clients. [P]

A chunk is found by any of its blocks. It is *held* while responses send slices of it, and *wanted* while it
is a stream's current chunk: the part not read yet would have to be downloaded again. When room is needed,
chunks that a stream has read to the end are evicted first, then the least recently used, and wanted ones only
when there are no others. Held chunks are not evicted, as that would free nothing.

Small slices of large chunks are copied: the account then has the copy, not the chunk. So is a slice when held
chunks would take more than a quarter of the budget, unless it is most of its chunk.

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
many clients take a share and read nothing, there is something left for the next one."""
_LEAST_SHARES: Final = 1024
"""No share is less than this part of the budget, as long as there is as much."""
_COPIED_BYTES: Final = 64 << 10
"""Smaller slices are always copied: that costs less than accounting for a chunk."""


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
    """The account of one reader. Not thread-safe: `DownloadManager` guards it with its lock."""

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
        self._evicted_bytes = 0  # held, but not cached any more

    @property
    def used_bytes(self) -> int:
        """All bytes of the account."""
        return self.cached_bytes + self._evicted_bytes + self.in_flight_bytes + self.copied_bytes

    @property
    def sending_bytes(self) -> int:
        """Bytes that responses hold in memory."""
        return self.held_bytes + self.copied_bytes

    def get(self, key: Hashable) -> Slot | None:
        """Return the chunk that holds this block, and mark it as used now."""
        slot = self._slots.get(key)
        if slot is not None:
            self._queue(slot).move_to_end(id(slot))
        return slot

    def __contains__(self, key: Hashable) -> bool:
        return key in self._slots

    def put(self, slot: Slot) -> None:
        """Cache a downloaded chunk; others are evicted for it, or it is, where all room is taken."""
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
        """Drop the chunk that holds this block, if it is cached."""
        if (slot := self._slots.get(key)) is not None:
            self._drop(slot)

    def has_room(self, size: int) -> bool:
        """Return whether `size` more bytes may be downloaded, if need be in place of chunks neither wanted
        nor held.

        A quarter of the budget may be in flight in any case, or one larger chunk: otherwise no read would
        progress.
        """
        room = self._budget - self.sending_bytes - self.wanted_bytes
        return self.in_flight_bytes + size <= max(room, self._budget // 4) or not self.in_flight_bytes

    def reserve(self, size: int) -> None:
        """Add `size` bytes in flight."""
        self.in_flight_bytes += size
        self._make_room()

    def unreserve(self, size: int) -> None:
        self.in_flight_bytes -= size

    # Responses.

    def share(self) -> int:
        """Return how many bytes one more response may have; 0 when responses hold all that they may."""
        left = self._budget // 2 - self.sending_bytes
        if left <= 0:
            return 0
        return max(left // SHARES, min(left, self._budget // _LEAST_SHARES), 1)

    def should_copy(self, slot: Slot, size: int) -> bool:
        """Return whether a slice of `size` bytes is better copied than its chunk held."""
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

    def release(self, slots: Iterable[Slot], copied: int) -> None:
        """Free what a response held: it was sent, or is not wanted any more."""
        self.copied_bytes -= copied
        for slot in slots:
            slot.holds -= 1
            if not slot.holds:
                self.held_bytes -= slot.size
                if not slot.is_cached:
                    self._evicted_bytes -= slot.size

    def copy(self, size: int) -> None:
        """Count `size` bytes copied for a response, which `release` takes off again; chunks are evicted for
        them."""
        self.copied_bytes += size
        self._make_room()

    # Streams.

    def move(self, before: Slot | None, after: Slot | None, *, consumed: bool) -> None:
        """Move a stream from `before` to `after`; `consumed` when it has read `before` to its end."""
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
                self.mark_consumed(before)

    def mark_consumed(self, slot: Slot) -> None:
        """Mark the chunk as read to its end: it is evicted before those that are not."""
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
