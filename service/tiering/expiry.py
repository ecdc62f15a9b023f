"""Which segments at the old end of a chain have outlived the topic's total retention. [P]

Three reasons, as in Kafka's `RemoteLogManager.RLMExpirationTask`: the segment lies below the log start offset
(DeleteRecords, or a start that moved), its youngest record is older than `retention.ms`, or the log would
still hold `retention.bytes` without it. Only a prefix of the chain ever goes, so the chain stays
contiguous. A log that starts within a segment has its chain start there, too.

>>> class Entry(NamedTuple):
...     base_offset: int
...     last_offset: int
...     size: int
...     max_timestamp: int
>>> chain = [Entry(0, 9, 100, 1_000), Entry(10, 19, 100, 9_000), Entry(20, 29, 100, 2_000)]
>>> span = ChainSpan(0, 30)
>>> plan_expiry(chain, span, Retention(5_000, -1), now_ms=10_000, log_start_offset=0, total_bytes=300)
Expiry(segments=1, start_offset=10, size_bytes=100)
>>> plan_expiry(chain, span, Retention(-1, 150), now_ms=10_000, log_start_offset=0, total_bytes=300)
Expiry(segments=1, start_offset=10, size_bytes=100)
>>> plan_expiry(chain, span, Retention(-1, -1), now_ms=10_000, log_start_offset=5, total_bytes=300)
Expiry(segments=0, start_offset=5, size_bytes=0)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, Protocol, TypeVar

UNLIMITED = -1
EVERYTHING: Final = -1
"""The start offset of an expiry that leaves nothing of a chain, whatever the log holds."""


class ChainSegment(Protocol):
    """What expiry must know of a committed segment."""

    @property
    def last_offset(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...


S = TypeVar("S", bound=ChainSegment)


class Retention(NamedTuple):
    """Total retention of a topic; -1 is unlimited."""

    ms: int
    bytes: int


class ChainSpan(NamedTuple):
    """Where a chain begins, and the offset after its last one."""

    start_offset: int
    end_offset: int


class Expiry(NamedTuple):
    """Drop the first `segments` of the chain (`size_bytes` in all); the log then starts at `start_offset`."""

    segments: int
    start_offset: int
    size_bytes: int


GIVE_UP: Final = Expiry(0, EVERYTHING, 0)
"""Tiering was switched off: all goes, how much is found out on the way."""


def plan_expiry(
    chain: Iterable[S],
    span: ChainSpan,
    retention: Retention,
    *,
    now_ms: int,
    log_start_offset: int,
    total_bytes: int,
    uploaded_at_ms: Callable[[S], int] | None = None,
) -> Expiry | None:
    """What goes now, or None.

    `chain` comes oldest first and is read only as far as needed. `total_bytes` is the size of the whole
    log: remote segments plus the local ones that are not yet remote.
    """
    surplus = total_bytes - retention.bytes if retention.bytes != UNLIMITED else UNLIMITED
    segments = size_bytes = 0
    start_offset = min(log_start_offset, span.end_offset)
    for segment in chain:
        surplus -= segment.size
        below_start = segment.last_offset < log_start_offset
        too_much = surplus >= 0
        if not (below_start or too_much or _is_too_old(segment, retention.ms, now_ms, uploaded_at_ms)):
            break
        segments += 1
        size_bytes += segment.size
        start_offset = max(start_offset, segment.last_offset + 1)
    return Expiry(segments, start_offset, size_bytes) if start_offset > span.start_offset else None


def _is_too_old(
    segment: S,
    retention_ms: int,
    now_ms: int,
    uploaded_at_ms: Callable[[S], int] | None,
) -> bool:
    if retention_ms == UNLIMITED:
        return False
    if 0 <= segment.max_timestamp <= now_ms:
        return now_ms - segment.max_timestamp > retention_ms
    return uploaded_at_ms is not None and now_ms - uploaded_at_ms(segment) > retention_ms
