"""Open transactions of a log, and from where on it is not stable. [P]

Kafka `ProducerStateManager` (``ongoingTxns``, ``unreplicatedTxns``). A span makes the log unstable from its
first offset on while it is open, and after its marker until the high watermark has passed that: a marker that
is not replicated may be cut off again. Every replica computes this from the log and its high watermark alike
(invariant X6), so readers of committed transactions see all of one or nothing (X1), and nothing that is not
decided (X4).

The completed ones are in the order of their markers. The one of them that began first is the head of a second
queue: an older one that did not begin before a newer one goes before it, so it never counts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from service.records.open_spans import OpenSpans
from service.records.txn_rows import AbortedEntry


class OpenTransactions(OpenSpans):
    """Spans of one log, open or completed. Every method takes O(1), `load` alone does not."""

    __slots__ = ("_completed", "_lows", "_mark")

    def __init__(self, high_watermark: int = 0) -> None:
        """`high_watermark`: markers below it are known to be replicated."""
        super().__init__()
        self._mark = high_watermark
        self._completed: deque[tuple[int, int]] = deque()
        self._lows: deque[tuple[int, int]] = deque()

    @property
    def first_unstable_offset(self) -> int | None:
        """First offset of the oldest span that is open, or whose marker the high watermark has not passed."""
        oldest = self.oldest()
        if not self._lows:
            return None if oldest is None else oldest[1]
        completed = self._lows[0][1]
        return completed if oldest is None or completed < oldest[1] else oldest[1]

    @property
    def completed(self) -> Iterator[tuple[int, int]]:
        """Marker's offset and first offset of each completed span that still counts."""
        return iter(self._completed)

    def complete(self, producer_id: int, marker: int, *, is_commit: bool) -> AbortedEntry | None:
        """Note the marker at offset `marker`, the last one in the log; returns the row of a transaction that
        it aborts. None for a commit, and where nothing was open."""
        first = self.end(producer_id)
        if first is None:
            return None
        if marker >= self._mark:
            self._completed.append((marker, first))
            self._add_low(marker, first)
        return None if is_commit else self.aborted(producer_id, first, marker)

    def doubt(self, first: int, end: int) -> None:
        """Count all of ``[first, end)``, the end of the log, as one completed span."""
        self._completed.append((end - 1, first))
        self._add_low(end - 1, first)

    def _add_low(self, marker: int, first: int) -> None:
        lows = self._lows
        while lows and lows[-1][1] >= first:
            lows.pop()
        lows.append((marker, first))

    def high_watermark_moved(self, mark: int) -> None:
        """Let completed spans go whose markers lie below the high watermark."""
        self._mark = mark
        for spans in self._completed, self._lows:
            while spans and spans[0][0] < mark:
                spans.popleft()

    def load(self, spans: Iterable[tuple[int, int]], end: int) -> None:
        """Replace the open spans by (producer id, first offset) `spans`, as of log end `end`; completed ones
        below it stay."""
        super().__init__(spans)
        kept = [one for one in self._completed if one[0] < end]
        self._completed, self._lows = deque(kept), deque()
        for marker, first in kept:
            self._add_low(marker, first)
