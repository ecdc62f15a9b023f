"""Read and prove the records of tails: ranged GETs in order, whole verified batches, bounded memory.

A batch's own checksum leaves out its base offset and leader epoch, the section's does not. So a run of
batches is held back until the run behind it fits, and the last one until the section's checksum is known:
memory is two windows (`WINDOW_BYTES`), or two batches where these are larger.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from crc32c import crc32c

from service.base.errors import CorruptionError
from service.base.types import NO_LEADER_EPOCH, NO_TIMESTAMP, Buffer
from service.records.scan import BatchScan, scan_pieces
from service.remote.format.coverage import Piece
from service.remote.format.fields import saturated
from service.remote.format.tail_object import TailSection
from service.remote.stores.errors import naming
from service.remote.stores.store import ObjectStore

WINDOW_BYTES: Final = 4 << 20


class TailRun(NamedTuple):
    """Consecutive verified batches: their scan, and their bytes, in which its positions count."""

    batches: BatchScan
    data: memoryview


class SectionSums:
    """Sums over the batches of one section, as its row in the footer has them.

    Whoever writes a section and whoever proves it adds the same runs. `record_count` counts markers, too.
    """

    __slots__ = ("crc32c", "last_batch_epoch", "last_offset", "length", "max_timestamp", "record_count")

    def __init__(self) -> None:
        self.length = 0
        self.crc32c = 0
        self.record_count = 0
        self.max_timestamp = NO_TIMESTAMP
        self.last_batch_epoch = NO_LEADER_EPOCH
        self.last_offset = -1

    def add(self, batches: BatchScan, data: Buffer) -> None:
        """Add the section's next batches, at least one, and their bytes.

        Raises `CorruptionError` where leader epochs fall.
        """
        before = self.last_batch_epoch
        if not before <= batches.leader_epochs[0] or not _rises(batches.leader_epochs):
            _refuse_epochs(batches, before)
        self.length += len(data)
        self.crc32c = crc32c(data, self.crc32c)
        self.record_count += sum(batches.record_counts)
        self.max_timestamp = saturated(max(self.max_timestamp, *batches.max_timestamps))
        self.last_batch_epoch = batches.leader_epochs[-1]
        self.last_offset = batches.last_offsets[-1]


def read_section(store: ObjectStore, key: str, section: TailSection) -> Iterator[TailRun]:
    """Yield all batches of one section of the tail under `key`.

    Once the iterator is at its end the section is proved: its checksum and those of its batches, offsets that
    rise within its bounds, leader epochs that never fall, and the sums of its row. Offsets are missing only
    where the row's `record_count` says so, as compaction leaves them. Raises `CorruptionError`, which names
    the object, and the store's errors.
    """
    sums = SectionSums()
    name = f"section of {section.topic_id}/{section.partition} at {section.position}"
    held: TailRun | None = None
    with naming(key):
        for batches, _, data in scan_pieces(
            lambda position, length: store.get_range(key, position, length),
            section.position,
            section.position + section.length,
            first_offset=section.first_offset,
            name=name,
            piece_bytes=WINDOW_BYTES,
        ):
            sums.add(batches, data)
            if sums.last_offset >= section.end_offset:
                raise CorruptionError(
                    f"{name}: holds offset {sums.last_offset}, ends at {section.end_offset}"
                )
            if held is not None:
                yield held
            held = TailRun(batches, data)
        _check_sums(sums, section, name)
    if held is not None:
        yield held


_LEAST: Final = {"max_timestamp": NO_TIMESTAMP}
"""Batches of a log that is older than leader epochs have -1, which the row does not."""


def _check_sums(sums: SectionSums, section: TailSection, name: str) -> None:
    for field in ("crc32c", "record_count", "max_timestamp", "last_batch_epoch"):
        found, said = max(getattr(sums, field), _LEAST.get(field, 0)), getattr(section, field)
        if found != said:
            raise CorruptionError(f"{name}: {field} is {found}, the footer says {said}")


def read_pieces(
    store: ObjectStore, pieces: Iterable[Piece], *, last_epoch: int = NO_LEADER_EPOCH
) -> Iterator[TailRun]:
    """Yield the batches of pieces that follow each other, as `read_section` proves them.

    Each section is read whole, so that all of it is proved; batches outside of its piece are not yielded.
    The first batch may begin below the first piece, as a log may start within one. `last_epoch` is the leader
    epoch of the last batch before the first piece. Raises `CorruptionError`, too, where pieces do not touch,
    an epoch falls from one to the next, or another border lies within a batch.
    """
    at: int | None = None
    for piece in pieces:
        span = piece.span
        if at not in (None, piece.first):
            raise CorruptionError(
                f"{span.tail}: a piece begins at {piece.first}, the one before ends at {at}"
            )
        is_first, at = at is None, piece.end
        for run in read_section(store, span.tail, span.section):
            with naming(span.tail):
                wanted = within(run, piece.first, piece.end, may_begin_before=is_first)
                if wanted is None:
                    continue
                if wanted.batches.leader_epochs[0] < last_epoch:
                    _refuse_epochs(wanted.batches, last_epoch)
                last_epoch = wanted.batches.leader_epochs[-1]
            yield wanted


def within(run: TailRun, first: int, end: int, *, may_begin_before: bool = False) -> TailRun | None:
    """Return the batches with offsets from `first` to `end`, exclusive; None without any.

    Raises `CorruptionError` where a border lies within a batch; `may_begin_before`: but for the first one.
    """
    batches, data = run
    low = bisect_left(batches.last_offsets, first)
    high = bisect_left(batches.base_offsets, end)
    if low >= high:
        return None
    begins_before = batches.base_offsets[low] < first and not may_begin_before
    if begins_before or batches.last_offsets[high - 1] >= end:
        raise CorruptionError(
            f"offsets {first} to {end - 1} begin or end within a batch: these have "
            f"{batches.base_offsets[low]} to {batches.last_offsets[high - 1]}"
        )
    if (low, high) == (0, batches.batches):
        return run
    start, stop = batches.positions[low], batches.positions[high - 1] + batches.sizes[high - 1]
    positions = array("q", (position - start for position in batches.positions[low:high]))
    rest = (column[low:high] for column in batches[3:])
    return TailRun(BatchScan(batches.status, stop - start, positions, *rest), data[start:stop])


def _rises(epochs: array[int]) -> bool:
    return epochs[0] == epochs[-1] == min(epochs) == max(epochs) or list(epochs) == sorted(epochs)


def _refuse_epochs(batches: BatchScan, before: int) -> None:
    for epoch, offset in zip(batches.leader_epochs, batches.base_offsets, strict=True):
        if epoch < before:
            raise CorruptionError(f"leader epoch falls from {before} to {epoch} at offset {offset}")
        before = epoch
