"""Several replicas, faults, writes, voters that change; in the end all heals and must come alive."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from random import Random
from typing import Any, Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.metadata.endpoint import Endpoint
from service.metadata.raft.events import Effect, KRaftVoters, Stop
from service.metadata.raft.keys import NO_DIRECTORY, ReplicaKey, SnapshotId
from service.metadata.raft.requests import (
    AddVoter,
    DescribeQuorumRequest,
    RaftResponse,
    RemoveVoter,
    UpgradeKRaftVersion,
    VoterChangeResponse,
)
from service.metadata.raft.voters import VoterNode, VoterSet
from simulator.machines.model import ModelDisk, ModelLog, Snapshot
from simulator.machines.network import Network
from simulator.machines.oracle import Oracle, Violation
from simulator.machines.plants import Plant
from simulator.machines.replica import Replica

FAULTS_MS: Final = 20_000.0
ALIVE_WITHIN_MS: Final = 30_000.0
ACTS: Final = {
    "crash": 6,
    "stop": 2,
    "cut": 5,
    "cut_off": 4,
    "heal": 5,
    "loss": 3,
    "delay": 3,
    "doubling": 3,
    "slow_disk": 2,
    "snapshot": 6,
    "reconfigure": 6,
    "wipe": 2,
    "upgrade": 2,
    "drift": 1,
    "crash_all": 1,
    "move": 2,
}
FALLS: Final = ("votes", "leads", "commits")
"""Moments in which a replica may crash: at a vote request, when it leads, when it has committed a batch."""
BOOTSTRAP: Final = SnapshotId(0, 0)


@dataclass(frozen=True)
class Result:
    seed: int
    problem: str | None
    events: int
    virtual_s: float
    committed: int
    leaders: int


class MachinesWorld:
    """One history, by its seed."""

    def __init__(self, seed: int, plant: Plant | None = None) -> None:
        self.random = random = Random(seed)
        self.seed = seed
        self.now = 0.0
        self.events = 0
        self._heap: list[tuple[float, int, Callable[[], object]]] = []
        self._order = 0
        self._numbers = 0
        self._plant = plant
        self.keeps_flush = plant is not None and plant.keeps_flush
        self.oracle = Oracle()
        self.network = Network(self)
        self.lost: set[ReplicaKey] = set()
        """replicas whose disk was wiped"""
        self.auto_join = random.random() < 0.3
        self.is_healing = self._has_moved = False
        self.kraft_version = random.choice((0, 1, 1))
        self._answers = 0
        self._falls = {moment: random.choice((0.0, 0.0, 0.1, 0.5)) for moment in FALLS}
        self._hangs = random.choice((0.0, 0.0, 0.05, 0.3))
        self._burst = random.choice((1, 1, 6))
        self.linger_ms = Random(seed ^ 0x11).choice((0, 0, 0, 25))
        self.batches_read = random.choice((1, 2, 4))
        """most that one fetch gets"""
        self.late_ms = random.choice((400, 3000))
        acts = [act for act in ACTS if random.random() < 0.6]
        if "move" in acts:  # one that nobody can call is as good as lost
            acts = [act for act in acts if act not in ("wipe", "reconfigure")]
        self._acts = acts or ["crash"]
        self._make_replicas()

    def _make_replicas(self) -> None:
        random = self.random
        voters = random.choice((1, 2, 3, 3, 3, 3, 5))
        controllers = voters + random.choice((0, 1, 1, 2))
        brokers = random.choice((0, 0, 1))
        keys = [ReplicaKey(i + 1, self.new_directory()) for i in range(controllers)]
        endpoints = [Endpoint("CONTROLLER", f"n{i + 1}", 9093) for i in range(controllers)]
        self.bootstrap = tuple(endpoints)
        dynamic = VoterSet(VoterNode(keys[i], (endpoints[i],)) for i in range(voters))
        static = VoterSet(VoterNode(ReplicaKey(i + 1, NO_DIRECTORY), (endpoints[i],)) for i in range(voters))
        self.static = VoterSet() if self.kraft_version else static
        self.first = Snapshot(BOOTSTRAP, dynamic, 1, 0, 0, 1) if self.kraft_version else None
        self.replicas: dict[int, Replica] = {}
        for i in range(controllers + brokers):
            key = keys[i] if i < controllers else ReplicaKey(i + 1, self.new_directory())
            disk = ModelDisk(key, self._new_log(with_voters=i < voters))
            self.replicas[i + 1] = Replica(self, i + 1, disk, can_vote=i < controllers)

    def _new_log(self, *, with_voters: bool) -> ModelLog:
        log = ModelLog(self.static)
        if self.first is not None and with_voters:
            log.snapshots_held[BOOTSTRAP] = self.first
            log.open()
        return log

    def new_directory(self) -> UUID:
        return UUID(int=self.random.getrandbits(120) + 1)

    def new_number(self) -> int:
        self._numbers += 1
        return self._numbers

    # -- time

    def at(self, time_ms: float, action: Callable[[], object]) -> None:
        self._order += 1
        heappush(self._heap, (time_ms, self._order, action))

    def run_until(self, time_ms: float, is_done: Callable[[], bool] | None = None) -> bool:
        heap = self._heap
        steps = 0
        while heap and heap[0][0] <= time_ms:
            self.now, _, action = heappop(heap)
            action()
            steps += 1
            if is_done is not None and steps % 16 == 0 and is_done():
                return True
        self.now = time_ms
        return is_done is not None and is_done()

    def play(self) -> Result:
        problem: str | None = None
        try:
            for replica in self.replicas.values():
                self.at(self.random.random() * 50, replica.start)
            self._write_later()
            self.at(1000 * self.random.random(), self._act)
            self.run_until(FAULTS_MS)
            self._heal()
        except Violation as e:
            problem = str(e)
        except AssertionError as e:
            problem = f"the model's own: {e!r}"
        return Result(self.seed, problem, self.events, self.now / 1000, self.oracle.end, self.oracle.leaders)

    # -- what replicas need

    def by_host(self, host: str) -> Replica:
        return self.replicas[int(host[1:].partition("-")[0])]

    def disk_of(self, key: ReplicaKey) -> ModelLog | None:
        replica = self.replicas[key.node_id]
        return replica.log if key.matches(replica.key) else None

    def plant_in(self, replica: Replica) -> None:
        if self._plant is not None and self._plant.change is not None:
            self._plant.change(replica.machine)

    def skips(self, effect: Effect) -> bool:
        """Return whether the planted bug skips this effect."""
        return self._plant is not None and self._plant.skips is not None and self._plant.skips(effect)

    def answered(self, number: int, answer: RaftResponse) -> None:
        self._answers += isinstance(answer, VoterChangeResponse) and answer.error is ErrorCode.none

    # -- writes

    def _write_later(self) -> None:
        wait = self.random.choice((20, 400, 900)) * self.random.random()
        self.at(self.now + wait, self._write)

    def _write(self) -> None:
        for replica in self.replicas.values():
            if replica.is_leader and self.random.random() < 0.9:
                for _ in range(self.random.randint(1, self._burst)):
                    count = self.random.choice((1, 1, 2, 3))
                    if replica.is_leader:
                        replica.propose(tuple(self.new_number() for _ in range(count)))
        self._write_later()

    # -- faults

    def hang_ms(self) -> float:
        """Draw how long a flush hangs; 0: it does not."""
        if self._hangs and not self.is_healing and self.random.random() < self._hangs:
            return 3000 * self.random.random()
        return 0.0

    def may_fall(self, moment: str, replica: Replica) -> None:
        """Crash `replica` or cut it off soon, by draw."""
        rate, random = self._falls[moment], self.random
        if rate and not self.is_healing and random.random() < rate:
            wait = random.choice((1, 4, 12)) * random.random()
            self.at(self.now + wait, partial(self._fall, replica, replica.life))

    def _fall(self, replica: Replica, life: int) -> None:
        if replica.life != life or self.is_healing:
            return
        back = self.now + self.random.choice((5, 100, 3000)) * self.random.random()
        if self.random.random() < 0.6:
            replica.crash()
            self.at(back, partial(_start, replica))
            return
        one = replica.node_id
        links = {link for other in self.replicas for link in ((one, other), (other, one))}
        self.network.cut |= links
        self.at(back, partial(self.network.cut.difference_update, links))

    def _act(self) -> None:
        if self.is_healing:
            return
        act = self.random.choices(self._acts, [ACTS[one] for one in self._acts])[0]
        getattr(self, f"_do_{act}")()
        self.at(self.now + self.random.choice((20, 200, 1000, 2500)) * self.random.random(), self._act)

    def _some(self) -> Replica:
        leaders = [one for one in self.replicas.values() if one.is_leader]
        if leaders and self.random.random() < 0.4:
            return self.random.choice(leaders)
        return self.random.choice(list(self.replicas.values()))

    def _do_crash(self) -> None:
        replica = self._some()
        if replica.is_alive:
            replica.crash()
            self.at(
                self.now + self.random.choice((5, 100, 3000)) * self.random.random(), lambda: _start(replica)
            )

    def _do_crash_all(self) -> None:
        for replica in self.replicas.values():
            if replica.is_alive:
                replica.crash()
                self.at(self.now + 500 * self.random.random(), partial(_start, replica))

    def _do_stop(self) -> None:
        replica = self._some()
        if not replica.is_alive:
            return
        replica.tell(Stop())
        life = replica.life

        def end() -> None:
            if replica.life == life:
                replica.crash()
                self.at(self.now + 1000 * self.random.random(), lambda: _start(replica))

        self.at(self.now + 200, end)

    def _do_cut(self) -> None:
        one, other = self._some().node_id, self._some().node_id
        self.network.cut.add((one, other))
        if self.random.random() < 0.5:
            self.network.cut.add((other, one))

    def _do_cut_off(self) -> None:
        one = self._some().node_id
        for other in self.replicas:
            self.network.cut.add((one, other))
            if self.random.random() < 0.8:
                self.network.cut.add((other, one))

    def _do_heal(self) -> None:
        self.network.heal()

    def _do_loss(self) -> None:
        self.network.loss = self.random.choice((0.02, 0.1, 0.3))

    def _do_delay(self) -> None:
        self.network.delay = self.random.choice((0.05, 0.3))

    def _do_doubling(self) -> None:
        self.network.doubling = self.random.choice((0.05, 0.3))

    def _do_slow_disk(self) -> None:
        replica = self._some()
        replica.is_slow = not replica.is_slow

    def _do_drift(self) -> None:
        replica = self._some()
        if not replica.is_alive:
            replica.rate = self.random.choice((0.95, 1.0, 1.05))

    def _do_snapshot(self) -> None:
        self._some().take_snapshot()

    def _do_wipe(self) -> None:
        """Wipe a replica's disk if every set of voters that may count keeps a majority, and none is changing.

        A replica with the new set would need the vote of a replica whose log may be ahead of all voters'."""
        replica = self._some()
        if not self.kraft_version or not replica.can_vote or not self._can_spare(replica.key):
            return
        latest = [one.log.voters.latest for one in self.replicas.values() if len(one.log.voters.latest)]
        if any(one != latest[0] for one in latest):
            return
        if replica.is_alive:
            replica.crash()
        self.lost.add(replica.key)
        replica.disk = ModelDisk(
            ReplicaKey(replica.node_id, self.new_directory()), self._new_log(with_voters=False)
        )
        self.at(self.now + 500 * self.random.random(), lambda: _start(replica))

    def _can_spare(self, *keys: ReplicaKey) -> bool:
        for voters in self._sets():
            gone = sum(voter.key in self.lost or voter.key in keys for voter in voters)
            if len(voters) - gone < voters.majority:
                return False
        return True

    def _sets(self) -> list[VoterSet]:
        """Return the voter sets in every log, and each replica's newest one: all of them may count."""
        sets = [self.first.voters] if self.first is not None and self.first.voters is not None else []
        for replica in self.replicas.values():
            for batch in replica.log.batches:
                sets += [value.voters for value in batch.values if isinstance(value, KRaftVoters)]
            sets.append(replica.log.voters.latest)
        return [one for one in sets if len(one)]

    def _do_move(self) -> None:
        """Restart a replica under another address."""
        replica = self._some()
        sizes = [len(voters) for voters in self._sets()]
        if replica.can_vote and self.kraft_version and min(sizes) >= 3 and not self._has_moved:
            self._has_moved = True
            if replica.is_alive:
                replica.crash()
            replica.endpoint = replica.endpoint._replace(host=f"n{replica.node_id}-{self.new_number()}")
            self.at(self.now + 300 * self.random.random(), lambda: _start(replica))

    def _leader(self) -> Replica | None:
        leaders = [one for one in self.replicas.values() if one.is_leader]
        return self.random.choice(leaders) if leaders else None

    def _do_reconfigure(self) -> None:
        leader = self._leader()
        if leader is None:
            return
        random, voters = self.random, leader.machine.voters
        dead = [voter for voter in voters if voter.key in self.lost]
        others = [one for one in self.replicas.values() if one.can_vote and voters.get(one.node_id) is None]
        asked: Any
        if dead:
            asked = RemoveVoter(dead[0].key)
        elif others and (random.random() < 0.6 or len(voters) < 2):
            one = random.choice(others)
            asked = AddVoter(VoterNode(one.key, (one.endpoint,)), ack_when_committed=random.random() < 0.7)
        elif len(voters) > 1:
            voter = random.choice(voters.voters)
            asked = RemoveVoter(voter.key)
        else:
            return
        if isinstance(asked, RemoveVoter) and not dead and self.lost & {one.key for one in voters}:
            return
        self.network.request(leader, asked)

    def _do_upgrade(self) -> None:
        leader = self._leader()
        if leader is not None:
            self.network.request(leader, UpgradeKRaftVersion(1))
            self.network.request(leader, DescribeQuorumRequest())

    # -- the end

    def _heal(self) -> None:
        self.is_healing = True
        self.network.heal()
        for replica in self.replicas.values():
            replica.is_slow = False
            if not replica.is_alive:
                replica.start()
        began, goal = self.now, self.oracle.end

        def is_alive() -> bool:
            return self._is_alive(goal)

        if not self.run_until(began + ALIVE_WITHIN_MS, is_alive):
            raise Violation(f"not alive 30 s after all was healed: {self._told()}")

    def _is_alive(self, goal: int) -> bool:
        """Something new is committed, and everybody knows."""
        for replica in self.replicas.values():
            if replica.mark <= goal or not replica.is_alive:
                return False
        return any(replica.is_leader for replica in self.replicas.values())

    def _told(self) -> str:
        return "; ".join(
            f"{one.node_id} {one.machine.role.value} {one.machine.epoch} of {one.machine.leader_id} "
            f"[{one.log.start_offset}, {one.log.end_offset}) {one.mark} {one.machine.voters!r}"
            for one in self.replicas.values()
        )


def _start(replica: Replica) -> None:
    if not replica.is_alive:
        replica.start()
