"""Proof of what a segment's object says of transactions, beside the walk that verifies its batches.

Rows of aborted transactions have no checksum, and one that is lost shows aborted records as committed. The
producer snapshot at the segment's base and its batches give all of its rows, byte for byte, and the
transactions that are open at its end (`open_spans.RowReplay`). So the index beside the log must be that, or
it is built anew before anything is uploaded (invariant X12).

Compaction takes records away and leaves rows and snapshots as they are: of a segment with gaps in its offsets
the index is checked as far as its form tells. Runs on an `offload` thread; changes no file.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final, NamedTuple

from service.base.errors import CorruptionError
from service.base.types import NO_OFFSET, Buffer
from service.records.batch import TRANSACTIONAL_FLAG
from service.records.open_spans import RowReplay
from service.records.producer_snapshot import ProducerRow, decode_rows, encode_rows
from service.records.scan import BatchScan
from service.records.txn_rows import encode_row
from service.remote.format.segment_object import MAX_TXN_INDEX_BYTES
from service.remote.reading.aborted import AbortedIndex
from service.remote.stores.errors import naming
from service.tiering.ports import Sealed

log = logging.getLogger(__name__)

MAX_SNAPSHOT_BYTES: Final = 64 << 20
"""A larger snapshot does not belong to a segment."""


class WrongRows(CorruptionError):
    """The transaction index of a segment is not that of its batches; `rows` are the right ones."""

    def __init__(self, path: Path | None, rows: bytes) -> None:
        super().__init__(f"{path} is not the transaction index of its log")
        self.rows = rows


class Transactions(NamedTuple):
    """Sections of an object that tell of transactions, and its `open_from`."""

    txn_index: bytes
    producer_snapshot: bytes
    open_from: int


class TransactionProof:
    """Replay of one segment's transactions, from its base on: `add` its batches, then `finish`.

    Of the snapshot at the base nothing is read as long as no batch is of a transaction.
    """

    def __init__(self, segment: Sealed, from_offset: int) -> None:
        """`from_offset`: where the copy begins, the segment's base offset or a later border of batches."""
        self._segment = segment
        self._from_offset = from_offset
        self._replay: RowReplay | None = None
        self._records = 0
        self._rows_before = 0

    def add(self, run: BatchScan, data: Buffer) -> None:
        """Account for the next verified batches. `CorruptionError`: a marker does not parse, or nothing tells
        which transactions were open before."""
        self._records += sum(run.record_counts)
        if self._replay is None:
            if max(run.attributes, default=0) < TRANSACTIONAL_FLAG:
                return
            self._replay = RowReplay(self._producers_at_base())
        self._replay.add(run, data)

    def begin_copy(self) -> None:
        """Note that what follows is copied; what was added before lies below the copy."""
        self._rows_before = 0 if self._replay is None else len(self._replay.rows)

    def _producers_at_base(self) -> list[ProducerRow]:
        path = self._segment.base_snapshot_path
        data = self._segment.side_file(path, MAX_SNAPSHOT_BYTES)
        if data:
            with naming(str(path)):
                return decode_rows(data)
        if self._segment.base_offset:
            raise CorruptionError(
                f"{self._segment.log_file.path}: its transactions cannot be told, as there is no producer "
                f"snapshot at its base"
            )
        return []

    def finish(self, transactional_batches: int) -> Transactions:
        """Return the sections; `transactional_batches` are those of the copy.

        Raises `WrongRows`, and `CorruptionError` for a damaged file.
        """
        segment = self._segment
        data = segment.side_file(segment.txn_index_path, MAX_TXN_INDEX_BYTES)
        producers = self._producers()
        if self._is_compacted:
            rows, opened = self._checked(data), _open(producers or ())
        else:
            rows, opened = self._proved(data), self._open_at_end(producers)
            producers = None if producers is None else self._with_spans(producers, opened)
        has_transactions = bool(transactional_batches or opened)
        open_from = min(opened.values(), default=segment.last_offset + 1) if has_transactions else NO_OFFSET
        snapshot = b"" if producers is None else encode_rows(producers)
        return Transactions(rows, snapshot, open_from)

    @property
    def _is_compacted(self) -> bool:
        return self._records <= self._segment.last_offset - self._segment.base_offset

    def _producers(self) -> list[ProducerRow] | None:
        """Return the producers at the segment's end; None where there is no file, which the format allows."""
        path = self._segment.producer_snapshot_path
        data = self._segment.side_file(path, MAX_SNAPSHOT_BYTES)
        if not data:
            return None
        with naming(str(path)):
            return decode_rows(data)

    def _proved(self, data: bytes) -> bytes:
        rows = b"" if self._replay is None else bytes(self._replay.rows)
        if data != rows:
            self._refuse_unknown(data, rows)
            raise WrongRows(self._segment.txn_index_path, rows)
        return rows[self._rows_before :]

    def _refuse_unknown(self, data: bytes, rows: bytes) -> None:
        """Raise `CorruptionError` for a row of a transaction that began before the segment, and of which the
        snapshot at the base says nothing: one of the two is wrong, and nothing here tells which."""
        segment = self._segment
        try:
            found = AbortedIndex(data, segment.base_offset, segment.last_offset)
        except CorruptionError:
            return
        known = {row.last_offset for row in AbortedIndex(rows, 0, segment.last_offset).ended_from(0)}
        for row in found.ended_from(0):
            if row.first_offset < segment.base_offset and row.last_offset not in known:
                raise CorruptionError(
                    f"{segment.txn_index_path}: {row} begins before the segment, and "
                    f"{segment.base_snapshot_path} does not know it"
                )

    def _checked(self, data: bytes) -> bytes:
        segment = self._segment
        with naming(str(segment.txn_index_path)):
            index = AbortedIndex(data, segment.base_offset, segment.last_offset)
        return b"".join(map(encode_row, index.ended_from(self._from_offset)))

    def _open_at_end(self, producers: list[ProducerRow] | None) -> dict[int, int]:
        if self._replay is not None:
            return dict(self._replay.spans)
        if producers is None and not self._segment.base_offset:
            return {}
        return _open(self._producers_at_base() if producers is None else producers)

    def _with_spans(self, producers: list[ProducerRow], opened: dict[int, int]) -> list[ProducerRow]:
        """Return the producers with these open transactions, which say more than their snapshot does."""
        if _open(producers) == opened:
            return producers
        path = self._segment.producer_snapshot_path
        unknown = opened.keys() - {row.producer_id for row in producers}
        if unknown:
            raise CorruptionError(f"{path} lacks producer {min(unknown)}, which has a transaction open")
        log.warning("%s has other open transactions than its log: %s, not %s", path, _open(producers), opened)
        return [row._replace(txn_first_offset=opened.get(row.producer_id, NO_OFFSET)) for row in producers]


def _open(producers: list[ProducerRow] | tuple[()]) -> dict[int, int]:
    return {row.producer_id: row.txn_first_offset for row in producers if row.txn_first_offset >= 0}
