"""Comparison of two copies of one batch, of which erasures and compaction may have taken records. [P]

What is taken from a batch leaves its offsets, leader epoch and producer as they were, and each record that
stays. So two copies of one batch have the same records wherever both have one, whatever either has lost; of
two batches that only have the same place in a log, one has another record there.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from service.base.errors import CorruptionError
from service.base.types import NO_PRODUCER_ID, NO_TIMESTAMP
from service.records.batch import (
    CONTROL_FLAG,
    CRC_START,
    LOG_APPEND_TIME_FLAG,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    read_header,
)
from service.records.compression import InflatedTooLarge
from service.records.decode import records_of

_LASTING_FLAGS: Final = LOG_APPEND_TIME_FLAG | TRANSACTIONAL_FLAG | CONTROL_FLAG
_MOST_INFLATED: Final = 32 << 20
"""Larger batches are not inflated to be compared; with their rows two take some hundred MB at most."""


class Likeness(Enum):
    """Verdict on two batches, and so on the logs that they are from."""

    SAME = "same"
    """A record in common, and none that differs."""
    UNTOLD = "untold"
    """Nothing in common to compare."""
    OTHER = "other"
    """Another batch: not copies of one."""


def likeness(ours: memoryview, theirs: memoryview) -> Likeness:
    """Compare two batches with offsets in common. Their checksums are verified."""
    one, other = read_header(ours), read_header(theirs)
    if _only_fills(one) or _only_fills(other):
        return Likeness.UNTOLD
    if _lasting(one) != _lasting(other):
        return Likeness.OTHER
    try:
        if not one.record_count:
            return _beside_empty(one, other, theirs)
        if not other.record_count:
            return _beside_empty(other, one, ours)
        if ours[CRC_START:] == theirs[CRC_START:]:
            return Likeness.SAME
        return _by_records(ours, one, theirs, other)
    except InflatedTooLarge:
        return Likeness.UNTOLD
    except CorruptionError:
        return Likeness.OTHER  # nothing is ever taken from a batch that does not parse


def _only_fills(header: BatchHeader) -> bool:
    """Return whether the batch is a `filling_batch`, which stands for any batches with its offsets."""
    return (header.record_count, header.producer_id, header.max_timestamp) == (
        0, NO_PRODUCER_ID, NO_TIMESTAMP,
    )  # fmt: skip


def _lasting(header: BatchHeader) -> tuple[int, ...]:
    return (
        header.base_offset, header.last_offset_delta, header.partition_leader_epoch, header.producer_id,
        header.producer_epoch, header.base_sequence, header.attributes & _LASTING_FLAGS,
    )  # fmt: skip


def _beside_empty(empty: BatchHeader, header: BatchHeader, batch: memoryview) -> Likeness:
    """Compare an empty batch with another. It keeps the greatest timestamp of the records that went last, so
    a batch that has lost none has that one, too."""
    if header.record_count != header.last_offset_delta + 1 or header.max_timestamp == empty.max_timestamp:
        return Likeness.UNTOLD
    records = records_of(batch, header, max_inflated_bytes=_MOST_INFLATED)
    is_known = any(record.timestamp == empty.max_timestamp for record in records)
    return Likeness.UNTOLD if is_known else Likeness.OTHER


def _by_records(ours: memoryview, one: BatchHeader, theirs: memoryview, other: BatchHeader) -> Likeness:
    found = Likeness.UNTOLD
    left = records_of(ours, one, max_inflated_bytes=_MOST_INFLATED)
    right = records_of(theirs, other, max_inflated_bytes=_MOST_INFLATED)
    mine, their = next(left, None), next(right, None)
    while mine is not None and their is not None:
        if mine.offset == their.offset and mine != their:
            return Likeness.OTHER
        if mine.offset == their.offset:
            found = Likeness.SAME
        behind = mine.offset - their.offset
        mine = mine if behind > 0 else next(left, None)
        their = their if behind < 0 else next(right, None)
    return found
