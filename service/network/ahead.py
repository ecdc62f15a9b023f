"""Reads what is sent next where the page cache lacks it, on threads: the loop never waits for the device.

A reader that is far behind asks for bytes that nobody has touched for long, and the system may have given
their pages to others. ``sendfile`` would read them from the device, in the loop, and behind what is being
written back just then: 20 to 60 ms for a quarter of a megabyte were seen, for everybody.

So pages are asked for with ``RWF_NOWAIT`` before they are sent: of what is large one byte of each
`STRIDE_BYTES` (the system brings pages, and gives them up, in about such pieces; 0.6 us each, one part in a
hundred of what sending costs), of what is small all, as it is read anyway. Nor does the system read ahead in
a file once a thread has: it would do so within ``sendfile``, megabytes at a time.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from service.base.threads import Threads
from service.base.types import Buffer

AHEAD_BYTES: Final = 1 << 20
"""So much is looked at and read in one go."""
STRIDE_BYTES: Final = 64 << 10
_THREADS: Final = 4


class ReadFile(Protocol):
    """All of these raise `DiskError`."""

    def pread(self, size: int, position: int) -> bytes:
        """Bytes from `position` on, fewer than `size` at the end of the file only."""

    def pread_now(self, size: int, position: int) -> Buffer | None:
        """As `Disk.pread_now`."""

    def bring(self, size: int, position: int) -> None:
        """As `Disk.bring`."""


class ReadAhead:
    """The threads of one server; they are made when one is needed. Owned by the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, threads: Threads) -> None:
        self._loop = loop
        self._pool = threads.pool("read-ahead", _THREADS)
        self.reads = 0
        """how often a thread had to"""

    def read(self, file: ReadFile, size: int, position: int) -> asyncio.Future[None]:
        """Have a thread read these bytes into the page cache, as far as the file goes. `DiskError`."""
        self.reads += 1
        return self._loop.run_in_executor(self._pool, file.bring, size, position)

    def close(self) -> None:
        """Nobody asks any more; what is being read goes on."""
        self._pool.shutdown(wait=False)


def is_near(file: ReadFile, size: int, position: int) -> bool:
    """Whether none of these bytes, as far as that was looked at, has to come from the device. `DiskError`."""
    end = position + size
    return all(file.pread_now(1, at) for at in range(position, end, STRIDE_BYTES)) and bool(
        file.pread_now(1, end - 1)
    )
