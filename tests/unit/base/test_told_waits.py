"""A wait is told after two seconds, and then rarely; one that is over is not told."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from service.base import told_waits
from service.base.told_waits import PAUSES_S, wait_logged, wait_said

log = logging.getLogger("waits")


def test_the_first_line_comes_after_two_seconds_and_later_ones_are_rare() -> None:
    assert PAUSES_S == (2.0, 8.0, 20.0, 30.0)


def test_a_wait_of_the_loop_is_logged_while_it_lasts(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(told_waits, "PAUSES_S", (0.01, 0.01))

    async def run() -> None:
        with wait_logged(log, lambda: "waiting for a controller"):
            while len(caplog.records) < 3:
                await asyncio.sleep(0.001)
        caplog.clear()
        await asyncio.sleep(0.03)

    asyncio.run(run())
    assert caplog.records == []


def test_a_blocking_wait_is_said_while_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(told_waits, "PAUSES_S", (0.01, 0.01))
    twice, said = threading.Event(), [0]

    def say() -> None:
        said[0] += 1
        if said[0] == 2:
            twice.set()

    with wait_said(say):
        assert twice.wait(20)
    before = said[0]
    threading.Event().wait(0.03)
    assert said[0] == before
