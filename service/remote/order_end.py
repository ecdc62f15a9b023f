"""End of an order to erase keys in a partition. [P]"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from service.base.types import NO_LEADER_EPOCH

if TYPE_CHECKING:
    from service.records.scan import BatchScan
    from service.remote.format.manifest import SegmentEntry


class OrderEnd(NamedTuple):
    """End of an order in a partition: records below `offset` go, of leader epochs up to `leader_epoch`.

    What a later epoch has below `offset` was written after the order, in the place of records that an unclean
    election lost: it stays, and so the order ends in a log where such an epoch begins. Epochs rise with
    offsets. Without an epoch (-1) nothing tells such records apart.

    >>> end = OrderEnd(100, 5)
    >>> end.within([(3, 0), (5, 40), (7, 80)]), end.within([(3, 0)]), OrderEnd(100).within([(7, 80)])
    (80, 100, 100)
    """

    offset: int
    leader_epoch: int = NO_LEADER_EPOCH

    def within(self, epochs: Iterable[tuple[int, int]]) -> int:
        """Return the offset below which records go from a log or an object with these epochs, as (epoch,
        first offset), rising."""
        if self.leader_epoch < 0:
            return self.offset
        later = (start for epoch, start in epochs if epoch > self.leader_epoch)
        return min(self.offset, next(later, self.offset))

    def in_batches(self, batches: BatchScan) -> int:
        """Return the offset below which records of these batches, at least one, go."""
        epochs = batches.leader_epochs
        if self.leader_epoch < 0 or epochs[-1] <= self.leader_epoch:
            return self.offset
        return min(self.offset, batches.base_offsets[bisect_right(epochs, self.leader_epoch)])

    def reaches(self, entry: SegmentEntry) -> bool:
        """Return whether records of an object may go; of one behind it none do if not."""
        return entry.base_offset < self.within(entry.leader_epochs)
