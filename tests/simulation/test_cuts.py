"""Cuts in simulated clusters that lose everything: histories are clean."""

from __future__ import annotations

from random import Random

import pytest

from simulator.acts import Act
from simulator.cluster.cut_plants import OF_CUTS, WITHIN_OF_CUTS
from simulator.cluster.plants import tell_plants
from simulator.cluster.playing import draw_cutting, play_apart
from simulator.history import Plan


@pytest.mark.timeout(600)
def test_a_cluster_comes_back_as_of_one_moment_once_everything_is_lost() -> None:
    random = Random(3)
    kinds = "create_topic", "first_cut", "chain", "lose_everything"
    acts = tuple(Act(kind, random.getrandbits(48)) for kind in kinds)
    outcome = play_apart(Plan(3, 3, acts, tiered=True, cutting=True))
    assert outcome.problem is None
    assert outcome.calls["heirs"] == 1


@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(1, 13))
def test_a_history_with_cuts_is_clean(seed: int) -> None:
    problem = play_apart(draw_cutting(seed)).problem
    assert problem is None, f"{problem}\nagain: make sim-cuts SEED={seed} HISTORIES=1"


def test_everything_is_lost_in_most_histories() -> None:
    lost = [draw_cutting(seed).acts[-1].kind == "lose_everything" for seed in range(1, 101)]
    assert 80 <= sum(lost) <= 95


def test_each_planted_bug_of_cuts_has_a_budget() -> None:
    assert WITHIN_OF_CUTS.keys() == OF_CUTS.keys()
    assert max(WITHIN_OF_CUTS.values()) <= 200


@pytest.mark.thorough
@pytest.mark.timeout(3600)
def test_every_planted_bug_of_cuts_is_found_within_its_budget(capsys: pytest.CaptureFixture[str]) -> None:
    assert tell_plants([*OF_CUTS], 1), capsys.readouterr().out
