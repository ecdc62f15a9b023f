"""Groups that turn from the classic protocol to KIP-848's and back, member by member."""

from __future__ import annotations

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.groups.classic.group import ClassicGroup
from service.groups.config import UNBOUNDED
from service.groups.consumer.group import ConsumerGroup
from service.groups.consumer_config import ConsumerConfig, MigrationPolicy
from service.groups.protocol import (
    MOST_NAMES,
    Assignment,
    Subscription,
    decode_assignment,
    encode_assignment,
    encode_subscription,
)
from tests.support.consumer_groups import Consumer, Consumers, World

E = ErrorCode


def subscription(*topics: str, owned: dict[str, set[int]] | None = None, **about: Any) -> bytes:
    has = tuple((topic, tuple(sorted(numbers))) for topic, numbers in (owned or {}).items())
    return encode_subscription(Subscription(3, topics, owned=has, **about))


class Old:
    """A member of the classic protocol that owns what it is given, and gives up what it is not."""

    def __init__(self, c: Consumers, *topics: str, instance: str | None = None, name: str = "range") -> None:
        self.c, self.topics, self.instance, self.name = c, topics, instance, name
        self.member_id = ""
        self.generation = -1
        self.has: dict[str, set[int]] = {}

    def protocols(self) -> tuple[tuple[str, bytes], ...]:
        return ((self.name, subscription(*self.topics, owned=self.has)),)

    def join(self) -> Any:
        """The answer to JoinGroup, or None while it waits."""
        ticket = self.c.join(self.member_id, protocols=self.protocols(), instance=self.instance)
        if not self.c.leader.waits(ticket) and self.c.error(ticket) == E.member_id_required:
            self.member_id = self.c.answer(ticket).member_id
            ticket = self.c.join(self.member_id, protocols=self.protocols(), instance=self.instance)
        self.ticket = ticket
        return None if self.c.leader.waits(ticket) else self.joined()

    def joined(self) -> Any:
        answer = self.c.answer(self.ticket)
        if answer.error_code == E.none:
            self.member_id, self.generation = answer.member_id, answer.generation_id
        return answer

    def sync(self, given: dict[str, bytes] | None = None) -> E:
        ticket = self.c.sync(self.member_id, self.generation, given, instance=self.instance)
        answer = self.c.answer(ticket)
        if answer.error_code == E.none:
            self.take(answer.assignment)
        return E(answer.error_code)

    def take(self, assignment: bytes) -> None:
        self.has = {topic: set(numbers) for topic, numbers in decode_assignment(assignment).partitions}

    def heartbeat(self) -> E:
        return self.c.error(self.c.heartbeat(self.member_id, self.generation, instance=self.instance))

    def live(self) -> None:
        """Send the periodic requests of a member in a KIP-848 group."""
        if self.heartbeat() in (E.rebalance_in_progress, E.illegal_generation):
            assert self.join().error_code == E.none
            assert self.sync() in (E.none, E.rebalance_in_progress)

    def partitions(self) -> set[tuple[str, int]]:
        return {(topic, n) for topic, numbers in self.has.items() for n in numbers}


def world(policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL, **about: Any) -> Consumers:
    made = World(ConsumerConfig(assignment_interval_ms=0, migration_policy=policy, **about))
    made.make_topic("apples", 4)
    return Consumers(made)


def classic(c: Consumers, *members: Old, user_data: bytes | None = None) -> None:
    """A stable classic group of these; the first gets apples 0 and so on."""
    for member in members:
        member.join()
    c.leader.advance(0)
    for member in members:
        if member.generation < 0:
            member.joined()
    if len({m.generation for m in members}) > 1 or members[0].generation < 0:
        raise AssertionError("no common generation")
    share = 4 // len(members)
    given = {
        m.member_id: encode_assignment(
            Assignment(3, (("apples", tuple(range(n * share, (n + 1) * share))),), user_data)
        )
        for n, m in enumerate(members)
    }
    leader = next(m for m in members if c.answer(m.ticket).leader == m.member_id)
    tickets = {
        m: c.sync(m.member_id, m.generation, given if m is leader else None, instance=m.instance)
        for m in members
    }
    for member, ticket in tickets.items():
        member.take(c.answer(ticket).assignment)
    assert c.state == "Stable"


