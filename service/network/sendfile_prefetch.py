"""Prefetch of file ranges before ``sendfile``, on threads, so that the loop never waits for the device.

A reader that is far behind wants pages that the kernel may have evicted. ``sendfile`` would read them in the
loop, behind current writeback: 20 to 60 ms for a quarter of a megabyte were measured, for every connection.

So the sender asks, a megabyte at a time, which pages of a large range are in the page cache (2 us, of 1,000
for sending it). The loop reads small ranges only if they need no waiting. Once a thread has prefetched from a
file, the kernel's own readahead is off for it: otherwise ``sendfile`` would read megabytes ahead.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final, Protocol

from service.base.threads import Threads
from service.base.types import Buffer
from service.network.metrics import NetworkMetrics

AHEAD_BYTES: Final = 1 << 20
"""Bytes that are probed and prefetched at once."""
_THREADS: Final = 4


class ReadFile(Protocol):
    """File that can be read without waiting. Its methods raise `DiskError`."""

    def pread(self, size: int, position: int) -> bytes:
        """Read `size` bytes from `position`; fewer at the end of the file only."""

    def pread_nowait(self, size: int, position: int) -> Buffer | None:
        """See `Disk.pread_nowait`."""

    def fill_nowait(self, space: memoryview, position: int) -> bool:
        """See `Disk.fill_nowait`."""

    def is_resident(self, size: int, position: int) -> bool:
        """See `Disk.is_resident`."""

    def prefetch(self, size: int, position: int) -> None:
        """See `Disk.prefetch`."""


class SendfilePrefetcher:
    """Prefetching threads of one server, started when needed. Owned by the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, threads: Threads, metrics: NetworkMetrics) -> None:
        self._loop = loop
        self._pool = threads.pool("read-ahead", _THREADS)
        self._metrics = metrics
        self._is_closed = False

    def read(self, file: ReadFile, size: int, position: int) -> asyncio.Future[None]:
        """Prefetch these bytes, up to the end of the file, on a thread; the future may raise `DiskError`.
        Then the bytes after them are prefetched too, because most readers continue."""
        self._metrics.device_reads += 1
        reading = self._loop.run_in_executor(self._pool, file.prefetch, size, position)
        reading.add_done_callback(partial(self._read_on, file, position + size))
        return reading

    def _read_on(self, file: ReadFile, position: int, reading: asyncio.Future[None]) -> None:
        if not (self._is_closed or reading.cancelled() or reading.exception()):
            self._pool.submit(_prefetch_missing, file, position)

    def close(self) -> None:
        """Start no more prefetches; those under way continue."""
        self._is_closed = True
        self._pool.shutdown(wait=False)


def _prefetch_missing(file: ReadFile, position: int) -> None:
    """Prefetch unless resident. Errors are dropped: a later read of the same bytes reports them."""
    if not file.is_resident(AHEAD_BYTES, position):
        file.prefetch(AHEAD_BYTES, position)
