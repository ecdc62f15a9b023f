"""Cuts in simulated clusters that lose everything: histories are clean."""

from __future__ import annotations

import pytest

from simulator.cluster.cut_plants import OF_CUTS, WITHIN_OF_CUTS
from simulator.cluster.playing import draw_cutting, play_apart

SEEDS = (2, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(3, 13)))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_history_with_cuts_is_clean(seed: int) -> None:
    problem = play_apart(draw_cutting(seed)).problem
    assert problem is None, f"{problem}\nagain: make sim-cuts SEED={seed} HISTORIES=1"


def test_everything_is_lost_in_most_histories() -> None:
    lost = [draw_cutting(seed).acts[-1].kind == "lose_everything" for seed in range(1, 101)]
    assert 50 <= sum(lost) <= 70


def test_each_planted_bug_of_cuts_has_a_budget() -> None:
    assert WITHIN_OF_CUTS.keys() == OF_CUTS.keys()
    assert max(WITHIN_OF_CUTS.values()) <= 200
