"""Turns that held the loop long are one line a minute, and a warning only from a second on."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from service.base.turns import LongTurn
from service.node.long_turns import LongTurnLog


class Later:
    """`loop.call_later`, whose time passes at once: `pass_by` calls what waits."""

    def __init__(self) -> None:
        self.waiting: list[tuple[float, Callable[[], None]]] = []

    def __call__(self, delay: float, callback: Callable[[], None], /) -> None:
        self.waiting.append((delay, callback))

    def pass_by(self) -> float:
        ((delay, callback),) = self.waiting
        self.waiting.clear()
        callback()
        return delay


def test_long_turns_of_a_minute_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    later = Later()
    turns = LongTurnLog(later)
    turns.note(LongTurn(0.06, 1.0, "metrics"))
    assert later.pass_by() == 2.0
    for took_s in (0.07, 0.312, 0.08):
        turns.note(LongTurn(took_s, 2.0, f"work of {took_s} s"))
    assert later.pass_by() == 60.0
    assert later.pass_by() == 60.0  # nothing was long
    assert later.waiting == []
    assert [(one.levelname, one.getMessage()) for one in caplog.records] == [
        ("INFO", "a turn of the loop took 60 ms: metrics"),
        (
            "INFO",
            "3 turns of the loop took more than 50 ms within 60 s, the longest 312 ms: work of 0.312 s",
        ),
    ]


def test_a_turn_of_a_second_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    turns = LongTurnLog(Later())
    turns.note(LongTurn(1.0, 1.0, "a\nname"))
    turns.tell()
    assert [(one.levelname, one.getMessage()) for one in caplog.records] == [
        ("WARNING", "a turn of the loop took 1000 ms: a\\nname")
    ]
