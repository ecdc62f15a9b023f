"""Attempts at a partition: the newest one counts, and the one before it has time to stop."""

from __future__ import annotations

import pytest

from service.base.errors import StorageError
from service.base.threads import SystemThreads
from service.pipelines.replay_claim import PATIENCE_S, Attempts, AttemptSuperseded, Claim, begin_run, claim
from service.pipelines.replay_state import Part, PartState
from service.remote.stores.memory_store import MemoryStore

PART = Part("flights", "id", 3, 10, 1000)


class World:
    """Time that passes while somebody waits; `at` happens then."""

    def __init__(self) -> None:
        self.store = MemoryStore(SystemThreads())
        self.now_s = 100.0
        self.at: dict[float, object] = {}

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        for when in [one for one in self.at if one <= self.now_s]:
            self.at.pop(when)()  # type: ignore[operator]

    def claim(self, run: int = 1) -> Claim:
        return claim(self.store, PART, run, clock=lambda: self.now_s, sleep=self.sleep)


def test_the_first_attempt_begins_at_once_where_the_partition_begins() -> None:
    world = World()
    found = world.claim()
    assert found.before == PartState(10, run=1)
    assert world.now_s == 100
    found.check()


def test_an_attempt_that_was_given_up_notices_and_its_successor_begins_where_it_ended() -> None:
    world = World()
    old = world.claim()
    old.save(20, 10, 100)

    def notice() -> None:
        with pytest.raises(AttemptSuperseded, match="flights-3: another attempt sends it now"):
            old.check()
        old.save(25, 15, 150, is_ended=True)

    world.at[101.0] = notice
    new = world.claim()
    assert new.before == PartState(25, 15, 150, run=1)
    assert world.now_s < 102
    new.save(30, 5, 50)
    assert Attempts(world.store).newest(PART) == (1, PartState(30, 20, 200, run=1))


def test_a_late_write_of_an_old_attempt_does_not_move_the_new_one() -> None:
    world = World()
    old = world.claim()
    new = world.claim()
    new.save(500, 490, 1)
    old.save(20, 10, 100, is_ended=True)
    assert Attempts(world.store).newest(PART)[1].next_offset == 500


def test_a_dead_attempt_is_waited_for_so_long_and_no_longer() -> None:
    world = World()
    world.claim().save(20, 10, 100)
    assert world.claim().before.next_offset == 20
    assert world.now_s == pytest.approx(100 + PATIENCE_S, abs=0.5)


def test_an_attempt_that_ended_is_not_waited_for() -> None:
    world = World()
    world.claim().save(20, 10, 100, is_ended=True)
    assert world.claim().before == PartState(20, 10, 100, run=1)
    assert world.now_s == 100


def test_an_attempt_superseded_while_waiting_does_not_start() -> None:
    world = World()
    world.claim()
    world.at[102.0] = world.claim
    with pytest.raises(AttemptSuperseded):
        world.claim()


def test_a_later_run_takes_over_and_the_earlier_one_cannot_claim_anything_back() -> None:
    world = World()
    first, second = begin_run(world.store), begin_run(world.store)
    old = world.claim(first)
    world.at[101.0] = lambda: old.save(20, 10, 100, is_ended=True)
    world.claim(second)
    with pytest.raises(AttemptSuperseded, match="another run of this replay"):
        world.claim(first)


def test_state_of_one_object_per_partition_is_the_first_attempt() -> None:
    world = World()
    old = b'{"format": "firn-replay", "format_version": 1, "next_offset": 20, "records": 10, "size_bytes": 9}'
    world.store.put("id/3.json", old)
    assert world.claim().before == PartState(20, 10, 9, run=1)


def test_attempts_without_end_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.pipelines.replay_claim.MAX_ATTEMPTS", 3)
    world = World()
    for _ in range(3):
        world.claim()
    with pytest.raises(StorageError, match="3 attempts is the maximum"):
        world.claim()
