"""Rewrites and erasures in simulated clusters: histories are clean, and planted bugs are found."""

from __future__ import annotations

from random import Random

import pytest

from simulator.acts import Act
from simulator.cluster.order_acts import ORDER_ACTS
from simulator.cluster.plants import tell_plants
from simulator.cluster.playing import draw_rewriting, play_apart
from simulator.cluster.rewrite_plants import OF_REWRITES, WITHIN_OF_REWRITES
from simulator.history import Outcome, Plan

KINDS = ("create_topic", "fill_chain", "settle_down", "order_erasure", "kill_amid_rewrite", "fill_chain")


def play(seed: int, *kinds: str) -> Outcome:
    random = Random(seed)
    acts = tuple(Act(kind, random.getrandbits(48)) for kind in kinds)
    return play_apart(Plan(seed, 3, acts, tiered=True, cutting=True, rewriting=True))


@pytest.mark.timeout(600)
def test_keys_are_erased_from_logs_bucket_and_cuts_amid_a_kill() -> None:
    outcome = play(5, *KINDS)
    assert outcome.problem is None
    assert outcome.calls["orders_done"] == 1
    assert outcome.calls["rewrites"] > 0


@pytest.mark.timeout(600)
def test_small_segments_are_merged_under_producing() -> None:
    outcome = play(8, "create_topic", "fill_chain", "fill_chain", "settle_down", "fill_chain", "settle_down")
    assert outcome.problem is None
    assert outcome.calls["merges"] > 0


@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(1, 13))
def test_a_history_with_rewrites_is_clean(seed: int) -> None:
    problem = play_apart(draw_rewriting(seed)).problem
    assert problem is None, f"{problem}\nagain: make sim-rewrites SEED={seed} HISTORIES=1"


def test_keys_are_erased_in_most_histories() -> None:
    orders = {"order_erasure", *ORDER_ACTS}
    erased = [any(act.kind in orders for act in draw_rewriting(seed).acts) for seed in range(1, 101)]
    assert sum(erased) >= 60


def test_each_planted_bug_of_rewrites_has_a_budget() -> None:
    assert WITHIN_OF_REWRITES.keys() == OF_REWRITES.keys()
    assert max(WITHIN_OF_REWRITES.values()) <= 200


@pytest.mark.thorough
@pytest.mark.timeout(3600)
def test_every_planted_bug_of_rewrites_is_found_within_its_budget(capsys: pytest.CaptureFixture[str]) -> None:
    assert tell_plants([*OF_REWRITES], 1), capsys.readouterr().out
