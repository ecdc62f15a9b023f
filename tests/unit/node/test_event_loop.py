"""A real loop whose turns are measured: a turn that takes long is counted, named and logged."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import selectors
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable
from types import FrameType

import pytest

from service.base.threads import SystemThreads
from service.base.turns import TurnTimes
from service.node import event_loop
from service.node.event_loop import MOST_EVENTS, LoopWatch, MeasuredSelector, new_loop


async def _holds_the_loop(seconds: float) -> None:
    time.sleep(seconds)
    await asyncio.sleep(0)


async def _with_watch(turns: TurnTimes, seconds: float) -> None:
    watch = LoopWatch(turns, SystemThreads(), threading.get_ident(), lambda task: f"<{task.get_name()}>")
    watch.start()
    try:
        await asyncio.create_task(_holds_the_loop(seconds), name="chore")
        await asyncio.sleep(0.001)
    finally:
        watch.close()


def test_a_task_that_holds_the_loop_is_counted_named_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    turns = TurnTimes()
    with (
        caplog.at_level(logging.INFO),
        asyncio.Runner(loop_factory=lambda: new_loop(turns, time.monotonic, time.thread_time)) as runner,
    ):
        runner.run(_with_watch(turns, 0.3))
    longest = turns.longest[0]
    assert longest.took_s >= 0.3
    assert longest.who.startswith("<chore> in ")
    assert "_holds_the_loop" in longest.who
    assert turns.histogram.snapshot().total >= 0.3
    assert any("<chore>" in line.getMessage() for line in caplog.records)


def test_only_the_watchdog_inspects_the_stack_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    functions = event_loop._functions

    def look(frame: FrameType | None) -> Iterable[str]:
        looked.append(threading.get_ident())
        return functions(frame)

    monkeypatch.setattr(event_loop, "_functions", look)
    before = signal.getsignal(signal.SIGURG)
    turns = TurnTimes()
    with asyncio.Runner(loop_factory=lambda: new_loop(turns, time.monotonic, time.thread_time)) as runner:
        runner.run(_with_watch(turns, 0.3))
    assert set(looked) == {threading.get_ident()}
    assert signal.getsignal(signal.SIGURG) is before


def test_waiting_for_events_is_no_turn() -> None:
    turns = TurnTimes()
    with asyncio.Runner(loop_factory=lambda: new_loop(turns, time.monotonic, time.thread_time)) as runner:
        started = time.monotonic()
        runner.run(asyncio.sleep(0.5))
        took = time.monotonic() - started
    assert turns.histogram.total < took - 0.3


def test_between_turns_that_have_work_nothing_is_left_out() -> None:
    async def steps() -> None:
        end = time.monotonic() + 0.3
        while time.monotonic() < end:
            await asyncio.sleep(0)

    turns = TurnTimes()
    with asyncio.Runner(loop_factory=lambda: new_loop(turns, time.monotonic, time.thread_time)) as runner:
        runner.run(steps())
    assert turns.histogram.total >= 0.29


def test_a_thousand_peers_that_ask_at_once_have_their_turns_one_after_the_other() -> None:
    in_turn: list[int] = []

    async def asked() -> None:
        loop = asyncio.get_running_loop()
        left = 10 * MOST_EVENTS
        pairs = [socket.socketpair() for _ in range(left)]
        ended = asyncio.Event()

        def next_turn() -> None:
            in_turn.append(0)
            if not ended.is_set():
                loop.call_soon(next_turn)

        def readable(own: socket.socket) -> None:
            nonlocal left
            own.recv(1)
            in_turn[-1] += 1
            left -= 1
            if not left:
                ended.set()

        for own, other in pairs:
            loop.add_reader(own, readable, own)
            other.send(b"x")
        next_turn()
        await ended.wait()
        for own, other in pairs:
            loop.remove_reader(own)
            own.close()
            other.close()

    with asyncio.Runner(
        loop_factory=lambda: new_loop(TurnTimes(), time.monotonic, time.thread_time)
    ) as runner:
        runner.run(asked())
    assert sum(in_turn) == 10 * MOST_EVENTS
    assert max(in_turn) <= MOST_EVENTS


def test_the_selector_does_not_name_a_turn() -> None:
    stacks: list[list[str]] = []

    def now() -> float:
        stacks.append(list(event_loop._functions(sys._getframe())))
        return 0.0

    with MeasuredSelector(TurnTimes(), now, now) as selector:
        selector.select(0)
    assert len(stacks) == 2
    assert not any("MeasuredSelector" in name for stack in stacks for name in stack)


@pytest.mark.parametrize("asked", [selectors.EVENT_READ, selectors.EVENT_WRITE, 3])
@pytest.mark.parametrize("state", ["quiet", "readable", "full", "closed"])
def test_the_selector_tells_what_the_ordinary_one_tells(asked: int, state: str) -> None:
    one, other = socket.socketpair()
    with one, other, MeasuredSelector(TurnTimes(), lambda: 0.0, lambda: 0.0) as own:
        one.setblocking(False)
        if state == "readable":
            other.send(b"x")
        elif state == "full":
            with contextlib.suppress(BlockingIOError):
                while True:
                    one.send(bytes(1 << 16))
        elif state == "closed":
            other.close()
        with selectors.DefaultSelector() as ordinary:
            for selector in (own, ordinary):
                selector.register(one, asked, "data")
            assert own.select(0) == ordinary.select(0)
            assert own.select(0.0001) == ordinary.select(0.0001)
            own.unregister(one)
            assert own.select(-1) == []
