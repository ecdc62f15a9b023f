"""A shard's state out of its log: read on a thread, replayed on the loop in slices."""

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
"""32 bytes of a value are a microsecond: an assignment of thousands of partitions is one record."""
_SLICE_S: Final = SLICE_US / 1e6
"""A slice ends by the clock, too, for what records cost is not known before they are replayed. Where the
clock stands still, as in a simulation, the estimates above end it.
"""


async def load(
    shard: Shard,
    log: PartitionLog,
    buffer_bytes: int,
    is_wanted: Callable[[], bool],
    metrics: RuntimeMetrics,
    now: Callable[[], float],
) -> bool:
    """Replay all of `log`, up to its end; False where the shard was no longer wanted before that. `now` is
    the loop's clock, in seconds.

    Raises `CorruptionError`, which says where, `StorageError` and `RequestError`.
    """
    pace = _Pace(shard, is_wanted, now)
    offset = log.start_offset
    journal = shard.journal
    while offset < log.end_offset:
        end_offset = log.end_offset
        # What is committed already needs no undo; the mark may move while the log is read.
        journal.commit(min(log.high_watermark, end_offset))
        batches = await log.read(offset, buffer_bytes)
        if not is_wanted():
            return False
        pace.begin()
        for batch in batches:
            if batch.marker is not None:
                if pace.is_over(_MARKER_US):
                    await pace.next_turn()
                    if not is_wanted():
                        return False
                journal.at(batch.base_offset)
                shard.replay_marker(batch.producer_id, batch.producer_epoch, batch.marker)
            elif not await pace.replay(batch, offset):
                return False
            metrics.loaded_records += len(batch.rows) >> 3
            offset = batch.last_offset + 1
        if not batches:  # compaction left nothing of the log's last batches
            offset = end_offset
    journal.commit(min(log.high_watermark, log.end_offset))
    return True


class _Pace:
    """Replays what is read, in slices."""

    def __init__(self, shard: Shard, is_wanted: Callable[[], bool], now: Callable[[], float]) -> None:
        self._shard = shard
        self._is_wanted = is_wanted
        self._now = now
        self._piece = Slice()
        self._until_s = now() + _SLICE_S

    async def replay(self, batch: StoredBatch, from_offset: int) -> bool:
        """Replay the batch from `from_offset` on; False where nobody wants it any more."""
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
        """Whether a record that takes so long is for the next turn."""
        return self._piece.charge(work_us) or self._now() > self._until_s

    def begin(self) -> None:
        """In a turn that has just begun."""
        self._until_s = self._now() + _SLICE_S

    async def next_turn(self) -> None:
        await self._piece.next_turn()
        self.begin()
