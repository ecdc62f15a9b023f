"""Blocks of records that were appended and are not replayed yet. Owned by the event loop."""

from __future__ import annotations

from collections import deque

from service.base.timeline import Journal
from service.coordinator.batching import RecordBlock


class UnreplayedBlocks:
    """``blocks``: in the order of the log, each with the offset of its first record.

    A block is replayed when it is committed, without undo; or before the next decision that may read its
    state.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.blocks: deque[tuple[int, RecordBlock]] = deque()

    def replay_all(self) -> None:
        """Replay all: a decision reads the newest state."""
        while self.blocks:
            offset, block = self.blocks.popleft()
            self._journal.at(offset)
            block.replay(offset, is_committed=False)

    def replay_committed(self, committed: int) -> None:
        """Replay committed blocks, also one that is committed in part."""
        blocks, at = self.blocks, self._journal.at
        while blocks and blocks[0][0] < committed:
            offset, block = blocks.popleft()
            last = offset + block.count - 1
            at(last if last < committed else offset)
            block.replay(offset, is_committed=last < committed)

    def revert_to(self, offset: int) -> None:
        """Drop the blocks from `offset` on: they will never be in the log."""
        while self.blocks and self.blocks[-1][0] >= offset:
            self.blocks.pop()
