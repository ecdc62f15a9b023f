"""Plan which segments at the old end of a chain have outlived the topic's total retention. [P]

Three reasons, as in Kafka's `RemoteLogManager.RLMExpirationTask`: the segment lies below the log start offset
(DeleteRecords, or a start that moved), its greatest timestamp is older than `retention.ms`, or the log would
still hold `retention.bytes` without it. A timestamp in the future keeps a segment, as in Kafka; a segment
without timestamps ages from its upload. Only a prefix of the chain goes, so the chain stays contiguous. Where
the log starts within a segment, the chain starts there, too.

A page is judged by the sums that its parent has of it, and read only where some of its segments may go and
others stay: a damaged or missing page does not hold up what lies beyond it. A segment that cannot be judged
stays, and the plan's `problem` says why.

>>> class Entry(NamedTuple):
...     base_offset: int
...     last_offset: int
...     size_bytes: int
...     max_timestamp: int
...     min_timestamp: int = -1
>>> chain = [Entry(0, 9, 100, 1_000), Entry(10, 19, 100, 9_000), Entry(20, 29, 100, 2_000)]
>>> span = ChainSpan(0, 30)
>>> plan_expiry(chain, span, Retention(5_000, -1), now_ms=10_000, log_start_offset=0, total_bytes=300).start
10
>>> plan_expiry(chain, span, Retention(-1, 150), now_ms=10_000, log_start_offset=0, total_bytes=300).start
10
>>> plan_expiry(chain, span, Retention(-1, -1), now_ms=10_000, log_start_offset=5, total_bytes=300).start
5
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from service.base.errors import CorruptionError, FirnError, StorageError
from service.remote.format.manifest import PageRef

UNLIMITED = -1
EVERYTHING: Final = -1
"""Start offset of an expiry that empties a chain, whatever the log holds."""


class ChainPart(Protocol):
    """Attributes of a committed segment, or of a page of segments, that expiry reads.

    A timestamp is -1 where there is none, or not all are known.
    """

    @property
    def base_offset(self) -> int: ...
    @property
    def last_offset(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...
    @property
    def min_timestamp(self) -> int: ...


P = TypeVar("P", bound=ChainPart)


class Retention(NamedTuple):
    """Total retention of a topic; -1 is unlimited."""

    ms: int
    bytes: int

    @property
    def is_unlimited(self) -> bool:
        return self == (UNLIMITED, UNLIMITED)


class ChainSpan(NamedTuple):
    """Start offset of a chain, and the offset after its last one."""

    start_offset: int
    end_offset: int


class ExpiryPlan(NamedTuple, Generic[P]):
    """Drop what lies below `start`; None where nothing goes.

    `first` is the oldest part that stays, None where none does; `problem` says why it could not be judged.
    """

    start: int | None
    first: P | None
    problem: FirnError | None


class _Fate(Enum):
    GOES = "goes"
    STAYS = "stays"
    PARTLY = "is a page of which some may go"


def _unread(page: PageRef) -> Sequence[P]:
    raise StorageError(f"{page.key} was not read: this plan has no reader of pages")


def plan_expiry(
    chain: Iterable[P],
    span: ChainSpan,
    retention: Retention,
    *,
    now_ms: int,
    log_start_offset: int,
    total_bytes: int,
    dropped_bytes: int = 0,
    uploaded_at_ms: Callable[[P], int] | None = None,
    children: Callable[[PageRef], Sequence[P]] = _unread,
) -> ExpiryPlan[P]:
    """Plan what goes now.

    `chain` is ordered oldest first and read only as far as needed. `total_bytes` is the size of the whole
    log: remote segments plus the local ones that are not remote yet; `dropped_bytes` lie below the chain's
    start in its first part. `children` reads a page. Without `uploaded_at_ms` segments that have no timestamp
    are kept.
    """
    walk = _Walk(span, retention, now_ms, log_start_offset, total_bytes, uploaded_at_ms, children)
    walk.over(chain, dropped_bytes)
    start = walk.start_offset if walk.start_offset > span.start_offset else None
    return ExpiryPlan(start, walk.first, walk.problem)


class _Walk(Generic[P]):
    """One walk over a chain from its old end."""

    def __init__(
        self,
        span: ChainSpan,
        retention: Retention,
        now_ms: int,
        log_start_offset: int,
        total_bytes: int,
        uploaded_at_ms: Callable[[P], int] | None,
        children: Callable[[PageRef], Sequence[P]],
    ) -> None:
        self._span = span
        self._retention = retention
        self._now_ms = now_ms
        self._log_start = log_start_offset
        self._surplus = total_bytes - retention.bytes if retention.bytes != UNLIMITED else UNLIMITED
        self._uploaded_at_ms = uploaded_at_ms
        self._children = children
        self.start_offset = min(log_start_offset, span.end_offset)
        self.first: P | None = None
        self.problem: FirnError | None = None

    def over(self, parts: Iterable[P], dropped_bytes: int = 0) -> bool:
        """Walk over `parts`; return False at the first that stays."""
        for part in parts:
            if part.last_offset < self._span.start_offset:
                continue  # a page still lists it
            live_bytes, dropped_bytes = part.size_bytes - dropped_bytes, 0
            fate = self._fate(part, live_bytes)
            if fate is _Fate.PARTLY and self._inside(part):
                continue  # all of its segments expired
            if fate is not _Fate.GOES:
                self.first = self.first or part
                return False
            self._surplus -= live_bytes
            self.start_offset = max(self.start_offset, part.last_offset + 1)
        return True

    def _inside(self, part: P) -> bool:
        """Walk over the segments that the page `part` lists; return False where some stay."""
        assert isinstance(part, PageRef)
        try:
            listed = self._children(part)
        except (StorageError, CorruptionError) as e:
            self.problem = e
            return False
        return self.over(listed)

    def _fate(self, part: P, live_bytes: int) -> _Fate:
        if part.last_offset < self._log_start or self._surplus >= live_bytes or self._is_too_old(part):
            return _Fate.GOES
        return _Fate.PARTLY if isinstance(part, PageRef) and self._may_partly_go(part) else _Fate.STAYS

    def _may_partly_go(self, page: PageRef) -> bool:
        is_cut = page.base_offset < self._log_start
        return is_cut or self._surplus > 0 or self._is_beyond(page.min_timestamp)

    def _is_beyond(self, timestamp: int) -> bool:
        return self._retention.ms != UNLIMITED and self._now_ms - timestamp > self._retention.ms

    def _is_too_old(self, part: P) -> bool:
        """Return whether all of `part` is too old, as far as known without reading a page."""
        if self._retention.ms == UNLIMITED:
            return False
        if isinstance(part, PageRef):
            return part.min_timestamp >= 0 and self._is_beyond(part.max_timestamp)
        if part.max_timestamp >= 0:
            return self._is_beyond(part.max_timestamp)
        try:
            return self._uploaded_at_ms is not None and self._is_beyond(self._uploaded_at_ms(part))
        except (StorageError, CorruptionError) as e:
            self.problem = e
            return False
