"""The machines world: histories of several Raft machines are clean, and planted bugs are found."""

from __future__ import annotations

import pytest

from simulator.machines.playing import find, play
from simulator.machines.world import MachinesWorld

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
        1,
        *(pytest.param(first, marks=pytest.mark.thorough) for first in range(101, 1001, 100)),
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


@pytest.mark.parametrize("seed", [seed for seed in range(1, 40) if MachinesWorld(seed).kraft_version])
def test_controllers_whose_addresses_all_changed_find_each_other_by_the_bootstrap_servers(seed: int) -> None:
    """All were stopped, and no address in the voters' record is one of theirs any more."""
    world = MachinesWorld(seed)

    def is_led() -> bool:
        return any(one.is_leader for one in world.replicas.values())

    for replica in world.replicas.values():
        replica.start()
    assert world.run_until(20_000, is_led)
    world.run_until(25_000)
    for replica in world.replicas.values():
        replica.crash()
        replica.endpoint = replica.endpoint._replace(host=f"n{replica.node_id}-moved")
    world.bootstrap = tuple(one.endpoint for one in world.replicas.values() if one.can_vote)
    for replica in world.replicas.values():
        replica.start()
    assert world.run_until(world.now + 20_000, is_led), "nobody leads"

    def is_known() -> bool:
        known = [one.machine.core.voters for one in world.replicas.values()]
        return all(
            voter.endpoints == (world.replicas[voter.node_id].endpoint,)
            for voters in known
            for voter in voters
        )

    assert world.run_until(world.now + 60_000, is_known), "the record has them in the end"
