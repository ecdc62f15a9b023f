"""Open transactions of a log, and the rows of its transaction index that follow from its batches. [P]

Kafka `ProducerStateManager.lastStableOffset`, `completeTxn`. A span is the part of a log between the first
batch of a producer's transaction and the marker that ends it. An abort marker that ends a span gives one row:
producer, first offset, the marker's offset, and the last stable offset: the first offset of the oldest span
that is still open, else the offset behind the marker. Without a span a marker gives none.

A producer snapshot has the spans that are open at its offset. So the snapshot at the base of a segment and
the segment's batches give all its rows, byte for byte (`RowReplay`, invariant X12); compaction alone makes a
difference, as it takes an aborted transaction's records away before the row.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Final

from service.base.types import Buffer
from service.records.batch import CONTROL_FLAG, TRANSACTIONAL_FLAG, read_header
from service.records.markers import marker_of
from service.records.producer_snapshot import ProducerRow
from service.records.scan import BatchScan
from service.records.txn_rows import AbortedEntry, encode_row

_OF_TRANSACTIONS: Final = TRANSACTIONAL_FLAG | CONTROL_FLAG


class OpenSpans:
    """Open transactions: producer id and first offset of each, oldest first. Every method takes O(1)."""

    __slots__ = ("_firsts",)

    def __init__(self, spans: Iterable[tuple[int, int]] = ()) -> None:
        """`spans`: (producer id, first offset), in any order."""
        self._firsts = OrderedDict(sorted(spans, key=_first_offset))

    def __len__(self) -> int:
        return len(self._firsts)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._firsts.items())

    def oldest(self) -> tuple[int, int] | None:
        """Return producer id and first offset of the oldest one, None if none is open."""
        return next(iter(self._firsts.items()), None)

    def begin(self, producer_id: int, offset: int) -> None:
        """Note a transactional batch at `offset`, behind all others: it begins a span unless the producer has
        one."""
        self._firsts.setdefault(producer_id, offset)

    def end(self, producer_id: int) -> int | None:
        """End the producer's span; returns its first offset, None if there was none."""
        return self._firsts.pop(producer_id, None)

    def aborted(self, producer_id: int, first: int, marker: int) -> AbortedEntry:
        """Return the row of a span that began at `first` and was ended by an abort marker at `marker`."""
        oldest = self.oldest()
        return AbortedEntry(producer_id, first, marker, marker + 1 if oldest is None else oldest[1])


def _first_offset(span: tuple[int, int]) -> int:
    return span[1]


class RowReplay:
    """Rows of the aborted transactions of a segment, from its batches.

    ``spans``: those open behind the last batch; ``rows``: of the abort markers so far, as `encode_row` has
    them.
    """

    def __init__(self, snapshot: Iterable[ProducerRow]) -> None:
        """`snapshot`: the producers at the segment's base offset (`producer_snapshot.decode_rows`)."""
        self.spans = OpenSpans(
            (row.producer_id, row.txn_first_offset) for row in snapshot if row.txn_first_offset >= 0
        )
        self.rows = bytearray()

    def add(self, run: BatchScan, data: Buffer) -> None:
        """Account for the next verified batches, whose positions count in `data` (`scan.scan_pieces`).

        `CorruptionError` for a marker that does not parse.
        """
        if not run.batches or max(run.attributes) < TRANSACTIONAL_FLAG:
            return
        view = memoryview(data)
        for position, attributes in zip(run.positions, run.attributes, strict=True):
            if not attributes & _OF_TRANSACTIONS:
                continue
            header = read_header(view, position)
            producer_id = header.producer_id
            if producer_id < 0:
                continue
            if not header.is_control:
                self.spans.begin(producer_id, header.base_offset)
                continue
            marker = marker_of(view, header)
            first = None if marker is None else self.spans.end(producer_id)
            if first is not None and marker is not None and not marker.is_commit:
                self.rows += encode_row(self.spans.aborted(producer_id, first, header.base_offset))
