"""A shard's state out of its log: read on a thread, replayed on the loop in slices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from service.base.errors import CorruptionError
from service.base.slices import Slice
from service.coordinator.metrics import RuntimeMetrics
from service.coordinator.ports import PartitionLog
from service.coordinator.records import StoredBatch
from service.coordinator.shard import Shard

_RECORD_US: Final = 8
_SIZE_SHIFT: Final = 5
"""32 bytes of a value are a microsecond: an assignment of thousands of partitions is one record."""


async def load(
    shard: Shard,
    log: PartitionLog,
    buffer_bytes: int,
    is_wanted: Callable[[], bool],
    metrics: RuntimeMetrics,
) -> bool:
    """Replay all of `log`, up to its end; False where the shard was no longer wanted before that.

    Raises `CorruptionError`, which says where, `StorageError` and `RequestError`.
    """
    piece = Slice()
    offset = log.start_offset
    journal = shard.journal
    while offset < log.end_offset:
        end_offset = log.end_offset
        # What is committed already needs no undo; the mark may move while the log is read.
        journal.commit(min(log.high_watermark, end_offset))
        batches = await log.read(offset, buffer_bytes)
        if not is_wanted():
            return False
        for batch in batches:
            if batch.marker is not None:
                journal.at(batch.base_offset)
                shard.replay_marker(batch.producer_id, batch.producer_epoch, batch.marker)
            elif not await _replay(shard, batch, offset, piece, is_wanted):
                return False
            metrics.loaded_records += len(batch.rows) >> 3
            offset = batch.last_offset + 1
        if not batches:  # compaction left nothing of the log's last batches
            offset = end_offset
    journal.commit(min(log.high_watermark, log.end_offset))
    return True


async def _replay(
    shard: Shard, batch: StoredBatch, from_offset: int, piece: Slice, is_wanted: Callable[[], bool]
) -> bool:
    replay, at = shard.replay, shard.journal.at
    producer_id, producer_epoch = batch.producer_id, batch.producer_epoch
    for offset, key, value in batch.records(from_offset):
        if piece.charge(_RECORD_US + (len(value or b"") >> _SIZE_SHIFT)):
            await piece.next_turn()
            if not is_wanted():
                return False
        at(offset)
        try:
            replay(offset, key, value, producer_id, producer_epoch)
        except CorruptionError as e:
            raise CorruptionError(f"the record at offset {offset} does not parse: {e}") from e
    return True
