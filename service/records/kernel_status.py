"""Return codes of the kernels' loops, and the layout of the rows that they write. [P]"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class Status(IntEnum):
    """Outcome of a loop: `OK`, or the fault of the record or batch at which it stopped."""

    OK = 0
    TRUNCATED = -1
    BAD_VARINT = -2
    BAD_SIZE = -3
    BAD_OFFSET = -4
    BAD_HEADERS = -5
    TRAILING = -6
    TIMESTAMP_OVERFLOW = -7
    BAD_LENGTH = -8
    BAD_MAGIC = -9
    BAD_CRC = -10
    BAD_RANGE = -11
    BAD_COUNT = -12

    @property
    def reason(self) -> str:
        """A few words for a message to an operator or a client."""
        return _REASONS[self]


class Pause(IntEnum):
    """Reason for a return before the end of the data that is not an error."""

    FULL = 1
    """The rows are a whole chunk, or there is no room for more."""
    BATCH = 2
    """The next batch needs a decision or an inflated payload."""
    GROW = 3
    """The next batch needs more room than all buffers have."""


class MapState(IntEnum):
    """Indexes of `key_kernel`'s state of a map."""

    ENTRIES = 0
    """number of keys in the map"""
    LIMIT = 1
    """most keys that the map may have"""
    LATEST = 2
    """offset up to which all keys are in the map, -1 before the first"""
    RECORDS = 3
    """number of records read"""


class CopyState(IntEnum):
    """Indexes of `compaction_kernel`'s state of a copy."""

    USED = 0
    """bytes written to the buffer"""
    READ = 1
    """number of records read"""
    KEPT = 2
    """number of records kept"""


class KeyWalk(IntEnum):
    """Indexes of what `key_walk_kernel` notes of a walk."""

    KEYED = 0
    """number of records with a key"""
    BROKEN = 1
    """1 once a record did not parse: its key may be missing in the filter"""
    LEFT = 2
    """number of batches that the last walk has left to be inflated"""


class Judging(IntEnum):
    """Rule for the records of a batch that are kept."""

    BY_KEY = 0
    """the last record of each key"""
    ALL = 1
    NONE = 2


class IndexFault(IntEnum):
    """Fault that `index_kernel` found in the indexes of a segment."""

    NONE = 0
    NO_BATCH = 1
    WRONG_OFFSET = 2
    GAP = 3
    NO_TIME_BATCH = 4
    WRONG_TIME = 5

    @property
    def reason(self) -> str:
        """A sentence for the log."""
        return _INDEX_REASONS[self]


class IndexState(IntEnum):
    """Indexes of `index_kernel`'s state between two runs of batches."""

    PLACES = 0
    """number of verified entries of the offset index"""
    TIMES = 1
    """number of verified entries of the time index"""
    INDEXED_TO = 2
    """position of the last batch that has an entry"""
    LARGEST = 3
    """size of the largest batch so far"""
    NEWEST = 4
    """greatest timestamp so far"""


_INDEX_REASONS: Final = {
    IndexFault.NONE: "nothing is wrong",
    IndexFault.NO_BATCH: "the offset index has an entry for a position where no batch is",
    IndexFault.WRONG_OFFSET: "the offset index has an entry with another offset than the batch's",
    IndexFault.GAP: "the offset index lacks entries",
    IndexFault.NO_TIME_BATCH: "the time index has an entry for an offset where no batch ends",
    IndexFault.WRONG_TIME: "the time index has an entry for a batch that was not the first to reach its time",
}

_REASONS: Final = {
    Status.OK: "nothing is wrong",
    Status.TRUNCATED: "it is cut short",
    Status.BAD_VARINT: "a varint has too many bytes",
    Status.BAD_SIZE: "its length is not that of its parts",
    Status.BAD_OFFSET: "its offset delta does not follow the one before",
    Status.BAD_HEADERS: "it has an impossible number of headers, or a header without a key",
    Status.TRAILING: "bytes are left after the last record",
    Status.TIMESTAMP_OVERFLOW: "its timestamp does not fit 64 bits",
    Status.BAD_LENGTH: "its length is less than that of a header",
    Status.BAD_MAGIC: "its magic is not 2",
    Status.BAD_CRC: "its checksum is not that of its bytes",
    Status.BAD_RANGE: "its offsets overlap those before it, or its delta is negative",
    Status.BAD_COUNT: "its record count is negative, or more than its offsets",
}

RECORD_FIELDS: Final = 8
"""Count of numbers that `index_records` writes for each record: timestamp delta, offset delta, key position,
key size, value position, value size, position of the headers, number of headers. A size of -1 means null."""
COMPRESSED: Final = -2
"""Least timestamp of a batch that must be inflated first."""
BATCH_FIELDS: Final = 10
"""Count of numbers that `scan_batches` writes for each batch: position, size, base offset, last offset,
leader epoch, base timestamp, max timestamp, record count, attributes, checksum as stored."""
MIN_RECORD_SIZE: Final = 7
"""Size of a record with null key and value and no headers."""
