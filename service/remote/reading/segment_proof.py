"""Verify one segment object against its footer and its manifest entry: for `firn fsck` and for audits.

It verifies every section's and block's checksum, and every batch: checksum, order of offsets, leader epochs,
counts; where the footer has them, least timestamps and keys (`key_proof`). Reads are ranges of a few MiB (or
one block where that is larger).

The leader epochs of an uploaded segment are those of its batches. A rewritten one has the epochs of the run
that it took the place of, also those of which no batch is left: there each batch lies where its epoch does.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from operator import itemgetter
from typing import Final

from crc32c import crc32c

from service.base.errors import CorruptionError
from service.base.types import NO_TIMESTAMP, Buffer
from service.records.scan import MAX_BATCH_BYTES, BatchScan
from service.remote.format.block_table import LogBlock
from service.remote.format.manifest import SegmentEntry
from service.remote.format.segment_object import (
    EPOCH_HISTORY,
    KEY_FILTER,
    MAX_FILTER_BYTES,
    MAX_HISTORY_BYTES,
    Footer,
    decode_epoch_history,
)
from service.remote.reading.key_proof import KeyProof
from service.remote.reading.log_scan import OnPieces, ScannedLog, scan_log

WINDOW_BYTES: Final = 8 << 20
_ENTRY_SIZES: Final = {"offset_index": 8, "time_index": 12}

Read = Callable[[int, int], Buffer]
"""(position, length) in the object -> exactly these bytes."""


def prove_segment(
    entry: SegmentEntry,
    footer: Footer,
    read: Read,
    on_batches: Callable[[memoryview], None] = lambda proved: None,
    on_pieces: OnPieces | None = None,
) -> None:
    """Read all of a segment. `on_batches` gets the records' bytes, whole batches, once they are verified;
    `on_pieces` gets them with their scan.

    Raises `CorruptionError`, and what `read` and the callbacks raise.
    """
    _prove_sections(footer, read)
    if entry.generation:
        on_pieces = _EpochRanges(entry, on_pieces).check
    keys = _key_proof(footer, read)
    epochs: list[tuple[int, int]] = []
    transactional = 0
    for window in block_windows(footer.blocks):
        begin = window[0].position
        data = memoryview(read(begin, window[-1].end - begin))
        for block in window:
            start = block.position - begin
            piece = data[start : start + block.length]
            found = _prove_block(entry.key, block, piece, epochs, on_pieces, keys)
            transactional += found.transactional_batch_count
        on_batches(data)
    if keys is not None:
        keys.check()
    if footer.transactional_batch_count not in (None, transactional):
        raise CorruptionError(
            f"{transactional} transactional batches, the footer says {footer.transactional_batch_count}"
        )
    claimed = [(epoch, max(start, epochs[0][1])) for epoch, start in entry.leader_epochs]
    if claimed != epochs and not entry.generation:
        raise CorruptionError(f"leader epochs {epochs[:4]} in the batches, {claimed[:4]} in the manifest")


def prove_sample(entry: SegmentEntry, footer: Footer, read: Read, blocks: Iterable[LogBlock]) -> None:
    """Read the sections of a segment, and some blocks as `prove_segment` reads all of them.

    Their keys have to be in the filter; whether it has others cannot be said. Raises as `prove_segment` does.
    """
    _prove_sections(footer, read)
    keys = _key_proof(footer, read)
    on_pieces = _EpochRanges(entry, None).check if entry.generation else None
    for block in blocks:
        data = memoryview(read(block.position, block.length))
        _prove_block(entry.key, block, data, [], on_pieces, keys)
    if keys is not None:
        keys.check_part()


def _prove_sections(footer: Footer, read: Read) -> None:
    for name, section in footer.sections.items():
        crc = 0
        for position in range(section.position, section.end, WINDOW_BYTES):
            crc = crc32c(read(position, min(WINDOW_BYTES, section.end - position)), crc)
        if crc != section.crc32c:
            raise CorruptionError(f"{name}: wrong checksum")
        if section.length % _ENTRY_SIZES.get(name, 1):
            raise CorruptionError(f"{name}: {section.length} bytes are not whole entries")
    history = footer.sections.get(EPOCH_HISTORY)
    if history is not None and history.length <= MAX_HISTORY_BYTES:
        decode_epoch_history(read(history.position, history.length), footer)
    elif history is not None:
        raise CorruptionError(f"an epoch history of {history.length} bytes")


def _key_proof(footer: Footer, read: Read) -> KeyProof | None:
    """Return the proof of what a footer says of keys; None where it says nothing."""
    section = footer.sections.get(KEY_FILTER)
    if section is None and footer.keyed_record_count is None:
        return None
    if section is not None and section.length > MAX_FILTER_BYTES:
        raise CorruptionError(f"a key filter of {section.length} bytes")
    return KeyProof(footer, None if section is None else bytes(read(section.position, section.length)))


class _EpochRanges:
    """Ranges of a rewritten segment's leader epochs, in which its batches have to lie."""

    def __init__(self, entry: SegmentEntry, and_then: OnPieces | None) -> None:
        self._epochs = entry.leader_epochs
        self._and_then = and_then

    def check(self, run: BatchScan, data: memoryview) -> None:
        """Raise `CorruptionError` unless each batch is of the epoch at its offsets.

        A batch without records, which stands for those that are gone, may be of any epoch that it touches.
        """
        first, last = self._at(run.base_offsets[0]), self._at(run.last_offsets[-1])
        is_one = first == last and min(run.leader_epochs) == max(run.leader_epochs) == self._epochs[first][0]
        if not is_one:
            rows = (run.base_offsets, run.last_offsets, run.leader_epochs, run.record_counts)
            for base, end, epoch, records in zip(*rows, strict=True):
                first = self._at(base)
                possible = self._epochs[first : (first if records else self._at(end)) + 1]
                if all(epoch != one for one, _ in possible):
                    raise CorruptionError(
                        f"the batch at offset {base} is of leader epoch {epoch}, not of {possible[0][0]}"
                    )
        if self._and_then is not None:
            self._and_then(run, data)

    def _at(self, offset: int) -> int:
        return max(bisect_right(self._epochs, offset, key=itemgetter(1)) - 1, 0)


