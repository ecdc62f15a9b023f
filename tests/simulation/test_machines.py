"""The machines world: histories of several Raft machines are clean, and planted bugs are found."""

from __future__ import annotations

import pytest

from simulator.machines.playing import find, play

SOME_PLANTS = (
    "unflushed_end_counted",
    "votes_for_a_shorter_log",
    "votes_twice",
    "voters_taken_at_commit",
    "fetches_before_it_has_flushed",
    "half_is_a_majority",
    "vote_not_persisted",
    "leadership_not_persisted",
    "truncation_keeps_voters",
    "voters_taken_at_commit",
    "old_answers_count",
)


@pytest.mark.parametrize(
    "first",
    [
        *range(1, 501, 100),
        *(pytest.param(first, marks=pytest.mark.thorough) for first in range(501, 1001, 100)),
    ],
)
def test_a_hundred_histories_are_clean(first: int) -> None:
    for seed in range(first, first + 100):
        problem = play(seed).problem
        assert problem is None, f"{problem}\nagain: make sim WORLD=machines SEED={seed} HISTORIES=1"


def test_the_same_seed_is_the_same_history() -> None:
    assert play(17) == play(17)


@pytest.mark.parametrize("plant", SOME_PLANTS)
def test_a_planted_bug_is_found(plant: str) -> None:
    assert find(plant, within=100).histories is not None
