"""Replay of a partition's committed batches: spans, markers and aborted rows, as lists of them say. [P]"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from service.records.batch import BatchHeader, complete_headers
from service.records.decode import records_of
from simulator.model import Violation


class MarkerSeen(NamedTuple):
    """A marker: its offset, its producer, its coordinator's epoch, and how it ends."""

    offset: int
    producer_id: int
    epoch: int
    coordinator_epoch: int
    is_commit: bool


class Span(NamedTuple):
    """A transaction of one partition: the offsets of its records, and its marker; None while it is open."""

    producer_id: int
    epoch: int
    offsets: tuple[int, ...]
    marker: MarkerSeen | None


Row = tuple[int, int, int, int]
"""An aborted transaction: producer id, first offset, last offset, LSO."""


def _marker_of(row: Row) -> int:
    return row[2]


def _is_rest_of(found: Row, whole: Row, offsets: tuple[int, ...], start: int) -> bool:
    """Return whether a row leaves out nothing but what lies below `start`."""
    first, stable = found[1], found[3]
    has_all_records = first in offsets and all(one >= first for one in offsets if one >= start)
    return (
        (found[0], found[2]) == (whole[0], whole[2])
        and (first == whole[1] or (whole[1] < start and has_all_records))
        and (stable == whole[3] or (whole[3] < start and whole[3] < stable <= whole[2] + 1))
    )


class Replay:
    """Transactions of a partition by its committed batches, from offset 0 on."""

    def __init__(self) -> None:
        self.end = 0
        self.spans: list[Span] = []
        """completed ones, by markers"""
        self.rows: list[Row] = []
        """aborted ones"""
        self.markers: dict[int, list[MarkerSeen]] = {}
        """by producer id"""
        self.open: dict[int, tuple[int, list[int]]] = {}
        """by producer id: epoch and offsets of its transaction"""
        self.values: dict[int, bytes] = {}
        """transactional records, by offset"""

    @property
    def first_unstable(self) -> int | None:
        """First offset of the oldest open transaction."""
        return min((offsets[0] for _, offsets in self.open.values()), default=None)

    def take(self, batch: bytes, name: str) -> MarkerSeen | list[tuple[int, bytes]]:
        """Take the next batch; return its marker, or its transactional records. Raises `Violation` (X9)."""
        header = next(iter(complete_headers(batch)))
        self.end = header.next_offset
        if header.is_control:
            return self._marker(batch, header, name)
        if not header.is_transactional:
            return []
        records = [(one.offset, one.value or b"") for one in records_of(batch, header)]
        epoch, offsets = self.open.setdefault(header.producer_id, (header.producer_epoch, []))
        if epoch != header.producer_epoch:
            raise Violation(
                f"X7: {name}: {header.base_offset} is of epoch {header.producer_epoch} of producer "
                f"{header.producer_id}, whose transaction of epoch {epoch} is open"
            )
        offsets += [offset for offset, _ in records] or [header.base_offset]
        self.values.update(records)
        return records

    def _marker(self, batch: bytes, header: BatchHeader, name: str) -> MarkerSeen:
        record = next(iter(records_of(batch, header)))
        _, kind = struct.unpack(">hh", record.key or b"\0\0\0\2")
        _, coordinator_epoch = struct.unpack_from(">hi", record.value or b"")
        seen = MarkerSeen(
            header.base_offset, header.producer_id, header.producer_epoch, coordinator_epoch, kind == 1
        )
        before = self.markers.setdefault(header.producer_id, [])
        if before and before[-1].coordinator_epoch > coordinator_epoch:
            raise Violation(f"X9: {name}: {seen} follows {before[-1]}")
        before.append(seen)
        epoch, offsets = self.open.pop(header.producer_id, (-1, []))
        if offsets:
            self.spans.append(Span(header.producer_id, epoch, tuple(offsets), seen))
            if kind != 1:
                unstable = self.first_unstable
                stable = seen.offset + 1 if unstable is None else unstable
                self.rows.append((header.producer_id, offsets[0], seen.offset, stable))
        return seen

    def is_open_below(self, start: int) -> bool:
        """Return whether a transaction is open that began below `start`."""
        unstable = self.first_unstable
        return unstable is not None and unstable < start

    def is_open_at(self, offset: int) -> bool:
        """Return whether a transaction that began below `offset` was open there."""
        return self.is_open_below(offset) or any(
            one.offsets[0] < offset <= one.marker.offset for one in self.spans if one.marker is not None
        )

    def known_from(self, begin: int) -> tuple[list[Row], int | None]:
        """Return the rows, and the first unstable offset, by the batches from `begin` on alone."""
        seen = [
            (one.producer_id, offsets[0], one.marker)
            for one in (*self.spans, *(Span(key, *there, None) for key, there in self._open_spans()))
            if (offsets := [offset for offset in one.offsets if offset >= begin])
        ]
        rows = []
        for producer_id, first, marker in seen:
            if marker is None or marker.is_commit:
                continue
            still_open = (
                other
                for _, other, its in seen
                if other < marker.offset and (its is None or its.offset > marker.offset)
            )
            rows.append((producer_id, first, marker.offset, min(still_open, default=marker.offset + 1)))
        return rows, min((first for _, first, marker in seen if marker is None), default=None)

    def _open_spans(self) -> Iterable[tuple[int, tuple[int, tuple[int, ...]]]]:
        return ((key, (epoch, tuple(offsets))) for key, (epoch, offsets) in self.open.items())

    def are_rows(self, found: list[Row], wanted: list[Row], start: int) -> bool:
        """Return whether a replica's rows say what those of the replay say of records from `start` on.

        A replica that began at its leader's log start knows of a transaction what comes from there on.
        """
        if len(found) != len(wanted):
            return False
        spans = {one.marker.offset: one.offsets for one in self.spans if one.marker is not None}
        return all(
            one == other or _is_rest_of(one, other, spans[other[2]], start)
            for one, other in zip(sorted(found, key=_marker_of), sorted(wanted, key=_marker_of), strict=True)
        )

    def shown(self, first: int, end: int) -> Iterable[tuple[int, bytes]]:
        """Yield the transactional records from `first` to `end` that are committed, in order."""
        offsets = sorted(
            offset
            for span in self.spans
            if span.marker is not None and span.marker.is_commit
            for offset in span.offsets
            if first <= offset < end
        )
        return [(offset, self.values[offset]) for offset in offsets]
