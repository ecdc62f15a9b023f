"""Which segments at the old end of a chain have outlived the topic's total retention. [P]

Three reasons, as in Kafka's `RemoteLogManager.RLMExpirationTask`: the segment lies below the log start offset
(DeleteRecords, or a start that moved), its youngest record is older than `retention.ms`, or the log would
still hold `retention.bytes` without it. Only a prefix of the chain ever goes, so the chain stays
contiguous.

>>> class Entry(NamedTuple):
...     base_offset: int
...     last_offset: int
...     log_length: int
...     max_timestamp: int
>>> chain = [Entry(0, 9, 100, 1_000), Entry(10, 19, 100, 9_000), Entry(20, 29, 100, 2_000)]
>>> plan_expiry(chain, Retention(5_000, -1), now_ms=10_000, log_start_offset=0, total_bytes=300)
Expiry(segments=1, start_offset=10, log_bytes=100)
>>> plan_expiry(chain, Retention(-1, 150), now_ms=10_000, log_start_offset=0, total_bytes=300).start_offset
10
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

UNLIMITED = -1


class ChainSegment(Protocol):
    """What expiry must know of a committed segment."""

    @property
    def last_offset(self) -> int: ...
    @property
    def log_length(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...


class Retention(NamedTuple):
    """Total retention of a topic; -1 is unlimited."""

    ms: int
    bytes: int


class Expiry(NamedTuple):
    """Drop the first `segments` of the chain (`log_bytes` in all); the log then starts at `start_offset`."""

    segments: int
    start_offset: int
    log_bytes: int


def plan_expiry(
    chain: Iterable[ChainSegment],
    retention: Retention,
    *,
    now_ms: int,
    log_start_offset: int,
    total_bytes: int,
) -> Expiry | None:
    """What goes now, or None.

    `chain` comes oldest first and is read only as far as needed. `total_bytes` is the size of the whole
    log: remote segments plus the local ones that are not yet remote.
    """
    surplus = total_bytes - retention.bytes if retention.bytes != UNLIMITED else UNLIMITED
    segments = log_bytes = start_offset = 0
    for segment in chain:
        surplus -= segment.log_length
        below_start = segment.last_offset < log_start_offset
        too_old = retention.ms != UNLIMITED and now_ms - segment.max_timestamp > retention.ms
        too_much = surplus >= 0
        if not (below_start or too_old or too_much):
            break
        segments += 1
        log_bytes += segment.log_length
        start_offset = segment.last_offset + 1
    return Expiry(segments, start_offset, log_bytes) if segments else None
