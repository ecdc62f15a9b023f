"""Reads what is sent next where the page cache lacks it, on threads: the loop never waits for the device.

A reader that is far behind asks for bytes that nobody has touched for long, and the system may have given
their pages to others. ``sendfile`` would read them from the device, in the loop, and behind what is being
written back just then: 20 to 60 ms for a quarter of a megabyte were seen, for everybody.

So it is asked what the page cache has of what is large, a megabyte at a time (2 us, of 1,000 that sending it
costs); what is small is read by the loop only if that needs no waiting. Nor does the system read ahead in a
file once a thread has: it would do so within ``sendfile``, megabytes at a time.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final, Protocol

from service.base.threads import Threads
from service.base.types import Buffer
from service.network.metrics import NetworkMetrics

AHEAD_BYTES: Final = 1 << 20
"""So much is looked at and read in one go."""
_THREADS: Final = 4


class ReadFile(Protocol):
    """All of these raise `DiskError`."""

    def pread(self, size: int, position: int) -> bytes:
        """Bytes from `position` on, fewer than `size` at the end of the file only."""

    def pread_nowait(self, size: int, position: int) -> Buffer | None:
        """As `Disk.pread_nowait`."""

    def is_resident(self, size: int, position: int) -> bool:
        """As `Disk.is_resident`."""

    def prefetch(self, size: int, position: int) -> None:
        """As `Disk.prefetch`."""


class ReadAhead:
    """The threads of one server; they are made when one is needed. Owned by the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, threads: Threads, metrics: NetworkMetrics) -> None:
        self._loop = loop
        self._pool = threads.pool("read-ahead", _THREADS)
        self._metrics = metrics
        self._is_closed = False

    def read(self, file: ReadFile, size: int, position: int) -> asyncio.Future[None]:
        """Have a thread read these bytes into the page cache, as far as the file goes. `DiskError`. What
        comes behind them is read afterwards, as most read on."""
        self._metrics.device_reads += 1
        reading = self._loop.run_in_executor(self._pool, file.prefetch, size, position)
        reading.add_done_callback(partial(self._read_on, file, position + size))
        return reading

    def _read_on(self, file: ReadFile, position: int, reading: asyncio.Future[None]) -> None:
        if not (self._is_closed or reading.cancelled() or reading.exception()):
            self._pool.submit(_bring_missing, file, position)

    def close(self) -> None:
        """Nobody asks any more; what is being read goes on."""
        self._is_closed = True
        self._pool.shutdown(wait=False)


def _bring_missing(file: ReadFile, position: int) -> None:
    """What fails here fails for whoever asks for it, should somebody."""
    if not file.is_resident(AHEAD_BYTES, position):
        file.prefetch(AHEAD_BYTES, position)
