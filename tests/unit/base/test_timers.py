"""Deadlines of an event loop: never early, and long ones together."""

from __future__ import annotations

import asyncio

import pytest

from service.base.purgatory import Operation
from service.base.timers import Timers


class Waiting(Operation):
    def completed(self, *, expired: bool) -> None:
        """Do nothing: no caller waits."""


class Clock(asyncio.SelectorEventLoop):
    """A loop whose clock stands where a test puts it."""

    now_s = 1000.0

    def time(self) -> float:
        return self.now_s


def due_ms(timers: Timers) -> int:
    """Return when the operations of `timers` are due: all are over then, and none a millisecond before."""
    purgatory = timers.purgatory
    while (next_ms := purgatory.next_ms) is not None:
        purgatory.advance(next_ms)
        if not len(purgatory):
            return next_ms
    raise AssertionError("nothing waits")


@pytest.mark.parametrize("timeout_ms", [1, 100, 500, 511, 512, 1_000, 10_000, 30_000, 300_000])
@pytest.mark.parametrize("offset_ms", [0, 1, 17, 31])
def test_a_wait_ends_at_its_time_or_by_less_than_a_256th_later(timeout_ms: int, offset_ms: int) -> None:
    loop = Clock()
    try:
        loop.now_s += offset_ms / 1000
        timers = Timers(loop)
        timers.watch(Waiting(), ("key",), timeout_ms / 1000)
        late_ms = due_ms(timers) - loop.now_s * 1000 - timeout_ms
        assert -1e-6 <= late_ms <= timeout_ms / 256 + 1
    finally:
        loop.close()


def test_long_waits_that_begin_one_after_the_other_end_together() -> None:
    loop = Clock()
    try:
        timers = Timers(loop)
        for _ in range(320):
            timers.watch(Waiting(), ("key",), 10.0)
            loop.now_s += 0.001
        ends = set()
        while (next_ms := timers.purgatory.next_ms) is not None:
            if timers.purgatory.advance(next_ms):
                ends.add(next_ms)
        assert len(ends) <= 320 / 32 + 1
    finally:
        loop.close()


class Session(Operation):
    def __init__(self) -> None:
        super().__init__()
        self.is_over = False

    def completed(self, *, expired: bool) -> None:
        self.is_over = expired


def test_deadlines_are_extended_after_a_standstill_of_the_loop() -> None:
    loop = Clock()

    def turn(passed_s: float) -> None:
        loop.now_s += passed_s
        loop.call_soon(loop.stop)
        loop.run_forever()

    try:
        timers = Timers(loop)
        heard, silent = Session(), Session()
        timers.watch(heard, (), 6.0)
        timers.watch(silent, (), 6.0)
        turn(0.1)
        turn(9.0)  # the process was stopped so long
        turn(0.4)
        assert not heard.is_over
        assert not silent.is_over
        timers.purgatory.forget(heard)
        turn(0.2)
        assert silent.is_over, "half a second is enough, and is given once"
        assert not heard.is_over
        late = Session()
        timers.watch(late, (), 0.1)
        turn(0.9)
        assert late.is_over, "a long turn is no standstill"
    finally:
        loop.close()
