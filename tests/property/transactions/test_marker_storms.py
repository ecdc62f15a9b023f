"""Markers under loss, elections, deletions and depositions: every decision is carried out, and no other."""

from __future__ import annotations

import pytest

from tests.property.transactions.marker_storm import PLANTS, MarkerStorm, Violation


def test_every_decision_is_carried_out() -> None:
    sent = 0
    for seed in range(150):
        try:
            sent += MarkerStorm(seed).play()
        except Violation as e:
            pytest.fail(f"{e}: again with MarkerStorm({seed}).play()")
    assert sent > 1_000


def test_the_same_seed_is_the_same_history() -> None:
    assert MarkerStorm(3).play() == MarkerStorm(3).play()


@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_mistake_is_found(plant: str) -> None:
    def shows(seed: int) -> bool:
        try:
            MarkerStorm(seed, PLANTS[plant]).play()
        except Violation:
            return True
        return False

    assert any(map(shows, range(100)))
