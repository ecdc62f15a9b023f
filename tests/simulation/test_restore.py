"""Disks that are lost in the simulator, and what a recovery reads back of the bucket."""

from __future__ import annotations

import pytest

from simulator.apart import apart
from simulator.restore import several
from simulator.restore.alone import DISASTERS, Disaster, suffer
from simulator.restore.plants import PLANTS

FEW = (
    "disk lost, first start killed when ready",
    "topics.json damaged",
    "all copies of the metadata gone",
    "second disk lost, same topics, first life's documents back",
    "disk of a clone",
    "all documents old, swept",
)
FEW_OF_SEVERAL = (
    "all disks lost, first start killed when ready",
    "all disks lost, taken over under another node id",
    "logs of all nodes lost, HEADs gone",
)


@pytest.mark.parametrize("disaster", [one for one in DISASTERS if one.name in FEW], ids=lambda one: one.name)
def test_all_is_read_back(disaster: Disaster) -> None:
    assert apart(lambda: suffer(disaster, 1)) is None


@pytest.mark.thorough
@pytest.mark.parametrize("disaster", DISASTERS, ids=lambda one: one.name)
def test_all_is_read_back_whatever_happened(disaster: Disaster) -> None:
    for seed in (2, 3):
        assert apart(lambda at=seed: suffer(disaster, at)) is None, f"seed {seed}"  # type: ignore[misc]


@pytest.mark.thorough
@pytest.mark.parametrize("plant", PLANTS, ids=lambda one: one.__name__)
def test_a_defect_that_is_put_back_is_found(plant: object) -> None:
    found = [apart(lambda one=one: suffer(one, 1, plant)) for one in DISASTERS]  # type: ignore
    assert any(found)


@pytest.mark.parametrize(
    "disaster", [one for one in several.DISASTERS if one.name in FEW_OF_SEVERAL], ids=lambda one: one.name
)
def test_all_is_read_back_of_three_nodes(disaster: several.Disaster) -> None:
    assert apart(lambda: several.suffer(disaster, 1)) is None


@pytest.mark.thorough
@pytest.mark.parametrize("disaster", several.DISASTERS, ids=lambda one: one.name)
def test_all_is_read_back_of_three_nodes_whatever_happened(disaster: several.Disaster) -> None:
    assert apart(lambda: several.suffer(disaster, 2)) is None
