"""Where the logs of a directory ended, kept in memory that outlives the process.

A killed process loses nothing that it has written, but who says that the directory is still what it wrote? A
boot id does not: a backup restored, a disk rolled back or cloned bear the same one. So each log's end is kept
beside the disk, in memory that goes with the machine's run (`base.shared_memory`), and it is written before
anybody is told of a record. The next process registers as the one before (`LogDir.previous_epoch`) only where
every log ends there or later.

Words of the block, all signed 64-bit: a head of `_HEAD`, then slots of `_SLOT` words each.

    head    version, boot id (two words), broker epoch (-1: nothing may be concluded)
    slot    topic id (two words), partition + 1 (0: free), end offset, active segment's base offset and bytes

A process that dies between two words leaves a slot that says no less than was acknowledged, or more. Owned by
the event loop, but for `distrust`, which any thread may call.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from hashlib import sha256
from typing import Final, NamedTuple
from uuid import UUID

from service.base.shared_memory import Block
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
    """Where a log ended, and its active segment's first offset and bytes."""

    end_offset: int
    base_offset: int
    size: int


class KeptEnds:
    """The ends of one directory's logs. ``epoch``: of the broker process that kept them."""

    def __init__(self, block: Block, boot_id: str) -> None:
        """`boot_id`: of this run of the machine; what another one kept does not count."""
        self._block = block
        self._words = block.words
        self._slots: dict[LogKey, int] = {}
        self._free: list[int] = []
        self._is_trusted = True
        self.before: dict[LogKey, KeptEnd] = {}
        """what the process before kept, of logs that were not seen yet"""
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
        """What was kept is of no use: begin anew. Where memory is short nothing is kept."""
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
        """Have so many slots, where there is memory for them."""
        begin = max(len(self._words), _HEAD)
        try:
            self._block.grow(_HEAD + slots * _SLOT)
        except OSError as e:
            self._words = self._block.words
            self.distrust(f"there is no memory for {slots} log ends: {e}")
            return
        self._words = self._block.words
        self._free += range(begin, len(self._words) - _SLOT + 1, _SLOT)

    def registered(self, epoch: int) -> None:
        """From now on the ends are those of this broker process."""
        if self._is_trusted and len(self._words):
            self.epoch = self._words[_EPOCH] = epoch

    def distrust(self, why: str) -> None:
        """The next process must not conclude anything from what this one kept."""
        self._is_trusted = False
        if len(self._words):
            self._words[_EPOCH] = NO_EPOCH
        _log.warning("the next start of this broker counts as one after a loss of records: %s", why)

    def keep(self, tip: TopicIdPartition, end: KeptEnd) -> Callable[[int, int, int], None] | None:
        """A log is here, and ends there. What is to be called with its end, base and bytes before anybody is
        told of a record; None where nothing is kept."""
        key = tip.topic_id, tip.partition
        before = self.before.get(key)
        if before is not None and end.end_offset < before.end_offset:
            self.distrust(f"{tip} ends at {end.end_offset}, and did at {before.end_offset}")
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

        def reached(end_offset: int, base_offset: int, size: int, at: int = at) -> None:
            words = self._words
            words[at + 4] = base_offset
            words[at + 5] = size
            words[at + 3] = end_offset

        reached(*end)
        self._words[at + 2] = tip.partition + 1
        return reached

    def forget(self, tip: TopicIdPartition) -> None:
        """The log is to go."""
        at = self._slots.pop((tip.topic_id, tip.partition), None)
        if at is not None:
            self._words[at + 2] = 0
            self._free.append(at)

    def missing(self, known: Collection[LogKey]) -> Mapping[LogKey, KeptEnd]:
        """What the process before had and this one has not found whole, but for those `known` as offline."""
        return {key: end for key, end in self.before.items() if key not in known}

    def close(self, *, is_clean: bool) -> None:
        """`is_clean`: the directory's own marker says all that the next process has to know."""
        if is_clean:
            self._block.remove()
        self._words = []
        self._block.close()


_MASK: Final = (1 << 64) - 1


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word
