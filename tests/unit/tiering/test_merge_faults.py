"""Every call to the store between the begin of a merge and the deletion of what it replaced, failing once."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.inspect.fsck import fsck
from tests.unit.tiering.merges import MergingWorld
from tests.unit.tiering.world import GRACE_MS, Decide, Fault, no_faults

FAULTS = [one for one in Fault if one is not Fault.PASS]


def counting(calls: list[str]) -> Decide:
    def decide(operation: str, key: str) -> Fault:
        calls.append(operation)
        return Fault.PASS

    return decide


def at_call(number: int, fault: Fault) -> Decide:
    left = [number]

    def decide(operation: str, key: str) -> Fault:
        left[0] -= 1
        return fault if left[0] == 0 else Fault.PASS

    return decide


def filled(folder: Path) -> MergingWorld:
    world = MergingWorld(folder)
    world.fill(10)
    world.settle()
    return world


def merged_and_swept(world: MergingWorld) -> None:
    """All that follows from a run that may be merged, but for what fails meanwhile."""
    world.merge()
    world.check()
    for _ in range(2):
        world.clock.advance(GRACE_MS)
        world.run()
        world.check()


@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_call_that_fails_loses_nothing_and_leaves_nothing(tmp_path: Path, fault: Fault) -> None:
    calls: list[str] = []
    world = filled(tmp_path / "counted")
    world.store.decide = counting(calls)
    merged_and_swept(world)
    assert len(calls) >= 25
    for number in range(1, len(calls) + 1):
        world = filled(tmp_path / str(number))
        world.store.decide = at_call(number, fault)
        merged_and_swept(world)
        world.store.decide = no_faults
        world.settle()
        for _ in range(3):  # an intent that is left is given up after ten minutes
            world.clock.advance(700_000)
            world.merge()
            world.settle()
        assert world.generations(world.replicas[0]) == [1], f"call {number}, {calls[number - 1]}"
        assert world.catalog.intents == {}
        world.sweep()
        world.settle()
        world.check_at_rest()
        assert fsck(world.bucket, deep=True).is_clean
