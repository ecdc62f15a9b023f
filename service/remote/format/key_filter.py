"""Filter of the keys in a segment object: says of a key that no record has it, or that some may have it. [P]

It is Parquet's split-block Bloom filter: blocks of 256 bits, each eight little-endian words of 32, and
xxHash64 with seed 0 of a key's bytes. The section `key_filter` of an object is these blocks and nothing else
(docs/bucket-format.md). It has at most `MAX_FILTER_BYTES`, and of a hundred keys that no record has one is
taken for a key that some record may have.

A filter never says no to a key that a record has. So none is written where a record does not parse, where a
batch inflates beyond what is read, or where there are too many keys: such objects may have any key.
"""

from __future__ import annotations

import struct
from array import array
from math import log1p
from typing import Final

from service.base.errors import CorruptionError
from service.base.types import NO_TIMESTAMP, Buffer
from service.records.batch import CONTROL_FLAG
from service.records.filter_kernel import BLOCK_BYTES, BLOCK_WORDS, count_bits, find_any, fold
from service.records.kernel_status import COMPRESSED, KeyWalk
from service.records.key_walk_kernel import add_batches, add_records, add_start
from service.records.scan import BatchScan, first_inflated, inflated_records
from service.remote.format.segment_object import MAX_FILTER_BYTES

_BITS_OF_KEY: Final = 8
FULL: Final = 0.01 ** (1 / _BITS_OF_KEY)
"""Share of set bits at which one of a hundred keys that no record has seems to be there: 56 %."""
FILTER_HASH_BYTES: Final = 8
_WORDS: Final = "Q"
"""Type of the arrays that filters are: two words of the format in each."""
_BITS_OF_WORD: Final = 64
_KEYS_OF_BLOCK: Final = 24
"""Records for each block of a filter that is built: as many different keys set 53 % of its bits. What it
costs most is fresh memory, and memory that does not fit into caches."""
_LOOKS: Final = (64, 1024)
"""Bytes of a compressed record in which its key is looked for before the whole is inflated."""
_LEAST_BLOCKS: Final = 128
_FIRST_LOOK: Final = 1 << 21
"""Records with keys after which a filter of the largest size may be full."""
_MOST_BLOCKS: Final = 65520
"""Just below 2 MiB, and with many divisors (2^4 · 3^2 · 5 · 7 · 13): a filter folds to many sizes."""
_BLOCKS: Final = tuple(number for number in range(1, _MOST_BLOCKS + 1) if _MOST_BLOCKS % number == 0)
_NATIVE_IS_LITTLE: Final = struct.pack("=I", 1) == struct.pack("<I", 1)


class KeyFilter:
    """The filter of one object. Never changes; any thread may use it."""

    def __init__(self, words: array[int]) -> None:
        """Use `open`."""
        self._words = words

    @classmethod
    def open(cls, data: Buffer) -> KeyFilter:
        """Return the filter in a section whose checksum was verified. `CorruptionError` where it is none."""
        cls.check_size(len(data))
        words = array(_WORDS, bytes(data))
        if not any(words):
            raise CorruptionError("a key filter without keys")
        return cls(_swapped(words))

    @staticmethod
    def check_size(size: int) -> None:
        """Raise `CorruptionError` unless a filter may have this size."""
        if size < BLOCK_BYTES or size % BLOCK_BYTES or size > MAX_FILTER_BYTES:
            raise CorruptionError(f"a key filter of {size} bytes")

    def may_have(self, filter_hash: int) -> bool:
        """Return False only if no record has the key with this hash (`records.erasure.filter_hash`)."""
        return find_any(self._words, array("Q", (filter_hash,))) >= 0

    def hits(self, filter_hashes: bytes) -> bool:
        """Return False only if no record has any of the keys with these hashes, 8 bytes each, big-endian."""
        if len(filter_hashes) % FILTER_HASH_BYTES:
            raise ValueError(f"{len(filter_hashes)} bytes are not hashes of {FILTER_HASH_BYTES}")
        count = len(filter_hashes) // FILTER_HASH_BYTES
        return find_any(self._words, array("Q", struct.unpack(f">{count}Q", filter_hashes))) >= 0


