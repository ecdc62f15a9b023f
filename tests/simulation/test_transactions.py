"""Groups and transactions in simulated clusters: histories are clean, and a planted bug is found."""

from __future__ import annotations

from random import Random

import pytest

from simulator.acts import Act
from simulator.apart import apart
from simulator.cluster.plants import budget_of, find, tell_plants
from simulator.cluster.playing import draw_transactional, play_apart
from simulator.cluster.transaction_plants import OF_TRANSACTIONS, WITHIN_OF_TRANSACTIONS
from simulator.history import Plan

SEEDS = (1, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(2, 13)))
FOUND_SOON = {"markers_before_the_decision_is_committed": (1, "X2")}
"""The first seed, and what is seen."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_history_with_transactions_is_clean(seed: int) -> None:
    problem = play_apart(draw_transactional(seed)).problem
    assert problem is None, f"{problem}\nagain: make sim-transactions SEED={seed} HISTORIES=1"


def test_the_same_seed_is_the_same_history() -> None:
    assert draw_transactional(5) == draw_transactional(5)
    assert draw_transactional(5) != draw_transactional(6)


@pytest.mark.parametrize("name", OF_TRANSACTIONS)
def test_a_bug_of_transactions_can_be_planted(name: str) -> None:
    apart(OF_TRANSACTIONS[name])


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", FOUND_SOON)
def test_a_planted_bug_of_transactions_is_found(name: str) -> None:
    first, sign = FOUND_SOON[name]
    found = find(OF_TRANSACTIONS[name], first, 8, transactional=True)
    assert found is not None
    assert sign in found[1]


@pytest.mark.timeout(600)
def test_a_late_decision_that_is_dropped_shows_once_followers_have_stood_still() -> None:
    random = Random(1)
    kinds = "create_topic", "make_internal_topics", "stall_followers"
    acts = tuple(Act(kind, random.getrandbits(48)) for kind in kinds)
    plan = Plan(1, 3, acts, tiered=False, transactional=True)
    planted = play_apart(plan, before=OF_TRANSACTIONS["late_decision_is_dropped"])
    assert planted.problem is not None
    assert planted.problem.startswith("X11: ")
    assert play_apart(plan).problem is None


def test_each_planted_bug_of_transactions_has_a_budget() -> None:
    assert WITHIN_OF_TRANSACTIONS.keys() == OF_TRANSACTIONS.keys()
    assert budget_of("guard_outlives_the_marker") < budget_of("killed_is_unclean")


@pytest.mark.thorough
@pytest.mark.timeout(3600)
def test_every_planted_bug_of_transactions_is_found_within_its_budget(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert tell_plants([*OF_TRANSACTIONS], 1), capsys.readouterr().out
