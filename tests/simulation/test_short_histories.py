"""Short histories of cuts and rewrites: how they are drawn, and how many of them are played."""

from __future__ import annotations

import time

import pytest

from simulator.cluster import playing
from simulator.cluster.playing import draw_cutting, draw_rewriting, play_many
from simulator.cluster.short_histories import BEGINNINGS, CUT_WINDOWS, WINDOWS
from simulator.history import Outcome, Plan

SHORT = 12
"""more acts than any short history has"""


def clean(plan: Plan) -> Outcome:
    return Outcome(plan.seed, None, "", 1, 1.0, 1.0)


@pytest.mark.parametrize("drawn", [draw_cutting, draw_rewriting])
def test_most_histories_are_short_and_some_are_long(drawn: playing.Drawn) -> None:
    lengths = [len(drawn(seed).acts) for seed in range(1, 201)]
    assert 180 <= sum(length < SHORT for length in lengths) < 200


def test_every_act_of_a_short_history_is_there() -> None:
    kinds = {kind for group in (*BEGINNINGS, *WINDOWS) for kind in group} | {*CUT_WINDOWS}
    drawn = {act.kind for seed in range(1, 401) for act in draw_rewriting(seed).acts}
    assert kinds | drawn <= playing.KINDS
    assert {kind for group in WINDOWS for kind in group} <= drawn


def test_a_run_plays_what_fits_into_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(plan: Plan) -> Outcome:
        time.sleep(0.02)
        return clean(plan)

    monkeypatch.setattr(playing, "warm_up", lambda **_: None)
    monkeypatch.setattr(playing, "play_apart", slow)
    seeds = [one.seed for one in play_many(range(1, 10_000), 2, until_s=time.monotonic() + 0.2)]
    assert seeds == [*range(1, len(seeds) + 1)]
    assert 1 <= len(seeds) <= 30
    assert not list(play_many(range(1, 10), 2, until_s=time.monotonic()))


def test_a_history_whose_process_dies_fails_and_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(plan: Plan) -> Outcome:
        if plan.seed == 2:
            raise RuntimeError("the child process died")
        return clean(plan)

    monkeypatch.setattr(playing, "warm_up", lambda **_: None)
    monkeypatch.setattr(playing, "play_apart", dies)
    told = {one.seed: one.problem for one in play_many(range(1, 4), 1)}
    assert told == {1: None, 2: "its process did not end: the child process died", 3: None}
