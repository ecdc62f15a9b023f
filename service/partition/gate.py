"""Gate of a broker for cuts: while it is closed, nobody sees anything new. [P]

A cut is one moment of the whole cluster (invariant T18). If brokers looked at their partitions one after the
other, a consumer could read a record on one broker after that broker had looked, and produce what follows
from it to another that had not. So all brokers close their gates before the first of them looks. Behind a
closed gate high watermarks stay where they are for everybody: consumers, coordinators, followers that are
told of them, producers that wait for them. Appends, replication and reads of what is visible go on.

*take* ends that: the ends of all partitions are noted in slices. Whoever moves its high watermark before it
was noted is noted first, so that all ends are of the moment of *take*. A gate that is not taken within its
time opens by itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol
from uuid import UUID

from service.base.steps import Steps


class PartitionEnd(NamedTuple):
    """Visible range of a partition that this broker leads: offsets from `start` to `end`, exclusive, and
    those below `stable` at read_committed."""

    leader_epoch: int
    start: int
    end: int
    stable: int


class Gated(Protocol):
    """A partition, as a gate sees it. Compared and hashed by identity."""

    def note_end(self) -> PartitionEnd | None:
        """Return its ends as everybody sees them now; None where this broker does not lead it, or may not
        know yet what the leader before has shown."""

    def raise_mark(self, high_watermark: int, size: int) -> None:
        """Take the high watermark, by which `size` bytes become visible, and answer who waited for it."""


class CutGate:
    """Gate of all partitions of one broker. Owned by the event loop.

    `is_open` is what a partition looks at whenever its high watermark rises; where it is False the partition
    calls `moved` instead of taking it.
    """

    __slots__ = ("_attempt", "_doubtful", "_late", "_noted", "_open_ms", "_opened", "is_open")

    def __init__(self) -> None:
        self.is_open = True
        self._attempt: UUID | None = None
        self._open_ms = 0
        self._late: dict[Gated, tuple[int, int]] = {}
        self._noted: dict[Gated, PartitionEnd | None] | None = None
        self._opened: deque[Callable[[], None]] = deque()
        self._doubtful: dict[Gated, None] = {}

    @property
    def is_closed(self) -> bool:
        """True between *begin* and *take*: no high watermark moves."""
        return not self.is_open and self._noted is None

    def close(self, attempt: UUID, now_ms: int, hold_ms: int) -> bool:
        """Close for one attempt at a cut, at most until `hold_ms` from now. Returns False while it is closed
        for another, or still notes the ends of another."""
        if not self.is_open:
            return False
        self._attempt, self._open_ms = attempt, now_ms + hold_ms
        self.is_open = False
        return True

    def moved(self, partition: Gated, high_watermark: int, size: int) -> None:
        """Have the partition take its high watermark as soon as that may be seen. For a gate that is not
        open."""
        noted = self._noted
        _, before = self._late.pop(partition, (0, 0))
        if noted is None:
            self._late[partition] = high_watermark, before + size
            return
        if partition not in noted:
            noted[partition] = partition.note_end()
        partition.raise_mark(high_watermark, before + size)

    def forget(self, partition: Gated) -> None:
        """Forget a partition that this broker does not have any more, or that another broker leads now."""
        self._late.pop(partition, None)
        self._doubtful.pop(partition, None)

    def doubt(self, partition: Gated) -> None:
        """Note a partition that begins to lead, and may not know yet what the leader before has shown."""
        self._doubtful[partition] = None

    def cannot_lead(self, partition: Gated) -> None:
        """Note a partition whose log has failed: what its leader before has shown is not awaited."""
        self._doubtful.pop(partition, None)

    def still_doubtful(self) -> Steps[Gated | None]:
        """Return one of the partitions of which that is still so."""
        while self._doubtful:
            partition = next(iter(self._doubtful))
            if partition.note_end() is None:
                return partition
            del self._doubtful[partition]
            yield
        return None

    def when_open(self, opened: Callable[[], None]) -> None:
        """Call `opened` once everybody sees what is hidden now. For a gate that is not open."""
        self._opened.append(opened)

    def take(self, attempt: UUID, now_ms: int, partitions: Iterable[Gated]) -> Steps[None] | None:
        """Begin to note the ends of `partitions`; from this call on high watermarks move.

        Returns the rest of the work in small steps, after which `ends` has all; None if the gate is not
        closed for this attempt any more.
        """
        if attempt != self._attempt or self._noted is not None or self.is_open or now_ms >= self._open_ms:
            return None
        self._noted = {}
        return self._note(partitions, self._noted)

    def take_at_once(self, partitions: Iterable[Gated]) -> Steps[None] | None:
        """Note the ends of `partitions` as of now, without having been closed, as for a cut that is not
        exact, or where one broker is the whole cluster. As `take` otherwise; None if the gate is not open."""
        if not self.is_open:
            return None
        self.is_open, self._noted = False, {}
        return self._note(partitions, self._noted)

    def _note(self, partitions: Iterable[Gated], noted: dict[Gated, PartitionEnd | None]) -> Steps[None]:
        for partition in partitions:
            if partition not in noted:
                noted[partition] = partition.note_end()
            yield
        yield from self._let_through()

    def ends(self) -> dict[Gated, PartitionEnd | None]:
        """Return the ends that were noted, and open; once the steps of `take` are done."""
        noted, self._noted = self._noted, None
        assert noted is not None
        self._open()
        return noted

    def open_late(self, now_ms: int, *, attempt: UUID | None = None) -> Steps[None] | None:
        """Begin to open a gate whose time is over, or which is closed for `attempt`, which is void now.

        Returns the rest of the work in small steps; None if there is nothing to open.
        """
        if not self.is_closed or (now_ms < self._open_ms and attempt != self._attempt):
            return None
        self._noted = {}  # whatever moves from now on does so at once
        return self._abandon()

    def _abandon(self) -> Steps[None]:
        yield from self._let_through()
        self._noted = None
        self._open()

    def _let_through(self) -> Steps[None]:
        late = self._late
        while late:
            partition = next(iter(late))
            high_watermark, size = late.pop(partition)
            self.moved(partition, high_watermark, size)
            yield
        yield from self._answered(len(self._opened))  # all that was hidden is seen now

    def _answered(self, most: int) -> Steps[None]:
        for _ in range(most):
            self._opened.popleft()()
            yield

    def _open(self) -> None:
        self.is_open, self._attempt = True, None
        for _ in self._answered(len(self._opened)):
            pass