def names_of(c: Consumers, consumer: Consumer) -> set[tuple[str, int]]:
    names = {topic.topic_id: name for name, topic in c.world.topics.items()}
    return {(names[topic_id], n) for topic_id, n in consumer.has}


def group(c: Consumers) -> Any:
    return c.leader.shard.groups["g"]


def test_a_classic_group_turns_at_the_first_member_of_kip_848_and_back_when_the_last_one_goes() -> None:
    c = world()
    a, b = Old(c, "apples"), Old(c, "apples")
    classic(c, a, b)
    generation = a.generation
    new = Consumer(c, "n", names=("apples",))
    assert new.beat() is None
    assert isinstance(group(c), ConsumerGroup)
    assert new.epoch == generation + 1
    assert not new.has, "nobody has given anything up yet"
    assert a.heartbeat() == E.rebalance_in_progress
    for _ in range(6):
        a.live()
        b.live()
        assert new.beat() is None
    assert sorted([len(a.partitions()), len(b.partitions()), len(new.has)]) == [1, 1, 2]
    assert not a.partitions() & b.partitions()
    assert not (a.partitions() | b.partitions()) & names_of(c, new)
    described = {m.member_id: m.member_type for m in c.world.modern.describe("g").members}
    assert described == {a.member_id: 0, b.member_id: 0, "n": 1}

    new.leave()
    assert isinstance(group(c), ClassicGroup)
    assert group(c).generation == generation + 1
    assert c.state == "PreparingRebalance"
    assert a.heartbeat() == E.rebalance_in_progress


def test_the_last_classic_member_may_go_and_the_group_is_one_of_kip_848() -> None:
    c = world()
    a = Old(c, "apples")
    classic(c, a)
    new = Consumer(c, "n", names=("apples",))
    new.beat()
    answer = c.answer(c.leave((a.member_id, None)))
    assert (answer.error_code, answer.members[0].error_code) == (E.none, E.none)
    for _ in range(3):
        assert new.beat() is None
    assert len(new.has) == 4
    assert isinstance(group(c), ConsumerGroup)


def test_an_upgrade_tells_waiting_classic_members_to_rejoin() -> None:
    c = world()
    a = Old(c, "apples")
    classic(c, a)
    other = Old(c, "apples")
    assert other.join() is None, "it waits for the first one to join again"
    Consumer(c, "n", names=("apples",)).beat()
    assert c.error(other.ticket) == E.rebalance_in_progress
    assert other.join().error_code == E.none
    assert isinstance(group(c), ConsumerGroup)
    assert not [name for name in c.leader.timers if name[0].startswith("classic")]  # type: ignore[index]


def test_a_refused_kip_848_member_does_not_disturb_the_classic_group() -> None:
    c = world(max_size=1)
    a = Old(c, "apples")
    classic(c, a)
    other = Old(c, "apples")
    assert other.join() is None
    timers = dict(c.leader.timers)
    assert c.enter("n", "apples").error_code == E.group_id_not_found
    c.world.config = c.world.config._replace(max_size=2)
    assert c.enter("n", "apples").error_code == E.group_max_size_reached
    assert c.leader.waits(other.ticket)
    assert c.leader.timers == timers
    a.join()
    assert other.joined().error_code == E.none


def test_an_empty_classic_group_gives_way() -> None:
    c = world(MigrationPolicy.DISABLED)
    a = Old(c, "apples")
    classic(c, a)
    c.leave((a.member_id, None))
    assert c.state == "Empty"
    new = Consumer(c, "n", names=("apples",))
    assert new.beat() is None
    assert len(new.has) == 4
    new.leave()
    assert c.state == "Empty"
    classic(c, Old(c, "apples"))
    assert isinstance(group(c), ClassicGroup)


@pytest.mark.parametrize(
    ("policy", "about"),
    [
        (MigrationPolicy.DISABLED, {}),
        (MigrationPolicy.DOWNGRADE, {}),
        (MigrationPolicy.UPGRADE, {"max_size": 0}),
    ],
)
def test_a_group_that_may_not_turn_is_not_found(policy: MigrationPolicy, about: dict[str, int]) -> None:
    c = world(policy, **about)
    a = Old(c, "apples")
    classic(c, a)
    log = list(c.leader.log)
    answer = c.enter("n", "apples")
    assert answer.error_code == E.group_id_not_found
    assert answer.error_message
    assert c.leader.log == log
    assert a.heartbeat() == E.none, "nobody is disturbed"


