"""A classic group in a storm: members of every kind, and a coordinator whose writes fail and that is lost.

Members join, crash, sleep, leave, come back under their instance, run twice, change what they want, lose
answers; writes fail, lag and are lost; another coordinator reads the log as far as it was committed, or
further. Whatever happens:

- G3: nobody is in two generations: whoever is taken for a member now has what one leader assigned, and no
  partition has two owners; a commit is taken from such a member alone;
- G2: every request gets an answer;
- G1: exactly the log says what the state is: a step that writes nothing changes nothing of it, and the same
  log makes the same state;
- G4: the storm ends, also where another coordinator takes the group over: a group of those who are there,
  every partition owned, balanced within one.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.coordinator.shard import CoordinatorResult
from service.groups.requests import GroupCommitRequest, OffsetCommitPartition, OffsetCommitTopic
from service.groups.shard import GroupShard
from tests.support.groups import Members, classic_shard
from tests.support.shards import ShardLeader, load

E = ErrorCode
PARTITIONS = 12
SESSION_MS = 10_000
RETRIABLE = {E.not_coordinator, E.coordinator_not_available, E.coordinator_load_in_progress}


class Watched(ShardLeader[GroupShard]):
    """Sees to it that what is refused writes nothing."""

    def ask(self, decide: Callable[[GroupShard, int, int], CoordinatorResult[Any]]) -> int:
        before = len(self.log)
        ticket = super().ask(decide)
        answer = self.answers.get(ticket)
        error = answer.code if isinstance(answer, RequestError) else getattr(answer, "error_code", E.none)
        if error not in (E.none, E.member_id_required):
            assert len(self.log) == before, f"{error.name}, and yet something was written"
        return ticket


class Actor:
    """One client, as clients behave."""

    def __init__(self, world: Storm, number: int, instance: str | None, version: int) -> None:
        self.world = world
        self.random = world.random
        self.name = f"actor{number}"
        self.instance = instance
        self.version = version
        self.member_id = ""
        self.generation = -1
        self.protocol: str | None = None
        self.given: str | None = None
        """who assigned, and what: ``leader:partitions``"""
        self.waits: tuple[str, int] | None = None
        """what for, and its ticket"""
        self.alive = True
        self.sleeps_until = 0
        self.next_heartbeat = 0
        self.wants = 0

    @property
    def protocols(self) -> list[tuple[str, bytes]]:
        mine = [("range", b"%d" % self.wants), ("sticky", b"")]
        return mine if self.wants % 3 else mine[::-1]

    def join(self) -> None:
        self.given = None
        ticket = self.world.members.join(
            self.member_id,
            self.name,
            self.version,
            instance=self.instance,
            protocols=self.protocols,
            session_ms=SESSION_MS,
            rebalance_ms=self.world.rebalance_ms,
        )
        self.waits = ("join", ticket)

    def step(self) -> None:
        """Do the next thing."""
        world = self.world
        if self.waits is not None:
            kind, ticket = self.waits
            if world.leader.waits(ticket):
                return
            self.waits = None
            answer = world.leader.answers[ticket]
            if self.random.random() < world.lost:
                # It never came. Who has no id yet does not know that it has one.
                self.given = None
                if kind == "sync" and self.random.random() < 0.5:
                    self.sync(None)
                else:
                    self.join()
                return
            if isinstance(answer, RequestError):
                self.failed(answer.code)
            elif answer.error_code not in (E.none, E.member_id_required):
                self.failed(answer.error_code)
            elif kind == "join":
                self.joined(answer)
            elif kind == "sync":
                self.given = answer.assignment.decode()
                self.next_heartbeat = world.leader.now_ms + 3_000
            return
        if self.given is None:
            self.join()
        elif world.leader.now_ms >= self.next_heartbeat:
            self.next_heartbeat = world.leader.now_ms + 3_000
            ticket = world.members.heartbeat(self.member_id, self.generation, instance=self.instance)
            self.waits = ("heartbeat", ticket)
            self.heard()

    def heard(self) -> None:
        """The answer to a heartbeat is there at once, unless writes lag."""
        assert self.waits is not None
        ticket = self.waits[1]
        if self.world.leader.waits(ticket):
            return
        self.waits = None
        error = self.world.members.error(ticket)
        if error != E.none:
            self.failed(error)

    def joined(self, answer: Any) -> None:
        self.member_id = answer.member_id
        if answer.error_code == E.member_id_required:
            self.join()
            return
        self.generation = answer.generation_id
        assignments = None
        if answer.leader == self.member_id and not answer.skip_assignment:
            ids = [member.member_id for member in answer.members]
            assert self.member_id in ids
            nonce = self.random.getrandbits(32)
            parts = {
                who: [str(p) for p in range(PARTITIONS) if p % len(ids) == n] for n, who in enumerate(ids)
            }
            assignments = {who: f"{nonce}:{','.join(mine)}".encode() for who, mine in parts.items()}
        self.protocol = answer.protocol_name
        self.sync(assignments)

    def sync(self, assignments: dict[str, bytes] | None) -> None:
        ticket = self.world.members.sync(
            self.member_id,
            self.generation,
            assignments,
            instance=self.instance,
            protocol_name=self.protocol,
        )
        self.waits = ("sync", ticket)

    def failed(self, error: ErrorCode) -> None:
        self.given = None
        if error in (E.unknown_member_id, E.illegal_generation):
            self.member_id = "" if error == E.unknown_member_id else self.member_id
        elif error == E.fenced_instance_id:
            self.alive = False  # another process is this instance
        elif error == E.group_max_size_reached:
            self.member_id = ""
        else:
            assert error in RETRIABLE | {E.rebalance_in_progress}, error

    def is_current(self) -> bool:
        """Whether the coordinator takes it for a member of this generation, and it has an assignment."""
        group = self.world.leader.shard.view("g")
        if self.given is None or not self.given or group is None:
            return False
        try:
            group.check_commit(self.member_id, self.instance, self.generation, 9)
        except RequestError as e:
            return e.code == E.rebalance_in_progress
        return True


class Storm:
    """The group `g`, everybody who is or was in it, and what is known of it from outside."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        settings: dict[str, Any] = {
            "group_initial_rebalance_delay_ms": self.random.choice([0, 0, 2_000]),
            "group_max_size": self.random.choice([4, 1_000, 1_000]),
        }
        self.rebalance_ms = self.random.choice([4_000, 20_000])
        self.make = lambda: classic_shard(None, None, **settings)
        self.leader = Watched(self.make)
        self.members = Members(self.leader)
        self.actors: list[Actor] = []
        self.numbers = 0
        self.lost = 0.05
        self.most = settings["group_max_size"]
        self.synced_generation = -1
        self.calm_in = 0
        """steps until writes work again"""

    # Storms.

    def act(self) -> None:
        """One thing happens."""
        random, leader = self.random, self.leader
        self.calm_in -= 1
        if self.calm_in == 0:
            leader.failing = None
            leader.commit()
        kind = random.choices(
            ["step", "time", "new", "crash", "leave", "back", "twice", "wish", "sleep", "commit", "fail",
             "lag", "lose", "reload", "oust"],
            [100, 25, 8, 2, 2, 4, 1, 4, 2, 10, 6, 6, 3, 1, 1],
        )[0]  # fmt: skip
        if kind == "new" and len(self.live) < 12:
            self.arrive(random.choice([None, None, f"i{random.randrange(5)}"]))
        elif kind == "time":
            leader.advance(random.choice([0, 10, 500, 3_000, 3_000, 12_000]))
        elif kind == "fail":
            leader.failing = random.choice([E.not_coordinator, E.coordinator_not_available])
            self.calm_in = random.randint(1, 5)
        elif kind == "lag":
            leader.lagging = True
            self.calm_in = random.randint(1, 12)
        elif kind == "lose" and leader.lagging:
            leader.fail_uncommitted(E.coordinator_not_available)
        elif kind == "reload":
            leader.reload(leader.log[: random.randint(leader.mark, len(leader.log))])
        elif self.live:
            self.somebody(kind, random.choice(self.live))

    @property
    def live(self) -> list[Actor]:
        return [actor for actor in self.actors if actor.alive]

    def arrive(self, instance: str | None, member_id: str = "") -> None:
        self.numbers += 1
        actor = Actor(
            self, self.numbers, instance, self.random.choice([3, 5, 8, 9] if instance is None else [5, 9])
        )
        actor.member_id = member_id
        self.actors.append(actor)

    def somebody(self, kind: str, actor: Actor) -> None:
        leader = self.leader
        if kind == "step":
            for other in self.random.sample(self.live, len(self.live)):
                if leader.now_ms >= other.sleeps_until:
                    other.step()
        elif kind == "crash":
            actor.alive = False
        elif kind == "leave":
            actor.alive = False
            if actor.member_id and actor.instance is None:
                self.members.leave((actor.member_id, None))
        elif kind == "oust" and actor.instance is not None:
            self.members.leave(("", actor.instance))
        elif kind == "back" and actor.instance is not None:
            actor.alive = False
            self.arrive(actor.instance)
        elif kind == "twice" and actor.instance is not None:
            self.arrive(actor.instance)
        elif kind == "wish":
            actor.wants += 1
            if actor.waits is None:
                actor.join()
        elif kind == "sleep":
            actor.sleeps_until = leader.now_ms + self.random.choice([1_000, 7_000, 15_000])
        elif kind == "commit":
            self.commit(actor)

    def commit(self, actor: Actor) -> None:
        was_current = actor.is_current()
        ticket = self.leader.ask(
            lambda shard, _, now: shard.commit_offsets(
                GroupCommitRequest(
                    "g",
                    (OffsetCommitTopic("t", UUID(int=1), (OffsetCommitPartition(0, actor.generation + 1),)),),
                    actor.generation,
                    actor.member_id,
                    actor.instance,
                ),
                9,
                now,
            )
        )
        if self.leader.waits(ticket):
            return
        answer = self.leader.answers[ticket]
        group = self.leader.shard.view("g")
        if not isinstance(answer, RequestError) and actor.generation >= 0:
            assert group is not None
            assert actor.generation >= self.synced_generation, "a commit of a generation that is over"
            assert was_current or actor.given is None

    # What holds.

    def durable(self) -> tuple[dict[str, Any], list[Any]]:
        return state(self.leader.shard)

    def check(self, log_before: int, state_before: Any) -> None:
        current = [actor for actor in self.actors if actor.is_current()]
        assert len({(a.generation, (a.given or "").split(":")[0]) for a in current}) <= 1, [
            (a.name, a.member_id, a.generation, a.given) for a in current
        ]
        owners: dict[str, str] = {}
        for actor in current:
            for partition in filter(None, (actor.given or ":").split(":")[1].split(",")):
                owner = owners.setdefault(partition, actor.member_id)
                assert owner == actor.member_id, f"G3: partition {partition} of two"
            self.synced_generation = max(self.synced_generation, actor.generation)
        if len(self.leader.log) == log_before:
            assert self.durable() == state_before, "G1: nothing was written, and something has changed"

    def run(self, steps: int) -> None:
        for _ in range(self.random.randint(1, 8)):
            self.arrive(self.random.choice([None, None, f"i{self.random.randrange(5)}"]))
        for n in range(steps):
            before = len(self.leader.log), self.durable()
            leader_before = self.leader.shard
            self.act()
            if self.leader.shard is leader_before:
                self.check(*before)
            if n % 20 == 0:
                assert self.durable() == state(load(self.make, self.leader.log))
        self.end()

    def end(self) -> None:
        """The storm is over."""
        leader = self.leader
        self.lost = 0.0
        leader.failing = None
        leader.commit()
        if self.random.random() < 0.2:
            leader.reload()
        for _ in range(400):
            for actor in self.live:
                actor.sleeps_until = 0
                actor.step()
            leader.advance(250)
            if self.is_settled():
                break
        else:
            raise AssertionError([(a.name, a.member_id, a.generation, a.given, a.waits) for a in self.live])
        leader.advance(0)
        assert not [t for t in range(1, leader.asked + 1) if t not in leader.answers], (
            "G2: requests without answers"
        )
        assert self.durable() == state(load(self.make, leader.log))
        for offset in range(0, len(leader.log), max(1, len(leader.log) // 5)):
            assert state(load(self.make, leader.log[:offset])) == state(load(self.make, leader.log[:offset]))

    def is_settled(self) -> bool:
        inside = [actor for actor in self.live if actor.is_current()]
        if self.members.state not in ("Stable", "Empty", "Dead"):
            return False
        if len(inside) < min(len(self.live), self.most):
            return False
        if not inside:
            return True
        parts = [set(filter(None, (actor.given or ":").split(":")[1].split(","))) for actor in inside]
        if len({a.member_id for a in inside}) != len(inside):
            return False
        sizes = [len(part) for part in parts]
        return sum(sizes) == PARTITIONS and max(sizes) - min(sizes) <= 1


def state(shard: GroupShard) -> tuple[dict[str, Any], list[Any]]:
    """All that the log has to say."""
    offsets = [(group, *found) for group in shard.offsets.groups() for found in shard.offsets.of_group(group)]
    return dict(shard.groups.items()), sorted(offsets)


@pytest.mark.parametrize("block", range(8))
def test_a_storm_of_joins_ends_with_every_member_in_one_generation(block: int) -> None:
    for seed in range(block * 12, block * 12 + 12):
        try:
            Storm(seed).run(250)
        except BaseException:
            print("seed", seed)
            raise
