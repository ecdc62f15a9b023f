"""The log ends of a directory, kept in memory that outlives the process.

A killed process loses nothing that it has written, but the directory may have changed since: a restored
backup, or a disk that was rolled back or cloned, has the same boot id. So each log's end is also kept in
memory that lasts until the machine restarts (`base.shared_memory`), and is written before a record becomes
visible. The next process registers with the epoch of the one before (`LogDir.previous_epoch`) only if every
log ends there or later.

Words of the block, all signed 64-bit: a head of `_HEAD`, then slots of `_SLOT` words each.

    head    version, boot id (two words), broker epoch (-1: nothing may be concluded)
    slot    topic id (two words), partition + 1 (0: free), end offset, active segment's base offset and bytes

A process that dies between two words leaves a slot with at least what was acknowledged. Owned by the event
loop, except `distrust`, which any thread may call.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from hashlib import sha256
from typing import Final, NamedTuple
from uuid import UUID

from service.base.shared_memory import SharedBlock
from service.base.types import TopicIdPartition

_log = logging.getLogger(__name__)

_VERSION: Final = 1
_HEAD: Final = 8
_SLOT: Final = 6
_FIRST_SLOTS: Final = 64
_EPOCH: Final = 3
NO_EPOCH: Final = -1

LogKey = tuple[UUID, int]


class KeptEnd(NamedTuple):
    """A log's end offset, and its active segment's base offset and bytes."""

    end_offset: int
    base_offset: int
    size: int


class KeptEnds:
    """The ends of one directory's logs. ``epoch``: of the broker process that kept them."""

    def __init__(self, block: SharedBlock, boot_id: str) -> None:
        """`boot_id`: of this run of the machine; ends kept in another run are ignored."""
        self._block = block
        self._words = block.words
        self._slots: dict[LogKey, int] = {}
        self._free: list[int] = []
        self._is_trusted = True
        self.before: dict[LogKey, KeptEnd] = {}
        """ends that the previous process kept, of logs that are not opened yet"""
        boot = sha256(boot_id.encode()).digest()
        self._boot = tuple(int.from_bytes(boot[at : at + 8], "big", signed=True) for at in (0, 8))
        if boot_id and len(self._words) >= _HEAD and tuple(self._words[:3]) == (_VERSION, *self._boot):
            self.epoch = self._words[_EPOCH]
            self._find()
        else:
            self.epoch = NO_EPOCH
        if self.epoch < 0:
            self.reset()

    def _find(self) -> None:
        for at in range(_HEAD, len(self._words) - _SLOT + 1, _SLOT):
            high, low, number, *end = self._words[at : at + _SLOT]
            if not number:
                self._free.append(at)
                continue
            topic_id = UUID(int=(high & _MASK) << 64 | (low & _MASK))
            self._slots[topic_id, number - 1] = at
            self.before[topic_id, number - 1] = KeptEnd(*end)

    def reset(self) -> None:
        """Drop all ends, and start with an empty block. Nothing is kept where no memory can be had for it."""
        self.epoch = NO_EPOCH
        self.before.clear()
        self._slots.clear()
        self._free.clear()
        if len(self._words) < _HEAD:
            self._grow(_FIRST_SLOTS)
        if len(self._words) < _HEAD:
            return
        self._words[_EPOCH] = NO_EPOCH
        for at in range(_HEAD, len(self._words) - _SLOT + 1, _SLOT):
            self._words[at + 2] = 0
            self._free.append(at)
        self._words[0], self._words[1], self._words[2] = _VERSION, *self._boot

    def _grow(self, slots: int) -> None:
        """Grow the block to `slots` slots, if there is memory."""
        begin = max(len(self._words), _HEAD)
        try:
            self._block.grow(_HEAD + slots * _SLOT)
        except OSError as e:
            self._words = self._block.words
            self.distrust(f"no memory for {slots} log ends: {e}")
            return
        self._words = self._block.words
        self._free += range(begin, len(self._words) - _SLOT + 1, _SLOT)

    def registered(self, epoch: int) -> None:
        """Note the epoch of this broker process, to which the ends belong from now on."""
        if self._is_trusted and len(self._words):
            self.epoch = self._words[_EPOCH] = epoch

    def distrust(self, why: str) -> None:
        """Keep the next process from using the ends that this one kept."""
        self._is_trusted = False
        if len(self._words):
            self._words[_EPOCH] = NO_EPOCH
        _log.warning("the next start of this broker counts as a start after record loss: %s", why)

    def keep(self, tip: TopicIdPartition, end: KeptEnd) -> Callable[[int, int, int], None] | None:
        """Keep a log's end, which is `end` now. Returns a function to call with (end, base, bytes) before a
        record becomes visible; None if nothing is kept."""
        key = tip.topic_id, tip.partition
        before = self.before.get(key)
        if before is not None and end.end_offset < before.end_offset:
            self.distrust(f"{tip} ends at {end.end_offset}, before it ended at {before.end_offset}")
        else:
            self.before.pop(key, None)
        at = self._slots.get(key)
        if at is None:
            if not self._free:
                self._grow(2 * max(len(self._slots), _FIRST_SLOTS))
            if not self._free:
                return None
            at = self._slots[key] = self._free.pop()
            high, low = divmod(tip.topic_id.int, 1 << 64)
            self._words[at], self._words[at + 1] = _signed(high), _signed(low)

        def set_end(end_offset: int, base_offset: int, size: int, at: int = at) -> None:
            words = self._words
            words[at + 4] = base_offset
            words[at + 5] = size
            words[at + 3] = end_offset

        set_end(*end)
        self._words[at + 2] = tip.partition + 1
        return set_end

    def forget(self, tip: TopicIdPartition) -> None:
        """Free the slot of a log that is not in use any more."""
        at = self._slots.pop((tip.topic_id, tip.partition), None)
        if at is not None:
            self._words[at + 2] = 0
            self._free.append(at)

    def missing(self, known: Collection[LogKey]) -> Mapping[LogKey, KeptEnd]:
        """Return ends that the previous process had and this one has not found, except logs in `known`."""
        return {key: end for key, end in self.before.items() if key not in known}

    def close(self, *, is_clean: bool) -> None:
        """Close the block; with `is_clean` remove it, as the clean-shutdown marker is enough for the next
        process."""
        if is_clean:
            self._block.remove()
        self._words = []
        self._block.close()


_MASK: Final = (1 << 64) - 1


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word
