"""The file `erasures` of a log's directory: orders of erasure that the log has carried out.

A line `<order id> <end offset>` says that no segment has a record below that offset which the order names. It
is written after the last segment was replaced, on the same disk: a disk that comes back from before has
neither, and the order is carried out again. A log that is cut below that offset may get such records anew,
so its line goes first, durably. A file that cannot be read counts as empty.

`<order id> <end offset> <leader epoch>` is the line of an order that goes up to a later offset: where it ends
here the records of epochs up to that one end, as later ones are lost. Should the log get more of these, from
a leader that has them, the line says nothing any more.

Owned by the event loop; `add` runs on a thread.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from service.base.disk import Disk
from service.base.errors import CorruptionError
from service.base.files import read_checkpoint, write_checkpoint
from service.base.threads import Threads
from service.base.types import NO_LEADER_EPOCH
from service.hot import names
from service.hot.epochs import LeaderEpochs

_log = logging.getLogger(__name__)

MOST_ORDERS: Final = 1024
"""Most lines of a file. The metadata has at most 64 orders at a time; lines of others go at each `add`."""


class ErasedLine(NamedTuple):
    """Line of one order: nothing below `end` has its records. `leader_epoch`: the order goes on beyond that,
    in records of epochs up to this one, of which the log had none; -1 where it does not."""

    end: int
    leader_epoch: int = NO_LEADER_EPOCH


class ErasedOrders:
    """Orders that one log has carried out.

    ``cuts``: how often the log was truncated. An order counts only if none came between its begin and `add`.
    """

    __slots__ = ("_cut", "_disk", "_lines", "_lock", "_path", "cuts")

    def __init__(
        self, disk: Disk, directory: Path, threads: Threads, lines: Mapping[UUID, ErasedLine] | None = None
    ) -> None:
        self.cuts = 0
        self._disk = disk
        self._path = directory / names.ERASURES
        self._lock = threads.lock()
        self._lines = dict(lines or {})
        self._cut: frozenset[UUID] = frozenset()

    @classmethod
    def load(cls, disk: Disk, directory: Path, threads: Threads, end_offset: int) -> ErasedOrders:
        """Read the file of a log that ends at `end_offset`. A line beyond that end is of a log that has lost
        records since, and goes, durably, before the log grows again. `DiskError`."""
        try:
            lines = _parsed(read_checkpoint(disk, directory / names.ERASURES))
        except (CorruptionError, ValueError) as e:
            _log.warning("%s: not readable, so erasures are carried out again: %s", directory, e)
            lines = {}
        found = cls(disk, directory, threads, lines)
        found.cut(end_offset)
        return found

    @property
    def lines(self) -> Mapping[UUID, ErasedLine]:
        """Lines of the file; another object after each change."""
        return self._lines

    def has(self, order_id: UUID, epochs: LeaderEpochs, log_end_offset: int) -> bool:
        """Return whether the order was carried out, up to its end in a log with these epochs."""
        line = self._lines.get(order_id)
        if line is None or line.leader_epoch < 0:
            return line is not None
        return epochs.end_up_to(line.leader_epoch, log_end_offset) <= line.end

    def was_cut(self, order_id: UUID) -> bool:
        """Return whether the order was carried out, before the log was cut below its end: what is left is
        clean, and what comes behind it is from a log that may be."""
        return order_id in self._cut

    def add(self, order_id: UUID, line: ErasedLine, open_orders: Container[UUID], cuts: int) -> bool:
        """Note, durably, that the order was carried out; return False, and note nothing, if the log was
        truncated since ``cuts`` was `cuts`. Lines of orders that are not open go. `DiskError` changes
        nothing."""
        with self._lock:
            if self.cuts != cuts:
                return False
            kept = {one: old for one, old in self._lines.items() if one in open_orders}
            self._write({**kept, order_id: line})
            self._cut -= {order_id}
        return True

    def cut(self, end_offset: int) -> None:
        """Forget, durably, what is not true any more once the log was cut to `end_offset` and grows again.
        Waits for a thread in `add`. `DiskError` changes nothing."""
        with self._lock:
            self.cuts += 1
            kept = {one: line for one, line in self._lines.items() if line.end <= end_offset}
            if len(kept) < len(self._lines):
                cut = self._cut | (self._lines.keys() - kept.keys())
                self._write(kept)
                self._cut = cut

    def moved(self, directory: Path) -> None:
        """Note that the directory was renamed."""
        self._path = directory / names.ERASURES

    def _write(self, lines: dict[UUID, ErasedLine]) -> None:
        write_checkpoint(self._disk, self._path, [_text(*one) for one in sorted(lines.items())])
        self._lines = lines


def _text(order_id: UUID, line: ErasedLine) -> str:
    return f"{order_id} {line.end}" + (f" {line.leader_epoch}" if line.leader_epoch >= 0 else "")


def _parsed(lines: list[str]) -> dict[UUID, ErasedLine]:
    """Parse the lines. `ValueError`, `CorruptionError` if they are not such a file's."""
    if len(lines) > MOST_ORDERS:
        raise CorruptionError(f"{len(lines)} lines")
    found: dict[UUID, ErasedLine] = {}
    for line in lines:
        order_id, *numbers = line.split(" ")
        if len(numbers) not in (1, 2) or not all(one.isdecimal() and len(one) <= 19 for one in numbers):
            raise CorruptionError(f"not an order's line: {line[:80]!r}")
        found[UUID(order_id)] = ErasedLine(*map(int, numbers))
    return found
