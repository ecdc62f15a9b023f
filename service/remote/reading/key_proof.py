"""Proof of what an object says of its records' keys: how many have one, and that its filter is theirs.

The keys of all records go into a filter of the same size, in the walk that reads least timestamps anyway. A
bit that the object's filter lacks would let an erasure, or a search, pass the object over; one that it has
beyond is of a key that no record has, such as one that was erased.
"""

from __future__ import annotations

from service.base.errors import CorruptionError
from service.records.filter_kernel import BLOCK_BYTES
from service.remote.format.key_filter import KeyFilter, KeysOfLog
from service.remote.format.segment_object import Footer
from service.remote.reading.log_scan import MAX_INFLATED_BYTES


class KeyProof(KeysOfLog):
    """Proof of one object: gets all of its batches, then `check` says what is wrong; or a part of them, then
    `check_part` says what is wrong whatever the others have."""

    def __init__(self, footer: Footer, key_filter: bytes | None) -> None:
        """`key_filter` is the object's section, verified; None where it has none."""
        self._claimed = footer.keyed_record_count
        self._filter = key_filter
        if key_filter is not None:
            KeyFilter.open(key_filter)
            if not self._claimed:
                raise CorruptionError(f"a key filter, and {self._claimed} records with a key")
        super().__init__(len(key_filter or b"") // BLOCK_BYTES, MAX_INFLATED_BYTES)

    def check(self) -> None:
        """Raise `CorruptionError` unless count and filter are those of the records."""
        if self.keyed_record_count != self._claimed:
            raise CorruptionError(
                f"{self.keyed_record_count} records have a key, the footer says {self._claimed}"
            )
        self._check_filter(has_all=True)

    def check_part(self) -> None:
        """Raise `CorruptionError` unless count and filter may be those of these records and some others."""
        found, claimed = self.keyed_record_count, self._claimed
        if (found is None) != (claimed is None) or (found or 0) > (claimed or 0):
            raise CorruptionError(f"{found} records have a key in a part, the footer says {claimed} of all")
        self._check_filter(has_all=False)

    def _check_filter(self, *, has_all: bool) -> None:
        if self._filter is None:
            return
        theirs, said = int.from_bytes(self.blocks()), int.from_bytes(self._filter)
        if lacking := (theirs & ~said).bit_count():
            raise CorruptionError(f"key_filter: lacks {lacking} bits of the keys of its records")
        if has_all and (beyond := (said & ~theirs).bit_count()):
            raise CorruptionError(f"key_filter: has {beyond} bits of keys that no record has")