def test_an_assignor_of_ones_own_or_what_does_not_parse_keeps_a_group_classic() -> None:
    c = world()
    a = Old(c, "apples")
    classic(c, a, user_data=b"mine")
    assert "custom assignor" in c.enter("n", "apples").error_message
    assert c.enter("n", "apples").error_code == E.group_id_not_found
    c = world()
    c.stable("x", "y", protocols=(("range", b"\0\1\0\0\0\7"),))
    answer = c.enter("n", "apples")
    assert (answer.error_code, "malformed" in answer.error_message) == (E.group_id_not_found, True)
    assert isinstance(group(c), ClassicGroup)


def test_a_group_of_another_protocol_type_is_not_for_consumers() -> None:
    c = world()
    c.join(c.member_id(protocol_type="connect"), protocol_type="connect")
    c.leader.advance(0)
    assert c.enter("n", "apples").error_code == E.group_id_not_found


def test_a_classic_member_joins_a_group_of_kip_848() -> None:
    c = world()
    new = Consumer(c, "n", names=("apples",))
    new.beat()
    a = Old(c, "apples")
    answer = a.join()
    assert (answer.error_code, answer.protocol_type, answer.protocol_name) == (E.none, "consumer", "range")
    assert (answer.leader, answer.members) == ("", ())
    assert a.sync() == E.none
    assert not a.has
    for _ in range(4):
        assert new.beat() is None
        a.live()
    assert len(a.partitions()) == len(new.has) == 2
    assert c.look().state == "Stable"


def test_requests_of_classic_members_that_a_kip_848_group_refuses() -> None:
    c = world()
    new = Consumer(c, "n", names=("apples",))
    new.beat()
    a = Old(c, "apples")
    a.join()
    assert (
        c.error(c.join(protocols=(("range", b""),), protocol_type="connect")) == E.inconsistent_group_protocol
    )
    assert c.error(c.join(protocols=(("other", subscription("apples")),))) == E.inconsistent_group_protocol
    refused = c.answer(c.join("m", protocols=(("range", b"\0"),)))
    assert (refused.error_code, refused.member_id) == (E.unknown_server_error, "")
    many = subscription(*[f"t{n}" for n in range(MOST_NAMES + 1)])
    assert c.error(c.join("m", protocols=(("range", many),))) == E.unknown_server_error
    assert c.error(c.sync(a.member_id, a.generation + 1)) == E.illegal_generation
    assert c.error(c.sync("n", a.generation)) == E.unknown_member_id
    assert (
        c.error(c.sync(a.member_id, a.generation, protocol_type="connect")) == E.inconsistent_group_protocol
    )
    assert c.error(c.sync(a.member_id, a.generation, protocol_name="best")) == E.inconsistent_group_protocol
    assert c.error(c.heartbeat("nobody", 1)) == E.unknown_member_id
    assert c.error(c.heartbeat(a.member_id, 99)) == E.illegal_generation
    answer = c.answer(c.leave(("nobody", None), ("", "i"), (a.member_id, None)))
    assert [m.error_code for m in answer.members] == [E.unknown_member_id, E.unknown_member_id, E.none]


def test_policy_disabled_refuses_classic_members() -> None:
    c = world(MigrationPolicy.DISABLED)
    Consumer(c, "n", names=("apples",)).beat()
    assert c.error(c.join(protocols=(("range", subscription("apples")),))) == E.inconsistent_group_protocol


def test_a_classic_member_that_does_not_rejoin_or_sync_in_its_time_is_fenced() -> None:
    c = world()
    new = Consumer(c, "n", names=("apples",))
    new.beat()
    a = Old(c, "apples")
    a.join()
    for _ in range(7):
        c.leader.advance(8_000)
        a.heartbeat()
        new.beat()
    assert a.member_id in group(c).members
    c.leader.advance(8_000)
    assert a.member_id not in group(c).members, "it has not asked for its assignment in a minute"
    b = Old(c, "apples")
    b.join()
    b.sync()
    new.beat()
    Consumer(c, "o", names=("apples",)).beat()
    for _ in range(8):
        assert b.heartbeat() in (E.rebalance_in_progress, E.unknown_member_id)
        c.leader.advance(8_000)
        new.beat()
    assert b.member_id not in group(c).members, "it was told to rejoin a minute ago"


