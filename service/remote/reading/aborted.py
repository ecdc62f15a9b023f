"""Aborted transactions of a range of the remote log, by the indexes of its segments. [P]

A row of a transaction index lies in the segment that holds the abort marker, so the rows that matter to a
range are in the segments of that range and in those behind it, up to where every transaction that began below
the range's end has ended. A row may say so itself: its last stable offset is not below that end (Kafka
`TransactionIndex.collectAbortedTxns`). So may a segment, by `open_from`, where the oldest transaction begins
that is open at its end; where an older writer left that out, its producer snapshot tells.

Where no segment of the range has a batch of a transaction, no row matters. Their footers, which a read of
these segments needs anyway, tell that.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from operator import le, lt
from typing import Final, NamedTuple

from service.base.errors import CorruptionError
from service.base.types import NO_OFFSET, Buffer
from service.records.producer_snapshot import decode_rows
from service.records.txn_rows import ROW, VERSION, AbortedEntry
from service.remote.format.manifest import Load, Manifest, SegmentEntry, live_segments
from service.remote.format.segment_object import OpenSegment
from service.remote.stores.errors import naming

MOST_AT_ONCE: Final = 512
"""Rows that are looked at where nobody may be held up."""
_MARKER: Final = struct.Struct(">q")
_MARKER_AT: Final = 18
_FIELDS: Final = ROW.format.removeprefix(">")
_ROWS: Final = 1024
_MANY: Final = struct.Struct(">" + _FIELDS * _ROWS)


class AbortedRows(NamedTuple):
    """Aborted transactions that overlap a range, in the order of their markers, none twice.

    `is_complete`: none that matters ends behind the remote log; otherwise the local index has the others,
    from the remote log's end on.
    """

    rows: list[AbortedEntry]
    is_complete: bool


class TooManyRows(Exception):
    """More rows are to be looked at than the search was told to look at."""


class AbortedIndex:
    """Rows of one segment's transaction index, verified, and kept as bytes: a list takes eight times as
    much."""

    __slots__ = ("_count", "_data")

    def __init__(self, data: Buffer, base_offset: int, last_offset: int) -> None:
        """Verify `data`: whole rows of version 0 whose markers rise from `base_offset` to `last_offset`; a
        transaction begins before its marker, and its last stable offset is not behind that.

        Raises `CorruptionError`.
        """
        self._data = memoryview(data)
        self._count, torn = divmod(len(data), ROW.size)
        if torn:
            raise CorruptionError(f"transaction index: {len(data)} bytes are not whole rows of {ROW.size}")
        before = base_offset - 1
        for at in range(0, self._count, _ROWS):
            before = self._check(at, before)
        if self._count and before > last_offset:
            raise CorruptionError(
                f"transaction index: a marker at {before}, the segment ends at {last_offset}"
            )

    def _check(self, at: int, before: int) -> int:
        """Verify up to `_ROWS` rows from `at` on, by columns: the loops run in C. Return the last marker."""
        count = min(_ROWS, self._count - at)
        layout = _MANY if count == _ROWS else struct.Struct(">" + _FIELDS * count)
        fields = layout.unpack_from(self._data, at * ROW.size)
        versions, producers, firsts, markers, stable = (fields[n::5] for n in range(5))
        behind = [marker + 1 for marker in markers]
        is_sound = (
            not any(versions)
            and min(map(min, (producers, firsts, stable))) >= 0
            and all(map(lt, firsts, markers))
            and all(map(lt, (before, *markers), markers))
            and all(map(le, stable, behind))
        )
        if not is_sound:
            self._refuse(at, count, before)
        return int(markers[-1])

    def _refuse(self, at: int, count: int, before: int) -> None:
        """Name the first of these rows that is wrong."""
        for number in range(at, at + count):
            version, *fields = ROW.unpack_from(self._data, number * ROW.size)
            row = AbortedEntry._make(fields)
            is_sound = (
                version == VERSION
                and row.producer_id >= 0
                and 0 <= row.first_offset < row.last_offset
                and before < row.last_offset
                and 0 <= row.last_stable_offset <= row.last_offset + 1
            )
            if not is_sound:
                raise CorruptionError(
                    f"transaction index: row {number}, of version {version}, after offset {before}: {row}"
                )
            before = row.last_offset

    def ended_from(self, offset: int) -> Iterator[AbortedEntry]:
        """Yield the rows whose markers are at `offset` or behind it."""
        for number in range(self._first_from(offset), self._count):
            _, *fields = ROW.unpack_from(self._data, number * ROW.size)
            yield AbortedEntry._make(fields)

    def _first_from(self, offset: int) -> int:
        low, high = 0, self._count
        while low < high:
            middle = (low + high) // 2
            (marker,) = _MARKER.unpack_from(self._data, middle * ROW.size + _MARKER_AT)
            if marker < offset:
                low = middle + 1
            else:
                high = middle
        return low


class Indexes(NamedTuple):
    """Parts of segments that a search needs. Each may raise, and is then called again when it goes on."""

    open: Callable[[SegmentEntry], OpenSegment]
    rows: Callable[[OpenSegment], AbortedIndex]
    snapshot: Callable[[OpenSegment], bytes]


class AbortedSearch:
    """A search for the aborted transactions that overlap ``[fetch_offset, bound)``.

    `go_on` may be called again after an error: it continues with the segment that it was at.
    """

    def __init__(self, fetch_offset: int, bound: int) -> None:
        self._bound = bound
        self._next = fetch_offset
        self._found: list[AbortedEntry] = []
        self._has_transactions = False
        self.most_rows: int | None = MOST_AT_ONCE
        """rows to look at before `TooManyRows` is raised; None: all"""

    def go_on(self, manifest: Manifest, load: Load, indexes: Indexes) -> AbortedRows:
        """Return the rows. Raises `TooManyRows`, `CorruptionError`, and what `load` and `indexes` raise."""
        for entry in live_segments(manifest, load, self._next):
            segment = indexes.open(entry)
            found, is_over = self._rows(segment, indexes)
            is_over = is_over or self._is_last(segment, indexes)
            self._found += found
            self._next = entry.last_offset + 1
            if is_over:
                return AbortedRows(self._found, is_complete=True)
        return AbortedRows(self._found, is_complete=False)

    def _rows(self, segment: OpenSegment, indexes: Indexes) -> tuple[list[AbortedEntry], bool]:
        """Return the rows of one segment, and whether those behind it do not matter."""
        entry, footer = segment
        found: list[AbortedEntry] = []
        if footer.transactional_batch_count == 0:
            return found, False
        if entry.base_offset < self._bound:
            self._has_transactions = True
        if not footer.sections["txn_index"].length:
            return found, False
        rows = indexes.rows(segment).ended_from(max(self._next, entry.base_offset))
        for number, row in enumerate(rows):
            if number == self.most_rows:
                raise TooManyRows
            if row.first_offset < self._bound:
                found.append(row)
            if row.last_stable_offset >= self._bound:
                return found, True
        return found, False

    def _is_last(self, segment: OpenSegment, indexes: Indexes) -> bool:
        """Return whether the segment ends at or behind the bound, and nothing that began before that is open
        there."""
        if segment.entry.last_offset + 1 < self._bound:
            return False
        return not self._has_transactions or open_at_end(segment, indexes.snapshot) >= self._bound


def open_at_end(segment: OpenSegment, snapshot: Callable[[OpenSegment], bytes]) -> int:
    """Return the least first offset of a transaction that is open at a segment's end, the offset behind it
    where none is; 0 where nothing tells: the segment has neither `open_from` nor a producer snapshot.

    `snapshot` is called where an older writer left `open_from` out. `CorruptionError` where it is none.
    """
    for known in (segment.entry.open_from, segment.footer.open_from):
        if known != NO_OFFSET:
            return known
    if not segment.footer.sections["producer_snapshot"].length:
        return 0
    with naming(segment.entry.key):
        firsts = (row.txn_first_offset for row in decode_rows(snapshot(segment)))
        return min((first for first in firsts if first >= 0), default=segment.entry.last_offset + 1)
