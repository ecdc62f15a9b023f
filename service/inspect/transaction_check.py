"""Check of what objects say of transactions, one after the other along a chain. [P]

The producer snapshot of an object is the state at the base of the next one. From there its batches give each
row of its transaction index, and the transactions that are open at its end. What was open at the base of the
first object of a chain, or behind one that cannot be read, is known as far as its own rows and its snapshot
tell: then the last stable offsets in its rows may lie below its base.

Of an object from which compaction has taken records the rows are checked for their form alone.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import zip_longest

from service.base.errors import CorruptionError
from service.base.types import NO_OFFSET
from service.records.open_spans import RowReplay
from service.records.producer_snapshot import ProducerRow, decode_rows
from service.records.scan import BatchScan
from service.records.txn_rows import AbortedEntry
from service.records.txn_rows import decode_rows as decode_entries
from service.remote.format.segment_object import MAX_TXN_INDEX_BYTES, Footer
from service.remote.reading.aborted import AbortedIndex

ReadSection = Callable[[str], bytes]
"""Returns a section of the object, verified, by its name."""


class TransactionCheck:
    """Check of one chain: `begin` each object, `add` its batches, then `finish`."""

    def __init__(self) -> None:
        self._end = NO_OFFSET
        self._snapshot: list[ProducerRow] | None = None
        """producers at `_end`; None: not known"""
        self._object: _ObjectCheck | None = None
        self._of_wrong: dict[int, list[ProducerRow]] = {}
        """producers at the base of objects that were found wrong, which may be checked once more"""

    def begin(self, footer: Footer, section: ReadSection) -> None:
        """Begin with an object. `CorruptionError` for a section that does not parse."""
        identity = footer.identity
        before = self._of_wrong.get(identity.base_offset)
        if self._snapshot is not None and self._end == identity.base_offset:
            before = self._snapshot
        if not identity.base_offset:
            before = []
        self._snapshot, self._end, self._object = None, identity.last_offset + 1, None
        if before is not None:
            self._of_wrong[identity.base_offset] = before
        self._object = _ObjectCheck(footer, before, section)

    def add(self, run: BatchScan, data: memoryview) -> None:
        """Account for the object's next verified batches."""
        assert self._object is not None
        self._object.replay.add(run, data)

    def finish(self) -> None:
        """Raise `CorruptionError`, which names what is wrong, unless the object's rows are its batches'."""
        assert self._object is not None
        one, self._object = self._object, None
        one.finish()
        self._snapshot = one.producers
        self._of_wrong.pop(one.base_offset, None)


class _ObjectCheck:
    """Check of one object. `replay` is to get all of its batches."""

    def __init__(self, footer: Footer, before: list[ProducerRow] | None, section: ReadSection) -> None:
        self._footer = footer
        self.base_offset = footer.identity.base_offset
        self._is_base_known = before is not None
        snapshot = section("producer_snapshot")
        self.producers = decode_rows(snapshot) if snapshot else None
        self._opened = {
            row.producer_id: row.txn_first_offset for row in self.producers or () if row.txn_first_offset >= 0
        }
        data = section("txn_index")
        if len(data) > MAX_TXN_INDEX_BYTES:
            raise CorruptionError(f"a transaction index of {len(data)} bytes")
        base = 0 if footer.open_from == NO_OFFSET else self.base_offset
        self._rows = list(AbortedIndex(data, base, footer.identity.last_offset).ended_from(self.base_offset))
        self.replay = RowReplay(self._producers_before() if before is None else before)

    def _producers_before(self) -> list[ProducerRow]:
        """Return the producers whose transactions are known to be open at the base."""
        firsts = {row.producer_id: row.first_offset for row in reversed(self._rows)}
        firsts = {**self._opened, **firsts}
        return [
            ProducerRow(producer_id, 0, -1, -1, 0, -1, -1, first)
            for producer_id, first in firsts.items()
            if first < self.base_offset
        ]

    def finish(self) -> None:
        identity = self._footer.identity
        if self._footer.record_count <= identity.last_offset - identity.base_offset:
            return
        expected = decode_entries(self.replay.rows)
        for number, (row, right) in enumerate(zip_longest(self._rows, expected)):
            if not self._is_right(row, right):
                raise CorruptionError(f"transaction index: row {number} is {row}, its batches give {right}")
        opened = dict(self.replay.spans)
        if self.producers is not None and self._opened != opened:
            raise CorruptionError(
                f"producer snapshot: transactions {self._opened} are open, by its batches {opened}"
            )
        open_from = min(opened.values(), default=identity.last_offset + 1)
        is_older = not self._is_base_known and self._footer.open_from < self.base_offset
        if self._footer.open_from not in (NO_OFFSET, open_from) and not is_older:
            raise CorruptionError(
                f"transactions are open from {open_from} on by its batches, the footer says "
                f"{self._footer.open_from}"
            )

    def _is_right(self, row: AbortedEntry | None, right: AbortedEntry | None) -> bool:
        if row == right or row is None or right is None or self._is_base_known:
            return row == right
        # An older transaction that was committed here leaves no trace but this.
        return row[:3] == right[:3] and row.last_stable_offset < self.base_offset
