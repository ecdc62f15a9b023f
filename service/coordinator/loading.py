"""Load of a shard from its log, which a thread reads and the event loop replays in slices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from service.base.errors import CorruptionError
from service.base.slices import Slice
from service.base.turn_queues import SLICE_US
from service.coordinator.metrics import RuntimeMetrics
from service.coordinator.ports import PartitionLog
from service.coordinator.records import StoredBatch
from service.coordinator.shard import Shard

_RECORD_US: Final = 4
_MARKER_US: Final = 20
_SIZE_SHIFT: Final = 5
"""32 bytes of a value cost a microsecond: an assignment of thousands of partitions is one record."""
_SLICE_S: Final = SLICE_US / 1e6
"""Time limit of a slice: the cost of a record is not known before its replay. In a simulation, where the
clock does not advance, only the estimates above end a slice.
"""


async def load(
    shard: Shard,
    log: PartitionLog,
    buffer_bytes: int,
    is_wanted: Callable[[], bool],
    metrics: RuntimeMetrics,
    now: Callable[[], float],
) -> bool:
    """Replay all of `log`, up to its end; returns False if the shard was no longer wanted before that. `now`
    is the loop's clock, in seconds.

    Raises `CorruptionError` with the position, `StorageError` and `RequestError`.
    """
    replayer = _Replayer(shard, is_wanted, now)
    offset = log.start_offset
    journal = shard.journal
    while offset < log.end_offset:
        end_offset = log.end_offset
        # Committed records need no undo log; the high watermark may move while the log is read.
        journal.commit(min(log.high_watermark, end_offset))
        batches = await log.read(offset, buffer_bytes)
        if not is_wanted():
            return False
        replayer.begin()
        for batch in batches:
            if batch.marker is not None:
                if replayer.is_over(_MARKER_US):
                    await replayer.next_turn()
                    if not is_wanted():
                        return False
                journal.at(batch.base_offset)
                shard.replay_marker(batch.producer_id, batch.producer_epoch, batch.marker)
            elif not await replayer.replay(batch, offset):
                return False
            metrics.loaded_records += len(batch.rows) >> 3
            offset = batch.last_offset + 1
        if not batches:  # compaction left nothing of the log's last batches
            offset = end_offset
    journal.commit(min(log.high_watermark, log.end_offset))
    return True


class _Replayer:
    """Replays the batches of a log in slices."""

    def __init__(self, shard: Shard, is_wanted: Callable[[], bool], now: Callable[[], float]) -> None:
        self._shard = shard
        self._is_wanted = is_wanted
        self._now = now
        self._piece = Slice()
        self._until_s = now() + _SLICE_S

    async def replay(self, batch: StoredBatch, from_offset: int) -> bool:
        """Replay the batch from `from_offset` on; returns False if the shard is no longer wanted."""
        replay, at = self._shard.replay, self._shard.journal.at
        producer_id, producer_epoch = batch.producer_id, batch.producer_epoch
        for offset, key, value in batch.records(from_offset):
            if self.is_over(_RECORD_US + (len(value or b"") >> _SIZE_SHIFT)):
                await self.next_turn()
                if not self._is_wanted():
                    return False
            at(offset)
            try:
                replay(offset, key, value, producer_id, producer_epoch)
            except CorruptionError as e:
                raise CorruptionError(f"the record at offset {offset} does not parse: {e}") from e
        return True

    def is_over(self, work_us: int) -> bool:
        """Return whether a record that costs `work_us` belongs to the next turn."""
        return self._piece.charge(work_us) or self._now() > self._until_s

    def begin(self) -> None:
        """Begin a slice in a new turn."""
        self._until_s = self._now() + _SLICE_S

    async def next_turn(self) -> None:
        await self._piece.next_turn()
        self.begin()
