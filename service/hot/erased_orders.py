"""The file `erasures` of a log's directory: orders of erasure that the log has carried out.

A line `<order id> <end offset>` says that no segment has a record below that offset which the order names. It
is written after the last segment was replaced, on the same disk: a disk that comes back from before has
neither, and the order is carried out again. A log that is cut below that offset may get such records anew,
so its line goes first, durably. A file that cannot be read counts as empty.

Owned by the event loop; `add` runs on a thread.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Final
from uuid import UUID

from service.base.disk import Disk
from service.base.errors import CorruptionError
from service.base.files import read_checkpoint, write_checkpoint
from service.base.threads import Threads
from service.hot import names

_log = logging.getLogger(__name__)

MOST_ORDERS: Final = 1024
"""Most lines of a file. The metadata has at most 64 orders at a time; lines of others go at each `add`."""


class ErasedOrders:
    """Orders that one log has carried out.

    ``cuts``: how often the log was truncated. An order counts only if none came between its begin and `add`.
    """

    __slots__ = ("_cut", "_disk", "_ends", "_lock", "_path", "cuts")

    def __init__(
        self, disk: Disk, directory: Path, threads: Threads, ends: Mapping[UUID, int] | None = None
    ) -> None:
        self.cuts = 0
        self._disk = disk
        self._path = directory / names.ERASURES
        self._lock = threads.lock()
        self._ends = dict(ends or {})
        self._cut: frozenset[UUID] = frozenset()

    @classmethod
    def load(cls, disk: Disk, directory: Path, threads: Threads, end_offset: int) -> ErasedOrders:
        """Read the file of a log that ends at `end_offset`. A line beyond that end is of a log that has lost
        records since, and goes, durably, before the log grows again. `DiskError`."""
        try:
            ends = _parsed(read_checkpoint(disk, directory / names.ERASURES))
        except (CorruptionError, ValueError) as e:
            _log.warning("%s: not readable, so erasures are carried out again: %s", directory, e)
            ends = {}
        found = cls(disk, directory, threads, ends)
        found.cut(end_offset)
        return found

    def has(self, order_id: UUID) -> bool:
        """Return whether the order was carried out, up to its end in this partition."""
        return order_id in self._ends

    def was_cut(self, order_id: UUID) -> bool:
        """Return whether the order was carried out, before the log was cut below its end: what is left is
        clean, and what comes behind it is from a log that may be."""
        return order_id in self._cut

    def add(self, order_id: UUID, end_offset: int, open_orders: Container[UUID], cuts: int) -> bool:
        """Note, durably, that the order was carried out; return False, and note nothing, if the log was
        truncated since ``cuts`` was `cuts`. Lines of orders that are not open go. `DiskError` changes
        nothing."""
        with self._lock:
            if self.cuts != cuts:
                return False
            kept = {one: end for one, end in self._ends.items() if one in open_orders}
            self._write({**kept, order_id: end_offset})
            self._cut -= {order_id}
        return True

    def cut(self, end_offset: int) -> None:
        """Forget, durably, what is not true any more once the log was cut to `end_offset` and grows again.
        Waits for a thread in `add`. `DiskError` changes nothing."""
        with self._lock:
            self.cuts += 1
            kept = {one: end for one, end in self._ends.items() if end <= end_offset}
            if len(kept) < len(self._ends):
                cut = self._cut | (self._ends.keys() - kept.keys())
                self._write(kept)
                self._cut = cut

    def moved(self, directory: Path) -> None:
        """Note that the directory was renamed."""
        self._path = directory / names.ERASURES

    def _write(self, ends: dict[UUID, int]) -> None:
        write_checkpoint(self._disk, self._path, [f"{one} {end}" for one, end in sorted(ends.items())])
        self._ends = ends


def _parsed(lines: list[str]) -> dict[UUID, int]:
    """Parse the lines. `ValueError`, `CorruptionError` if they are not such a file's."""
    if len(lines) > MOST_ORDERS:
        raise CorruptionError(f"{len(lines)} lines")
    ends: dict[UUID, int] = {}
    for line in lines:
        order_id, end = line.split(" ")
        if not end.isdecimal() or len(end) > 19:
            raise CorruptionError(f"not an order's line: {line[:80]!r}")
        ends[UUID(order_id)] = int(end)
    return ends
