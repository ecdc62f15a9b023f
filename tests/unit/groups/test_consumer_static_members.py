"""Static members of KIP-848 groups."""

from __future__ import annotations

from tests.support.consumer_groups import Consumer, partitions_of
from tests.unit.groups.consumers import E, consumers, settle


def test_a_static_member_that_is_back_takes_its_place() -> None:
    c = consumers()
    first = c.enter("a", "apples", instance="one")
    other = Consumer(c, "x", names=("apples",))
    a = Consumer(c, "a", names=("apples",), instance="one")
    a.epoch, a.has, a._in_full = 2, partitions_of(first.assignment), False
    settle(a, other)
    had, epoch = a.has, c.world.group().epoch
    a.leave(for_good=False)
    assert c.member("a").epoch == -2
    assert other.beat() is None
    assert len(other.has) == 2, "nobody else gets what it had"
    back = c.enter("a2", "apples", instance="one")
    assert partitions_of(back.assignment) == had
    assert c.world.group().epoch == epoch, "nobody is disturbed"
    assert "a" not in c.world.group().members
    assert c.says("a", 3, instance="one").error_code == E.fenced_instance_id


def test_a_static_member_that_stays_away_is_fenced_in_the_end() -> None:
    c = consumers()
    epoch = c.enter("a", "apples", instance="one").member_epoch
    answer = c.says("a", -2, instance="one")
    assert (answer.error_code, answer.member_epoch) == (E.none, -2)
    c.leader.advance(45_000)
    assert c.look().is_empty
    assert c.says("a", epoch, instance="one").error_code == E.unknown_member_id


def test_an_instance_id_that_is_held_is_not_released() -> None:
    c = consumers()
    c.enter("a", "apples", instance="one")
    answer = c.enter("b", "apples", instance="one")
    assert answer.error_code == E.unreleased_instance_id
    assert answer.error_message
    assert set(c.world.group().members) == {"a"}


def test_a_static_member_that_leaves_for_good_is_gone() -> None:
    c = consumers()
    c.enter("a", "apples", instance="one")
    assert c.says("b", -1, instance="one").error_code == E.fenced_instance_id
    assert c.says("a", -1, instance="two").error_code == E.unknown_member_id
    assert c.says("a", -1, instance="one").member_epoch == -1
    assert c.enter("b", "apples", instance="one").error_code == E.none