def test_a_classic_members_session_is_its_own() -> None:
    c = world()
    new = Consumer(c, "n", names=("apples",))
    new.beat()
    a = Old(c, "apples")
    a.join()
    a.sync()
    c.leader.advance(9_999)
    a.heartbeat()
    c.leader.advance(9_999)
    assert a.member_id in group(c).members
    c.leader.advance(1)
    assert a.member_id not in group(c).members
    assert isinstance(group(c), ConsumerGroup)


def test_static_members_change_protocols_one_by_one() -> None:
    c = world()
    a, b = Old(c, "apples", instance="one"), Old(c, "apples", instance="two")
    classic(c, a, b)
    had = a.partitions()
    a2 = Consumer(c, "a2", names=("apples",), instance="one")
    assert a2.beat() is None, "it takes the place of the classic one, which need not have left"
    assert names_of(c, a2) == had
    assert c.error(c.heartbeat(a.member_id, a.generation, instance="one")) == E.fenced_instance_id
    b2 = Consumer(c, "b2", names=("apples",), instance="two")
    assert b2.beat() is None
    for member in (a2, b2, a2, b2):
        assert member.beat() is None
    assert len(a2.has) == len(b2.has) == 2
    assert not any(m.classic for m in group(c).members.values())

    a2.leave(for_good=False)
    back = Old(c, "apples", instance="one")
    assert back.join().error_code == E.none
    assert back.sync() == E.none
    assert isinstance(group(c), ConsumerGroup)
    assert len(back.partitions()) == 2
    b2.leave(for_good=False)
    back2 = Old(c, "apples", instance="two")
    assert back2.join().error_code == E.none
    assert isinstance(group(c), ClassicGroup), "the last one has been replaced"
    assert back2.sync() == E.none
    assert c.state == "Stable", "and nobody was disturbed"
    assert len(back2.partitions()) == 2
    assert back.heartbeat() in (E.none, E.illegal_generation)


def test_downgrades_have_their_policy_and_their_bound() -> None:
    for policy, bound in ((MigrationPolicy.UPGRADE, UNBOUNDED), (MigrationPolicy.BIDIRECTIONAL, 0)):
        c = world(policy, classic_max_size=bound)
        a = Old(c, "apples")
        classic(c, a)
        new = Consumer(c, "n", names=("apples",))
        new.beat()
        new.leave()
        assert isinstance(group(c), ConsumerGroup)
        for _ in range(3):
            a.live()
        assert len(a.partitions()) == 4


def test_a_turn_that_is_not_written_leaves_the_group_as_it_was() -> None:
    c = world()
    a = Old(c, "apples")
    classic(c, a)
    c.leader.failing = E.coordinator_not_available
    failed = c.beat("n", 0, names=("apples",), has=(), timeout_ms=1000)
    assert isinstance(c.leader.answers[failed], RequestError)
    c.leader.failing = None
    assert isinstance(group(c), ClassicGroup)
    assert a.heartbeat() == E.none
    c.leader.advance(10_000)
    assert c.state in ("Empty", "PreparingRebalance"), "sessions go on, too"

    c = world()
    a = Old(c, "apples")
    classic(c, a)
    new = Consumer(c, "n", names=("apples",))
    new.beat()
    c.leader.failing = E.coordinator_not_available
    c.beat("n", -1)
    c.leader.failing = None
    assert isinstance(group(c), ConsumerGroup)
    a.live()
    c.leader.advance(9_999)
    a.live()
    c.leader.advance(45_000)
    assert not [name for name in c.leader.timers if name[0].startswith("classic")]  # type: ignore[index]


def test_both_turns_survive_a_reload() -> None:
    c = world()
    a, b = Old(c, "apples"), Old(c, "apples")
    classic(c, a, b)
    new = Consumer(c, "n", names=("apples",))
    new.beat()
    c.leader.reload()
    assert isinstance(group(c), ConsumerGroup)
    for _ in range(6):
        a.live()
        b.live()
        assert new.beat() is None
    assert c.look().state == "Stable"
    new.leave()
    c.leader.reload()
    assert isinstance(group(c), ClassicGroup)
    assert set(group(c).members) == {a.member_id, b.member_id}
