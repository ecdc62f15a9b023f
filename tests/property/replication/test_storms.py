"""Leaders and followers in storms of kills, losses, late messages and elections; planted bugs are found."""

from __future__ import annotations

import pytest

from tests.property.replication.plants import PLANTS, SELDOM_SHOW
from tests.property.replication.world import World


@pytest.mark.parametrize("first", range(1, 301, 50))
def test_fifty_histories_are_clean(first: int) -> None:
    for seed in range(first, first + 50):
        problem = World(seed).play().problem
        assert problem is None, f"{problem}\nagain: World({seed}).play() of tests.property.replication.world"


def test_the_same_seed_is_the_same_history() -> None:
    assert World(17).play() == World(17).play()


@pytest.mark.parametrize("plant", [name for name in PLANTS if name not in SELDOM_SHOW])
def test_a_planted_bug_is_found(plant: str) -> None:
    assert any(World(seed, PLANTS[plant]).play().problem is not None for seed in range(1, 301))