def _prove_block(
    key: str,
    block: LogBlock,
    data: memoryview,
    epochs: list[tuple[int, int]],
    on_pieces: OnPieces | None,
    keys: KeyProof | None,
) -> ScannedLog:
    """Verify every batch of one block, and its row of the table. Appends to `epochs`."""
    if crc32c(data) != block.crc32c:
        raise CorruptionError(f"block at {block.position}: wrong checksum")
    found = scan_log(
        lambda position, length: data[position : position + length],
        0,
        len(data),
        first_offset=block.first_offset,
        last_offset=block.last_offset,
        name=f"{key}, block at {block.position}",
        block_bytes=len(data),
        on_pieces=on_pieces,
        with_least_timestamps=block.min_timestamp != NO_TIMESTAMP,
        keys=keys,
    )
    least = found.blocks[0].min_timestamp if block.min_timestamp != NO_TIMESTAMP else NO_TIMESTAMP
    says = (
        block.first_offset,
        block.last_offset,
        block.min_timestamp,
        block.max_timestamp,
        block.record_count,
        block.batch_count,
    )
    holds = (
        found.first_offset,
        found.last_offset,
        least,
        found.max_timestamp,
        found.record_count,
        found.batch_count,
    )
    if says != holds:
        raise CorruptionError(f"block at {block.position}: holds {holds}, the table says {says}")
    if epochs and epochs[-1][0] == found.leader_epochs[0][0]:
        del found.leader_epochs[0]
    epochs += found.leader_epochs
    for (before, _), (after, offset) in pairwise(epochs):
        if after <= before:
            raise CorruptionError(f"leader epoch falls from {before} to {after} at offset {offset}")
    return found


def block_windows(blocks: Iterable[LogBlock]) -> Iterator[list[LogBlock]]:
    """Yield runs of neighbouring blocks of up to `WINDOW_BYTES` together, at least one each."""
    window: list[LogBlock] = []
    for block in blocks:
        if block.length > MAX_BATCH_BYTES:
            raise CorruptionError(f"block at {block.position}: {block.length} bytes are too many for one")
        if window and block.end - window[0].position > WINDOW_BYTES:
            yield window
            window = []
        window.append(block)
    if window:
        yield window
