"""A failing history made small: acts are taken out while it still fails alike."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import replace

from simulator.history import Outcome, Plan, play_apart

_NUMBERS = re.compile(r"[0-9a-f-]{36}|\d+")


def kind_of(problem: str) -> str:
    """Return the problem without its numbers, which change when acts are removed.

    >>> kind_of("t1-0: its end went back from 28 to 0")
    't#-#: its end went back from # to #'
    """
    return _NUMBERS.sub("#", problem.splitlines()[0])[:60]


def shrink(
    plan: Plan,
    problem: str,
    *,
    seconds: float = 20.0,
    before: Callable[[], None] | None = None,
    play: Callable[..., Outcome] = play_apart,
) -> tuple[Plan, Outcome]:
    """Return the smallest plan with the same problem found in that time, and its outcome. `play`: of its
    world."""
    wanted = kind_of(problem)
    deadline = time.monotonic() + seconds
    best, best_outcome = plan, play(plan, before=before)
    size = max(len(plan.acts) // 2, 1)
    while size >= 1 and time.monotonic() < deadline:
        at, smaller = 0, False
        while at < len(best.acts) and time.monotonic() < deadline:
            tried = replace(best, acts=best.acts[:at] + best.acts[at + size :])
            outcome = play(tried, before=before)
            if outcome.problem is not None and kind_of(outcome.problem) == wanted:
                best, best_outcome, smaller = tried, outcome, True
            else:
                at += size
        if not smaller or size > len(best.acts):
            size //= 2
    return best, best_outcome
