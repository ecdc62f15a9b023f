"""A change of one log's sealed segments in the background: steps, throttle, replacement. Base of two others.

Owned by the loop; `log-cleaner` threads read and write a few megabytes at a time, and never sleep: throttling
is done here. Their low priority leaves the processor to threads that serve clients. `log-io` threads replace
segments, as the log may have to wait for that.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from service.base.clock import Clock
from service.base.errors import StorageError
from service.base.files import FsyncFailed
from service.base.world import World
from service.hot.cleaning.segment_copy import BufferSizes, CleaningCounts, SegmentCopy, Steps
from service.hot.cleaning.swap import Swap, discard
from service.hot.log import LocalLog
from service.hot.log_io import LogIo

_log = logging.getLogger(__name__)

_STEP_BYTES: Final = 4 << 20
_STEP_S: Final = 0.3
"""Length of a step under throttling."""
_LEAST_WAIT_S: Final = 0.001
_LOOK_S: Final = 1.0
"""Interval at which a changed rate is noticed."""
_LEAST_BUFFER: Final = 16 << 10
_MOST_RATE: Final = 2.0**62


class CleanerSettings(NamedTuple):
    """The keys under ``log.cleaner.``; buffers are for all compactions together, in bytes."""

    is_enabled: bool = True
    threads: int = 1
    dedupe_bytes: int = 128 << 20
    buffer_bytes: int = 512 << 10
    load_factor: float = 0.9
    max_bytes_per_second: float = 1e300
    backoff_ms: int = 15_000


class Aborted(Exception):
    """The log is being deleted, is not compacted any more, or has changed meanwhile."""


class Throttle:
    """Limits what all compactions together read and write. Owned by the loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead = 0.0
        """bytes that were done in advance of the rate"""
        self._charged_ms = clock.monotonic_ms()

    def charge(self, done: int, bytes_per_second: float) -> float:
        """Count `done` bytes; returns how long (s) to wait now at this rate."""
        now_ms = self._clock.monotonic_ms()
        made_up = (now_ms - self._charged_ms) / 1000 * bytes_per_second
        self._ahead = max(self._ahead - made_up, 0.0) + done
        self._charged_ms = now_ms
        return self._ahead / bytes_per_second


class LogRewrite:
    """One change of one log. Set ``aborted`` to end it; ``over`` is set at its end; ``counts`` are its
    counters."""

    def __init__(
        self,
        log: LocalLog,
        io: LogIo,
        cleaner_io: LogIo,
        world: World,
        settings: Callable[[], CleanerSettings],
        throttle: Throttle,
        is_in_use: Callable[[LocalLog], bool],
    ) -> None:
        self.log = log
        self.aborted = asyncio.Event()
        self.over = asyncio.Event()
        self.counts = CleaningCounts()
        self._io = io
        self._cleaner_io = cleaner_io
        self._world = world
        self._settings = settings
        self._throttle = throttle
        self._is_in_use = is_in_use
        self._truncations = log.state.truncations

    @property
    def is_cut(self) -> bool:
        """Return whether the log was truncated meanwhile."""
        return self.log.state.truncations != self._truncations

    def _sizes(self) -> BufferSizes:
        """Return this change's part of the memory for buffers."""
        settings = self._settings()
        buffer = max(settings.buffer_bytes // max(settings.threads, 1) // 2, _LEAST_BUFFER)
        return BufferSizes(buffer, buffer)

    def _check(self) -> None:
        """Raise `Aborted` or `LogOffline` if the log must not be touched any more."""
        if self.aborted.is_set() or not self._is_in_use(self.log) or self.is_cut:
            raise Aborted
        self.log.check()

    async def _drive(self, work: Steps) -> None:
        """Run `work` step by step; undo it if it does not end."""
        try:
            while True:
                self._check()
                rate = self._settings().max_bytes_per_second
                step = max(min(_STEP_BYTES, int(min(rate * _STEP_S, _MOST_RATE))), 1)
                done, is_over = await self._cleaner_io.run(_advance, work, step)
                await self._wait(done, rate)
                if is_over:
                    return
        except asyncio.CancelledError:
            raise  # the node ends: the next start removes what is there
        except BaseException:
            await self._cleaner_io.run(work.close)
            raise

    async def _wait(self, done: int, rate: float) -> None:
        wait_s = self._throttle.charge(done, rate)
        while wait_s >= _LEAST_WAIT_S and not self.aborted.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(wait_s, _LOOK_S)):
                    await self.aborted.wait()
            wait_s = self._throttle.charge(0, self._settings().max_bytes_per_second)

    async def _swap(self, copy: SegmentCopy, *, leaves_gaps: bool) -> None:
        """Replace the copied segments. `leaves_gaps`: offsets are missing in the copy."""
        log, new = self.log, copy.new
        assert new is not None
        swap: Swap | None = None
        # A segment that was cut and appended to since is the same object with other bytes.
        if not self.aborted.is_set() and self._is_in_use(log) and not self.is_cut:
            swap = log.swapping.begin(copy.old, new, leaves_gaps=leaves_gaps)
        if swap is None:  # the log has changed: the copy is useless
            new.close()
            await self._io.run(discard, log.state.disk, new.log.path.with_suffix(""))
            raise Aborted
        try:
            await self._io.run(swap.run)
        except FsyncFailed as e:
            log.latch.fail(e)
        except StorageError as e:
            _log.warning("%s: %s", log.tip, e)  # `end` handles it
        log.swapping.end(swap)


def _advance(work: Steps, most_bytes: int) -> tuple[int, bool]:
    """Do `most_bytes` bytes of the work, on a thread; returns the bytes done, and whether it is over."""
    done = 0
    for step in work:
        done += step
        if done >= most_bytes:
            return done, False
    return done, True
