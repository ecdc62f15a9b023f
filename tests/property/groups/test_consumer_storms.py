"""Storms of KIP-848 members: whatever happens to them, to topics and to the coordinator, nobody owns what
another one owns, and when it is quiet everything is owned, and evenly.

``STORM_SEED=n`` replays one storm.
"""

from __future__ import annotations

import importlib.util
import os
import random
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from service.groups.consumer.group import ConsumerGroup
from service.groups.consumer_config import ConsumerConfig
from tests.support.consumer_groups import Consumer, Consumers, Partition, World
from tests.support.shards import load

SEEDS = [int(os.environ["STORM_SEED"])] if "STORM_SEED" in os.environ else list(range(40))
HAS_RE2 = importlib.util.find_spec("re2") is not None
TOPICS = ("apples", "bananas", "cherries", "dates")
REGEXES = ("[ab].*", ".*s", "ch.*", "nothing")


class Storm:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.world = World(ConsumerConfig(assignment_interval_ms=self.random.choice((0, 0, 1000))))
        self.leader = self.world.leader
        self.consumers = Consumers(self.world)
        self.members: list[Consumer] = []
        self.asked: dict[Consumer, int] = {}
        """heartbeats that wait for their answers"""
        self.owners: dict[tuple[Partition, int], str] = {}
        self.born = 0
        self.same = self.random.random() < 0.5
        self.steps = {
            self.beat: 60,
            self.join: 6,
            self.crash: 2,
            self.leave: 2,
            self.restart: 3,
            self.double: 1,
            self.subscribe: 2,
            self.topic: 3,
            self.wait: 10,
            self.lag: 2,
            self.commit: 4,
            self.fail: 1,
            self.reload: 1,
        }
        for name in TOPICS[:2]:
            self.world.make_topic(name, self.random.randint(1, 6))

    # What may happen.

    def join(self) -> None:
        if len(self.members) >= 30:
            return
        self.born += 1
        instance = f"static-{self.random.randint(1, 4)}" if self.random.random() < 0.3 else None
        if any(member.instance == instance for member in self.members if instance):
            instance = None
        names, regex = self.subscription()
        self.members.append(
            Consumer(
                self.consumers,
                f"m{self.born}",
                names=names,
                regex=regex,
                instance=instance,
                assignor=self.random.choice((None, None, "uniform", "range")),
                slow=self.random.random() < 0.3,
            )
        )

    def subscription(self) -> tuple[tuple[str, ...], str | None]:
        if self.same:
            return TOPICS[:2], None
        if HAS_RE2 and self.random.random() < 0.3:
            return (), self.random.choice(REGEXES)
        return tuple(self.random.sample(TOPICS, self.random.randint(1, 3))), None

    def beat(self) -> None:
        if not self.members:
            return
        member = self.random.choice(self.members)
        ticket = self.asked.pop(member, None)
        if ticket is None:
            ticket = member.send()
            if self.leader.waits(ticket) and self.random.random() < 0.7:
                self.asked[member] = ticket
                return
        self.answered(member, ticket)

    def answered(self, member: Consumer, ticket: int) -> None:
        if self.random.random() < 0.1:
            member.lose()
            return
        error = member.take(ticket)
        if error is ErrorCode.unreleased_instance_id:
            self.members.remove(member)
            return
        assert error in (None, ErrorCode.fenced_member_epoch, ErrorCode.unknown_member_id,
                         ErrorCode.fenced_instance_id, ErrorCode.group_id_not_found), error  # fmt: skip
        if error is ErrorCode.group_id_not_found:
            member.fence()
        if error is ErrorCode.fenced_instance_id:
            self.members.remove(member)
            return
        if error is None and not self.leader.waits(ticket):
            self.told(member)

    def told(self, member: Consumer) -> None:
        given = member._given if member._given is not None else member.has
        if member.epoch <= 0:
            return
        for partition in given:
            owner = self.owners.setdefault((partition, member.epoch), member.owner)
            assert owner == member.owner, f"{partition} in epoch {member.epoch}: {owner} and {member.owner}"

    def crash(self) -> None:
        if self.members:
            self.forget(self.random.choice(self.members))

    def leave(self) -> None:
        if self.members:
            member = self.random.choice(self.members)
            member.leave()
            self.forget(member)

    def restart(self) -> None:
        """A static member leaves for a while, and comes back under another id."""
        static = [member for member in self.members if member.instance]
        if not static:
            return
        member = self.random.choice(static)
        member.leave(for_good=False)
        self.forget(member)
        if self.random.random() < 0.7:
            self.born += 1
            again = Consumer(
                self.consumers, f"m{self.born}", names=member.names, regex=member.regex,
                instance=member.instance, slow=member.slow,
            )  # fmt: skip
            self.members.append(again)

    def double(self) -> None:
        """A second member with an instance id that is held is refused, or takes the place of one away."""
        static = [member for member in self.members if member.instance]
        if static:
            self.born += 1
            one = self.random.choice(static)
            twin = Consumer(self.consumers, f"m{self.born}", names=one.names, instance=one.instance)
            if twin.beat() is None and twin.epoch > 0:
                self.forget(one)
                self.members.append(twin)
                self.told(twin)

    def forget(self, member: Consumer) -> None:
        self.members.remove(member)
        self.asked.pop(member, None)

    def subscribe(self) -> None:
        if self.members and not self.same:
            self.random.choice(self.members).subscribe(*self.subscription())

    def topic(self) -> None:
        name = self.random.choice(TOPICS)
        there = self.world.topics.get(name)
        if there is None:
            self.world.make_topic(name, self.random.randint(1, 6))
        elif self.random.random() < 0.5:
            self.world.make_topic(name, there.partitions + self.random.randint(1, 3))
        else:
            self.world.delete_topic(name)
            if self.random.random() < 0.5:
                self.world.make_topic(name, self.random.randint(1, 6))

    def wait(self) -> None:
        self.leader.advance(self.random.choice((10, 500, 5_000, 20_000)))

    def lag(self) -> None:
        self.leader.lagging = True

    def commit(self) -> None:
        self.leader.commit()

    def fail(self) -> None:
        if self.leader.lagging:
            self.leader.fail_uncommitted(ErrorCode.not_coordinator)
            return
        self.leader.failing = ErrorCode.coordinator_not_available
        self.beat()
        self.leader.failing = None

    def reload(self) -> None:
        """Another leader has what is committed, and some of the rest."""
        end = self.random.randint(self.leader.mark, len(self.leader.log))
        self.leader.reload(self.leader.log[:end])

    # What holds.

    def step(self) -> None:
        self.random.choices(list(self.steps), list(self.steps.values()))[0]()
        self.check()

    def check(self) -> None:
        group = self.leader.shard.groups.get("g")
        if not isinstance(group, ConsumerGroup):
            return
        having: dict[Partition, str] = {}
        for member in group.members.values():
            for owned in (member.assigned, member.pending_revocation):
                for topic_id, epochs in owned.items():
                    for number in epochs:
                        other = having.setdefault((topic_id, number), member.member_id)
                        assert other == member.member_id, (
                            f"{topic_id}-{number}: {other} and {member.member_id}"
                        )
                        assert group.owner(topic_id, number) == member.member_id
        assert sum(len(owners) for owners in group._owners.values()) == len(having)
        counted: dict[str, int] = {}
        for member in group.members.values():
            for name in member.topics:
                counted[name] = counted.get(name, 0) + 1
        assert {n: c.by_name for n, c in group.subscribed.items() if c.by_name} == counted
        assert group.classic_count == 0

    def calm(self) -> None:
        """Everybody beats, nothing happens; until everybody is where it should be."""
        self.leader.commit()
        for member in self.members:
            member.lose()
        self.asked.clear()
        for _ in range(60):
            for member in list(self.members):
                self.answered_for_sure(member)
            self.check()
            self.leader.advance(1_500)
            if self.is_settled():
                return
        raise AssertionError("the storm does not end")

    def answered_for_sure(self, member: Consumer) -> None:
        error = member.beat()
        if error in (ErrorCode.unreleased_instance_id, ErrorCode.fenced_instance_id):
            self.members.remove(member)
        elif error is ErrorCode.group_id_not_found:
            member.fence()
        elif error is None:
            self.told(member)

    def is_settled(self) -> bool:
        group = self.leader.shard.groups.get("g")
        if not isinstance(group, ConsumerGroup):
            return not self.members
        live = {member.member_id for member in self.members}
        return (
            set(group.members) == live
            and group.state().value in ("Stable", "Empty")
            and self.wanted(group) == {p for member in self.members for p in member.has}
        )

    def wanted(self, group: ConsumerGroup) -> set[Partition]:
        names = {name for member in group.members.values() for name in group.topics_of(member)}
        topics = [self.world.topics[name] for name in names if name in self.world.topics]
        return {(topic.topic_id, n) for topic in topics for n in range(topic.partitions)}

    def judge(self) -> None:
        group = self.leader.shard.groups.get("g")
        if not self.members:
            return
        assert isinstance(group, ConsumerGroup)
        ids: dict[UUID, str] = {topic.topic_id: name for name, topic in self.world.topics.items()}
        owners: dict[Partition, Consumer] = {}
        for member in self.members:
            there = group.members[member.member_id]
            assert {(t, n) for t, ns in there.assigned.items() for n in ns} == member.has
            for partition in member.has:
                assert partition not in owners
                owners[partition] = member
                assert ids[partition[0]] in group.topics_of(there)
        assert owners.keys() == self.wanted(group)
        subscriptions = {group.topics_of(member) for member in group.members.values()}
        votes = [member.assignor for member in group.members.values()]
        if len(subscriptions) == 1 and "range" not in votes:
            counts = [len(member.has) for member in self.members]
            assert max(counts) - min(counts) <= 1, counts
        self.same_after_a_reload(group)

    def same_after_a_reload(self, group: ConsumerGroup) -> None:
        """The state is what its log adds up to."""
        again = load(self.leader._make, self.leader.log).groups["g"]
        for name in ("members", "targets", "static_members", "subscribed", "regexes", "regex_members"):
            assert dict(getattr(again, name).items()) == dict(getattr(group, name).items()), name
        assert (again.epoch, again.target_epoch) == (group.epoch, group.target_epoch)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_storm_ends_with_everything_owned_once_and_evenly(seed: int) -> None:
    print(f"STORM_SEED={seed}")
    storm = Storm(seed)
    for _ in range(3):
        for _ in range(150):
            storm.step()
        storm.calm()
        storm.judge()