class KeysOfLog:
    """Keys of one log's records, put into a filter of some size, and their least timestamps. For one thread
    at a time; the loops release the GIL.

    Memory: the filter, and one inflated batch.
    """

    def __init__(self, blocks: int, max_inflated_bytes: int) -> None:
        """Make a filter of this many blocks; with 0, keys are counted alone. Of a batch that inflates beyond
        `max_inflated_bytes` the keys are not known."""
        self._words = array(_WORDS, (0,)) * (BLOCK_WORDS * blocks)
        self._seen = array("q", bytes(8 * len(KeyWalk)))
        self._max_inflated = max_inflated_bytes

    @property
    def keyed_record_count(self) -> int | None:
        """Number of records with a key, those of control batches aside; None where a batch could not be
        read."""
        return None if self._seen[KeyWalk.BROKEN] else self._seen[KeyWalk.KEYED]

    def add(self, piece: memoryview, batches: BatchScan) -> int:
        """Add the keys of the `batches` of `piece`; return the least timestamp (ms) of all of their records.

        -1 if it is unknown: a record has none or a negative one, or a batch cannot be read, which is no
        error: the keys are not known then, either. Never above a batch's own maximum.
        """
        if not batches.batches:
            return NO_TIMESTAMP
        seen = self._seen
        least, left = array("q", bytes(8 * batches.batches)), array("q", bytes(8 * batches.batches))
        add_batches(piece, batches.positions[0], batches.end, self._words, seen, least, left)
        for index in left[: seen[KeyWalk.LEFT]]:
            if seen[KeyWalk.BROKEN] and (least[index] != COMPRESSED or NO_TIMESTAMP in least):
                continue  # neither keys nor the least timestamp can come of it
            if least[index] == COMPRESSED or not self._add_first(piece, batches, index):
                self._add_inflated(piece, batches, index, least)
        return NO_TIMESTAMP if NO_TIMESTAMP in least else min(least)

    def _add_first(self, piece: memoryview, batches: BatchScan, index: int) -> bool:
        """Add the key of a batch's only record, where its first bytes are enough for that."""
        if batches.record_counts[index] != 1 or batches.attributes[index] & CONTROL_FLAG:
            return False
        for size in _LOOKS:
            start = first_inflated(batches, index, piece, size)
            if start is not None and add_start(start, self._words, self._seen):
                return True
            if start is None or len(start) < size:
                break
        return False

    def _add_inflated(self, piece: memoryview, batches: BatchScan, index: int, least: array[int]) -> None:
        seen, found = self._seen, NO_TIMESTAMP
        records = inflated_records(batches, index, piece, self._max_inflated)
        if records is None or batches.attributes[index] & CONTROL_FLAG:  # no broker compresses these
            seen[KeyWalk.BROKEN] = 1
        if records is not None:
            count, base = batches.record_counts[index], batches.base_timestamps[index]
            found = add_records(records, count, base, self._words, seen)
        if least[index] == COMPRESSED:
            least[index] = found if found <= batches.max_timestamps[index] else NO_TIMESTAMP

    def blocks(self) -> bytes:
        """Return the filter of the keys so far, in the size that it is built in."""
        return _swapped(self._words).tobytes()


class LeastTimestamps(KeysOfLog):
    """Least timestamps alone: a batch whose header tells its own is not inflated."""

    def __init__(self, max_inflated_bytes: int) -> None:
        super().__init__(0, max_inflated_bytes)
        self._seen[KeyWalk.BROKEN] = 1  # as if keys were missing already


class KeyFilterBuilder(KeysOfLog):
    """Builder of one object's filter.

    Keys go into a filter as large as the log may need, which `finish` makes as small as its keys allow.
    """

    def __init__(self, log_bytes: int, most_records: int, max_inflated_bytes: int) -> None:
        """`log_bytes` and `most_records`: at most as many will be added. Of a batch that inflates beyond
        `max_inflated_bytes` the keys are not known."""
        wanted = min(log_bytes // BLOCK_BYTES, most_records // _KEYS_OF_BLOCK) + 1
        wanted = min(max(wanted, _LEAST_BLOCKS), _MOST_BLOCKS)
        super().__init__(min(blocks for blocks in _BLOCKS if blocks >= wanted), max_inflated_bytes)
        self._next_look = _FIRST_LOOK

    def add(self, piece: memoryview, batches: BatchScan) -> int:
        """Do what `KeysOfLog.add` does."""
        least = super().add(piece, batches)
        if self._seen[KeyWalk.KEYED] >= self._next_look:
            self._look()
        return least

    def _look(self) -> None:
        """Give the filter up if it is full; keys are counted all the same."""
        self._next_look = 2 * self._seen[KeyWalk.KEYED]
        if self._words and _share_of_bits(self._words) > FULL:
            self._words = array(_WORDS)

    def finish(self) -> bytes:
        """Return the section `key_filter`; empty without keys, and where there is no filter."""
        if not self.keyed_record_count or not self._words:
            return b""
        share = _share_of_bits(self._words)
        if share > FULL:
            return b""
        # Of n blocks in one, bits stay unset that are unset in all: a share of (1 - share) ** n.
        most = int(log1p(-FULL) / log1p(-share))
        blocks = len(self._words) // BLOCK_WORDS
        united = max(number for number in _BLOCKS if blocks % number == 0 and number <= most)
        return _swapped(_folded(self._words, len(self._words) // united)).tobytes()


def _share_of_bits(words: array[int]) -> float:
    return count_bits(words) / (_BITS_OF_WORD * len(words))


def _folded(words: array[int], size: int) -> array[int]:
    if size == len(words):
        return words
    out = array(_WORDS, bytes(words.itemsize * size))
    fold(words, out)
    return out


def _swapped(words: array[int]) -> array[int]:
    """Return words of this machine for little-endian ones, and the other way round."""
    if not _NATIVE_IS_LITTLE:
        words = words[:]
        words.byteswap()
    return words
