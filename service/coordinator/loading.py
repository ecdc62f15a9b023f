"""Load of a shard from its log, which a thread reads and the event loop replays in slices."""

from __future__ import annotations

from collections.abc import Callable

from service.base.errors import CorruptionError
from service.base.slices import Slice
from service.coordinator.metrics import RuntimeMetrics
from service.coordinator.ports import PartitionLog
from service.coordinator.records import StoredBatch
from service.coordinator.shard import Shard


async def load(
    shard: Shard,
    log: PartitionLog,
    buffer_bytes: int,
    is_wanted: Callable[[], bool],
    metrics: RuntimeMetrics,
) -> bool:
    """Replay all of `log`, up to its end; return False if the shard was no longer wanted before that.

    Raises `CorruptionError` with the position, `StorageError` and `RequestError`.
    """
    piece = Slice()
    offset = log.start_offset
    journal = shard.journal
    while offset < log.end_offset:
        end_offset = log.end_offset
        # Committed records need no undo log; the high watermark may move while the log is read.
        journal.commit(min(log.high_watermark, end_offset))
        batches = await log.read(offset, buffer_bytes)
        if not is_wanted():
            return False
        for batch in batches:
            if batch.marker is not None:
                if piece.is_over():
                    await piece.next_turn()
                    if not is_wanted():
                        return False
                journal.at(batch.base_offset)
                shard.replay_marker(batch.producer_id, batch.producer_epoch, batch.marker)
            elif not await _replay(shard, batch, offset, is_wanted, piece):
                return False
            metrics.loaded_records += len(batch.rows) >> 3
            offset = batch.last_offset + 1
        if not batches:  # compaction left nothing of the log's last batches
            offset = end_offset
    journal.commit(min(log.high_watermark, log.end_offset))
    return True


async def _replay(
    shard: Shard, batch: StoredBatch, from_offset: int, is_wanted: Callable[[], bool], piece: Slice
) -> bool:
    """Replay `batch` from `from_offset` on; return False if the shard is no longer wanted."""
    replay, at = shard.replay, shard.journal.at
    producer_id, producer_epoch = batch.producer_id, batch.producer_epoch
    for offset, key, value in batch.records(from_offset):
        if piece.is_over():
            await piece.next_turn()
            if not is_wanted():
                return False
        at(offset)
        try:
            replay(offset, key, value, producer_id, producer_epoch)
        except CorruptionError as e:
            raise CorruptionError(f"the record at offset {offset} does not parse: {e}") from e
    return True
