"""Proof of what an object says of its records' keys: how many have one, and that its filter has them.

All keys are counted, in the walk that reads least timestamps anyway. Of each run of batches the keys of a few
records are looked for in the filter: one that says no to a key that is there would let an erasure, or a
search, pass the object over.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

from service.base.errors import CorruptionError
from service.records.batch import CONTROL_FLAG
from service.records.decode import iter_records
from service.records.erasure import filter_hash
from service.records.scan import BatchScan
from service.remote.format.key_filter import KeyFilter, KeyFilterBuilder
from service.remote.format.segment_object import Footer
from service.remote.reading.log_scan import MAX_INFLATED_BYTES

_SAMPLE: Final = 32
"""Records of each run whose keys are looked for."""


class KeyProof(KeyFilterBuilder):
    """Proof of one object: gets all of its batches, then `check` says what is wrong. It makes no filter."""

    def __init__(self, footer: Footer, key_filter: bytes | None) -> None:
        """`key_filter` is the object's section, verified; None where it has none."""
        super().__init__(0, MAX_INFLATED_BYTES)
        self._claimed = footer.keyed_record_count
        self._filter = None if key_filter is None else KeyFilter.open(key_filter)
        if self._filter is not None and not self._claimed:
            raise CorruptionError(f"a key filter, and {self._claimed} records with a key")

    def add(self, piece: memoryview, batches: BatchScan) -> int:
        """Count the keys of these batches, and look for some of them; return their least timestamp."""
        if self._filter is not None:
            self._look_for(self._filter, piece, batches)
        return super().add(piece, batches)

    def _look_for(self, known: KeyFilter, piece: memoryview, batches: BatchScan) -> None:
        for index, kind in enumerate(batches.attributes):
            if kind & CONTROL_FLAG or not batches.record_counts[index]:
                continue
            start = batches.positions[index]
            batch = bytes(piece[start : start + batches.sizes[index]])
            for record in islice(iter_records(batch, max_inflated_bytes=MAX_INFLATED_BYTES), _SAMPLE):
                if record.key is not None and not known.may_have(filter_hash(record.key)):
                    raise CorruptionError(f"key_filter: lacks the key of the record at {record.offset}")
            return

    def finish(self) -> bytes:
        """Return no filter: `check` is the result."""
        return b""

    def check(self) -> None:
        """Raise `CorruptionError` unless as many records have a key as the footer says."""
        if self.keyed_record_count != self._claimed:
            raise CorruptionError(
                f"{self.keyed_record_count} records have a key, the footer says {self._claimed}"
            )
