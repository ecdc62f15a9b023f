"""Walk a log's bytes batch by batch, verify each one, and sum up what an object's footer says of them.

The same walk verifies a local file before its upload and an object in `fsck`; only `read` differs. Per-batch
work runs in the records kernel, without the GIL where it is compiled. Memory: one piece, or one batch where
that is larger, and one inflated batch (`MAX_INFLATED_BYTES`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from service.base.errors import CorruptionError
from service.base.types import NO_OFFSET, NO_TIMESTAMP, Buffer
from service.records.batch import CONTROL_FLAG, TRANSACTIONAL_FLAG
from service.records.decode import iter_records
from service.records.scan import BatchScan, ReadPiece, scan_pieces
from service.remote.format.block_table import BatchFacts, BlockTableBuilder, LogBlock
from service.remote.format.key_filter import KeyFilterBuilder, KeysOfLog, LeastTimestamps

MAX_INFLATED_BYTES: Final = 64 << 20
"""A batch that inflates beyond this is verified all the same; only its least timestamp and its keys are not
known."""

OnBatches = Callable[[BatchScan, int], None]
"""Called with every run of batches and the position in the log from which its own positions count."""


OnPieces = Callable[[BatchScan, memoryview], None]
"""Called with every run of batches and their bytes, in which its positions count."""


@dataclass(slots=True)
class ScannedLog:
    """Result of a walk. `leader_epochs` are the batches', each with its first offset.

    `transactional_batch_count` counts those with the transactional or the control bit; `newest` is (position,
    size) of the batch with the greatest timestamp. `key_filter` and `keyed_record_count` are those of
    `KeyFilterBuilder`, where a filter was wanted.
    """

    blocks: tuple[LogBlock, ...] = ()
    length: int = 0
    first_offset: int = -1
    last_offset: int = -1
    record_count: int = 0
    batch_count: int = 0
    transactional_batch_count: int = 0
    max_timestamp: int = NO_TIMESTAMP
    newest: tuple[int, int] | None = None
    leader_epochs: list[tuple[int, int]] = field(default_factory=list)
    key_filter: bytes = b""
    keyed_record_count: int | None = None


def scan_log(
    read: ReadPiece,
    start: int,
    end: int,
    *,
    first_offset: int,
    last_offset: int,
    name: str,
    block_bytes: int = 1 << 20,
    on_batches: OnBatches | None = None,
    on_pieces: OnPieces | None = None,
    with_least_timestamps: bool = True,
    with_key_filter: bool = False,
    keys: KeysOfLog | None = None,
) -> ScannedLog:
    """Verify the batches in ``[start, end)``; positions in the result count from `start`.

    One walk over the records gives least timestamps and their keys: a filter of these with `with_key_filter`,
    else `keys` gets them. With none of it wanted no records are read.

    Raises `CorruptionError` unless whole batches fill the range, every checksum holds, offsets rise within
    ``[first_offset, last_offset]`` and leader epochs never fall.
    """
    made = None
    if with_key_filter:
        keys = made = KeyFilterBuilder(end - start, last_offset - first_offset + 1, MAX_INFLATED_BYTES)
    scanner = LogScanner(
        last_offset=last_offset,
        name=name,
        block_bytes=block_bytes,
        with_least_timestamps=with_least_timestamps,
        keys=keys,
    )
    pieces = scan_pieces(read, start, end, first_offset=first_offset, name=name, piece_bytes=block_bytes)
    for batches, position, piece in pieces:
        scanner.add(batches, piece)
        if on_batches is not None:
            on_batches(batches, position)
        if on_pieces is not None:
            on_pieces(batches, piece)
    found = scanner.finish()
    if made is not None:
        found.key_filter, found.keyed_record_count = made.finish(), made.keyed_record_count
    return found


class LogScanner:
    """Sums of a log whose batches are verified elsewhere, and added run by run in order: its length need not
    be known before."""

    def __init__(
        self,
        *,
        last_offset: int,
        name: str,
        block_bytes: int = 1 << 20,
        with_least_timestamps: bool = True,
        keys: KeysOfLog | None = None,
    ) -> None:
        """Arguments as of `scan_log`."""
        self._found = ScannedLog()
        self._table = BlockTableBuilder(block_bytes)
        self._last_offset = last_offset
        self._name = name
        if keys is None and with_least_timestamps:
            keys = LeastTimestamps(MAX_INFLATED_BYTES)
        self._keys = keys

    def add(self, batches: BatchScan, piece: memoryview) -> None:
        """Add the next batches, which fill `piece`. `CorruptionError` where leader epochs fall."""
        least = NO_TIMESTAMP if self._keys is None else self._keys.add(piece, batches)
        _sum_up(self._found, self._table, batches, least, piece)

    def finish(self) -> ScannedLog:
        """Return the sums. `CorruptionError` for an offset beyond the last one."""
        found = self._found
        if found.last_offset > self._last_offset:
            raise CorruptionError(
                f"{self._name}: holds offset {found.last_offset}, beyond {self._last_offset}"
            )
        found.blocks = self._table.finish()
        return found


def _sum_up(
    found: ScannedLog, table: BlockTableBuilder, batches: BatchScan, least: int, data: memoryview
) -> None:
    newest = max(batches.max_timestamps)
    records = sum(batches.record_counts)
    first, last = batches.base_offsets[0], batches.last_offsets[-1]
    facts = BatchFacts(found.length, len(data), first, last, least, max(newest, NO_TIMESTAMP), records)
    table.add_run(facts, batches.batches, data)
    if newest > found.max_timestamp:
        index = batches.max_timestamps.index(newest)
        found.max_timestamp = newest
        found.newest = (found.length + batches.positions[index], batches.sizes[index])
    _note_epochs(found.leader_epochs, batches)
    if found.first_offset < 0:
        found.first_offset = first
    found.last_offset = last
    found.record_count += records
    found.batch_count += batches.batches
    found.transactional_batch_count += _transactional(batches)
    found.length += len(data)


def offset_of_newest(batch: Buffer, timestamp: int) -> int:
    """Return the offset of the first record with the greatest timestamp of a log, in the batch that has it;
    -1 where it cannot be found."""
    try:
        for record in iter_records(batch, include_control=True, max_inflated_bytes=MAX_INFLATED_BYTES):
            if record.timestamp == timestamp:
                return record.offset
    except CorruptionError:
        # Inflates beyond our bound, or has a record that no client could read either. The batch itself is
        # verified and belongs to the log; readers search for the offset themselves.
        return NO_OFFSET
    return NO_OFFSET


def _transactional(batches: BatchScan) -> int:
    # Counted in C: a piece may have ten thousand batches, all with the same attributes.
    kinds = Counter(batches.attributes)
    return sum(count for kind, count in kinds.items() if kind & (TRANSACTIONAL_FLAG | CONTROL_FLAG))


def _note_epochs(epochs: list[tuple[int, int]], batches: BatchScan) -> None:
    seen = batches.leader_epochs
    last = epochs[-1][0] if epochs else -1
    if min(seen) == max(seen) == last:
        return
    for epoch, offset in zip(seen, batches.base_offsets, strict=True):
        if epoch < last:
            raise CorruptionError(f"leader epoch falls from {last} to {epoch} at offset {offset}")
        if epoch > last:
            epochs.append((epoch, offset))
            last = epoch
