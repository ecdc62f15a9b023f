"""Brokers whose leaders and followers are the real machines, under a model controller, on model logs.

What is checked, as it happens: P1 to P6 of docs/invariants.md. Each history is told by its seed alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from random import Random
from typing import Final

from kio.schema.errors import ErrorCode

from service.base.types import TopicIdPartition
from service.metadata.controller.partition_change import Election
from service.replication.alter_partition_queue import ProposalRequest, ProposalResponse
from service.replication.follower_events import AskOffsets, Fetch
from service.replication.leader import Accepted, LeaderSettings, LeaderState
from tests.property.replication.broker import Broker, Sent
from tests.property.replication.model import ModelController, Record, Violation, tip_of
from tests.property.replication.plants import Plant

FAULTS_MS: Final = 6_000.0
WELL_WITHIN_MS: Final = 20_000.0
LATE_MS: Final = 1_500
ACTS: Final = {
    "crash": 8,
    "stop": 3,
    "suspect": 3,
    "prefer": 3,
    "cut": 4,
    "heal": 4,
    "loss": 3,
    "delay": 3,
    "crash_all": 1,
    "archive": 3,
    "delete": 2,
}


@dataclass(frozen=True)
class Result:
    seed: int
    problem: str | None
    events: int
    acked: int
    leaders: int
    truncated: int


class Oracle:
    """What was promised."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.committed: dict[TopicIdPartition, list[Record]] = {}
        self.acks: dict[TopicIdPartition, dict[int, Record]] = {}
        self.impaired: dict[TopicIdPartition, set[int]] = {}
        """down, or back from an unclean stop and not in sync since"""
        self.lossy: dict[TopicIdPartition, set[int]] = {}
        """of these, who has lost something"""
        self.tiered: dict[TopicIdPartition, int] = {}
        self._marks: dict[tuple[TopicIdPartition, int], int] = {}
        self._leaders: dict[tuple[TopicIdPartition, int], tuple[int, int]] = {}

    @property
    def leaders(self) -> int:
        return len(self._leaders)

    def loses(self, tip: TopicIdPartition, broker_id: int) -> None:
        self.lossy.setdefault(tip, set()).add(broker_id)

    def archive(self, tip: TopicIdPartition) -> tuple[list[Record], int]:
        return self.committed.setdefault(tip, []), self.tiered.get(tip, 0)

    def leads(self, broker: Broker, tip: TopicIdPartition, epoch: int) -> None:
        me = broker.id, broker.life
        if self._leaders.setdefault((tip, epoch), me) != me:
            raise Violation(f"P5: {self._leaders[tip, epoch]} and {me} lead {tip} in epoch {epoch}")
        log = broker.logs[tip]
        if self.world.controller.partitions[tip].leader_epoch != epoch:
            return  # deposed before it knew that it led: its log may be the one that is to be cut
        for offset, record in self.acks.get(tip, {}).items():
            if offset < log.log_start_offset:
                continue  # deleted, as somebody wanted
            if offset >= log.log_end_offset or log.at(offset) not in (record, None):
                raise Violation(
                    f"P4: acknowledged {record} at {offset} of {tip} is not in the log of its leader "
                    f"{broker.id}, which ends at {log.log_end_offset}"
                )

    def moved(self, broker: Broker, tip: TopicIdPartition, leader: LeaderState) -> None:
        mark, epoch = leader.high_watermark, leader.shape.leader_epoch
        if mark < self._marks.get((tip, epoch), 0):
            raise Violation(f"P1: the high watermark of {tip} falls to {mark} in epoch {epoch}")
        self._marks[tip, epoch] = mark
        start = broker.logs[tip].log_start_offset
        self._same(broker, tip, mark, start)
        state = self.world.controller.partitions[tip]
        if state.leader_epoch != epoch:
            return
        for member in state.isr:
            if member in self.lossy.get(tip, ()):
                continue
            log = self.world.brokers[member].logs.get(tip)
            end = 0 if log is None else log.log_end_offset
            if end < mark:
                raise Violation(f"P2: {tip} is committed to {mark} and in-sync {member} ends at {end}")
            self._same(self.world.brokers[member], tip, mark, start)

    def _same(self, broker: Broker, tip: TopicIdPartition, mark: int, start: int) -> None:
        """All from the log's `start` to `mark` is what was committed; what is new there is by this."""
        log, committed = broker.logs[tip], self.committed.setdefault(tip, [])
        if mark > log.log_end_offset:
            raise Violation(f"P2: {broker.id} knows {tip} committed to {mark}, its log ends before")
        for offset in range(max(log.base, min(start, len(committed))), mark):
            record = log.at(offset)
            if offset == len(committed):
                assert record is not None
                committed.append(record)
            elif committed[offset] != record:
                raise Violation(
                    f"P3: {broker.id} has {record} at {offset} of {tip}, committed is {committed[offset]}"
                )

    def follows(self, broker: Broker, tip: TopicIdPartition) -> None:
        log = broker.logs[tip]
        self._same(broker, tip, log.high_watermark, log.log_start_offset)

    def acked(self, tip: TopicIdPartition, offset: int, records: tuple[Record, ...], least: int) -> None:
        for at, record in enumerate(records, offset):
            self.acks.setdefault(tip, {})[at] = record
            holders = 0
            for one in self.world.controller.partitions[tip].replicas:
                log = self.world.brokers[one].logs.get(tip)
                has = log is not None and at < log.log_end_offset and log.at(at) in (record, None)
                holders += has or one in self.lossy.get(tip, ())
            if holders < least:
                raise Violation(f"P6: {record} at {at} of {tip} is acknowledged, and on {holders} replicas")


class World:
    """One history, by its seed."""

    def __init__(self, seed: int, plant: Plant | None = None) -> None:
        self.random = random = Random(seed)
        self.seed = seed
        self.now = 0.0
        self.events = 0
        self._heap: list[tuple[float, int, Callable[[], object]]] = []
        self._order = 0
        self._values = 0
        self.plant = plant or Plant()
        self.is_healing = False
        self.loses = random.random() < 0.6
        """whether a kill may cost what was not flushed"""
        self.lag_ms = random.choice((200, 600, 2000))
        self.backoff_ms = random.choice((20, 200))
        self.corruption = random.choice((0.0, 0.0, 0.05))
        self.leader_settings = LeaderSettings(self.lag_ms, settle_ms=LATE_MS)
        self.image_lag_ms = random.choice((1, 10, 100, 400))
        self.slow_answers = random.choice((0.0, 0.1, 0.5))
        self.slice_ms = random.choice((5, 50, 200))
        self.loss = 0.0
        self.delay = 0.0
        self.cut: set[tuple[int, int]] = set()
        self._silenced: dict[int, float] = {}
        count = random.choice((3, 3, 3, 4, 5))
        replicas = {}
        for number in range(random.choice((1, 1, 2, 3))):
            factor = random.choice((1, 2, 3, 3, 3, min(5, count)))
            replicas[tip_of(number)] = tuple(random.sample(range(1, count + 1), factor))
        least = {tip: random.randint(1, len(those)) for tip, those in replicas.items()}
        self.controller = ModelController(replicas, least)
        self.brokers = {number: Broker(self, number) for number in range(1, count + 1)}
        self.oracle = Oracle(self)
        acts = [act for act in ACTS if random.random() < 0.6]
        self._acts = acts or ["crash"]
        self._pace = random.choice((30, 150, 500))

    # -- time

    def at(self, time_ms: float, action: Callable[[], object]) -> None:
        self._order += 1
        heappush(self._heap, (time_ms, self._order, action))

    def run_until(self, time_ms: float, is_done: Callable[[], bool] | None = None) -> bool:
        heap = self._heap
        while heap and heap[0][0] <= time_ms:
            self.now, _, action = heappop(heap)
            action()
            self.events += 1
            if is_done is not None and self.events % 64 == 0 and is_done():
                return True
        self.now = time_ms
        return is_done is not None and is_done()

    def play(self) -> Result:
        problem: str | None = None
        try:
            self._start_all()
            self.at(100, self._write)
            self.at(500 * self.random.random(), self._act)
            self.run_until(FAULTS_MS)
            self._heal()
        except Violation as e:
            problem = str(e)
        acked = sum(len(those) for those in self.oracle.acks.values())
        return Result(
            self.seed, problem, self.events, acked, self.oracle.leaders, self.controller.unclean_elections
        )

    def _start_all(self) -> None:
        """All were there before: nobody has anything, all are in sync."""
        for broker in self.brokers.values():
            broker.start()
        for tip, state in self.controller.partitions.items():
            self.controller.partitions[tip] = state._replace(
                isr=state.replicas, leader=state.replicas[0], eligible_leader_replicas=(), last_known_elr=()
            )
        for number in self.brokers:
            self.controller.brokers[number] = self.controller.brokers[number]._replace(
                is_active=True, is_fenced=False
            )
        self.controller.publish()

    # -- the network

    def _passes(self, one: int, other: int) -> bool:
        return (one, other) not in self.cut and self.random.random() >= self.loss

    def _wait_ms(self) -> float:
        """Some arrive long after anybody waits for them."""
        if self.random.random() < self.delay:
            return LATE_MS * self.random.random() * 0.9
        return 1 + 8 * self.random.random()

    def send_fetch(self, broker: Broker, leader_id: int, fetch: Fetch) -> None:
        broker.later(400, partial(broker.failed, leader_id, fetch.number))
        leader, epoch = self.brokers[leader_id], broker.epoch
        if self._passes(broker.id, leader_id):
            life = broker.life
            self.at(self.now + self._wait_ms(), partial(self._arrives, broker, life, epoch, leader, fetch))

    def _arrives(self, broker: Broker, life: int, epoch: int, leader: Broker, fetch: Fetch) -> None:
        if not leader.is_alive:
            return
        sent = leader.fetched(broker.id, epoch, fetch)
        pause = 380 * self.random.random() if self.random.random() < self.slow_answers else 0
        leader.later(pause, partial(self._answer, broker, life, leader, fetch.number, sent))

    def _answer(self, broker: Broker, life: int, leader: Broker, number: int, sent: Sent) -> None:
        batches = leader.read(sent)
        if self._passes(leader.id, broker.id):
            back = partial(broker.answered, leader.id, number, sent.answer, batches)
            self.at(self.now + self._wait_ms(), partial(broker._if_alive, life, back))

    def ask_offsets(self, broker: Broker, leader_id: int, effect: AskOffsets) -> None:
        leader = self.brokers[leader_id]
        told = leader.list_offsets(effect.tip, effect.leader_epoch) if leader.is_alive else None
        if told is None or not self._passes(broker.id, leader_id):
            told = ErrorCode.network_exception
        broker.later(self._wait_ms(), partial(broker.offsets_told, leader_id, effect.number, told))

    def send_proposals(self, broker: Broker, request: ProposalRequest) -> None:
        """The controller is always there; requests and answers may be lost, and late."""
        life = broker.life
        broker.later(300, partial(broker.proposals_answered, request.number, None))
        copies = 2 if self.random.random() < self.delay / 2 else 1
        for _ in range(copies):
            if self._passes(broker.id, 0):
                self.at(
                    self.now + self._wait_ms(), partial(self._decide, broker, life, broker.epoch, request)
                )

    def _decide(self, broker: Broker, life: int, epoch: int, request: ProposalRequest) -> None:
        controller = self.controller
        if controller.brokers[broker.id].epoch != epoch:
            answer = ProposalResponse(ErrorCode.stale_broker_epoch, {})
        else:
            outcomes = {}
            for tip, proposal in request.proposals:
                outcomes[tip] = outcome = controller.alter(broker.id, epoch, tip, proposal)
                if isinstance(outcome, Accepted):
                    self._is_in_sync(tip)
            answer = ProposalResponse(ErrorCode.none, outcomes)
        if self._passes(0, broker.id):
            back = partial(broker.proposals_answered, request.number, answer)
            self.at(self.now + self._wait_ms(), partial(broker._if_alive, life, back))

    def _is_in_sync(self, tip: TopicIdPartition) -> None:
        for one in self.controller.partitions[tip].isr:
            if self.brokers[one].is_alive and self.brokers[one].epoch == self.controller.brokers[one].epoch:
                for marked in (self.oracle.impaired, self.oracle.lossy):
                    if one in marked.get(tip, ()) and one != self.controller.partitions[tip].leader:
                        marked[tip].discard(one)

    # -- writes

    def _write(self) -> None:
        random = self.random
        for broker in self.brokers.values():
            if not broker.is_alive:
                continue
            for tip in list(broker.leaders):
                if random.random() < 0.7:
                    values = []
                    for _ in range(random.randint(1, 3)):
                        self._values += 1
                        values.append(self._values)
                    broker.produce(tip, values, acks_all=random.random() < 0.8)
        wait = 200 if self.is_healing else random.choice((5, 40, 200)) * random.random()
        self.at(self.now + wait + 1, self._write)

    # -- faults

    def is_fenced_by_will(self, broker_id: int) -> bool:
        return self._silenced.get(broker_id, 0.0) > self.now

    def _act(self) -> None:
        if self.is_healing:
            return
        act = self.random.choices(self._acts, [ACTS[one] for one in self._acts])[0]
        getattr(self, f"_do_{act}")()
        self.at(self.now + self._pace * 2 * self.random.random(), self._act)

    def _may_kill(self, broker: Broker) -> bool:
        """acks=all promises: where data is lost, fewer than min ISR are down or back uncleanly at a time."""
        if not self.loses:
            return True
        for tip, state in self.controller.partitions.items():
            if broker.id in state.replicas:
                gone = self.oracle.impaired.get(tip, set()) | {broker.id}
                if len(gone) >= min(self.controller.min_isr[tip], len(state.replicas)):
                    return False
        return True

    def _kill(self, broker: Broker) -> None:
        for tip, state in self.controller.partitions.items():
            if broker.id in state.replicas:
                self.oracle.impaired.setdefault(tip, set()).add(broker.id)
        broker.crash(loses=self.loses)
        self._is_gone(broker)

    def _is_gone(self, broker: Broker) -> None:
        """Fenced after a while, started after another: either may be first."""
        random, epoch = self.random, broker.epoch
        self.at(
            self.now + random.choice((5, 100, 600)) * random.random(), partial(self._fence, broker, epoch)
        )
        self.at(self.now + random.choice((10, 100, 1500)) * random.random(), partial(self._start, broker))

    def _fence(self, broker: Broker, epoch: int) -> None:
        known = self.controller.brokers[broker.id]
        if known.epoch == epoch and known.is_active:
            self.controller.fence(broker.id)

    def _start(self, broker: Broker) -> None:
        if not broker.is_alive:
            broker.start()

    def _some(self) -> Broker:
        leading = [one for one in self.brokers.values() if one.is_alive and one.leaders]
        if leading and self.random.random() < 0.5:
            return self.random.choice(leading)
        return self.random.choice(list(self.brokers.values()))

    def _do_crash(self) -> None:
        broker = self._some()
        if broker.is_alive and self._may_kill(broker):
            self._kill(broker)

    def _do_crash_all(self) -> None:
        for broker in self.brokers.values():
            if broker.is_alive and self._may_kill(broker):
                self._kill(broker)

    def _do_stop(self) -> None:
        """A controlled shutdown: it leads nothing more when it ends."""
        broker = self._some()
        if broker.is_alive:
            self.controller.fence(broker.id)
            self._silenced[broker.id] = self.now + 100
            broker.later(100 * self.random.random(), partial(self._end, broker))

    def _end(self, broker: Broker) -> None:
        broker.stop()
        self._is_gone(broker)

    def _do_suspect(self) -> None:
        """It is not heard for a while, though it lives."""
        broker = self._some()
        if broker.is_alive:
            self._silenced[broker.id] = self.now + 400 * self.random.random()
            self.controller.fence(broker.id)
            self.at(self._silenced[broker.id] + 1, self.controller.publish)

    def _do_prefer(self) -> None:
        tip = self.random.choice(list(self.controller.partitions))
        self.controller.change(tip, Election.PREFERRED)
        self.controller.publish()

    def _do_cut(self) -> None:
        ids = [0, *self.brokers]
        one, other = self.random.choice(ids), self.random.choice(ids)
        self.cut.add((one, other))
        if self.random.random() < 0.5:
            self.cut.add((other, one))

    def _do_heal(self) -> None:
        self.cut.clear()
        self.loss = self.delay = 0.0

    def _do_loss(self) -> None:
        self.loss = self.random.choice((0.02, 0.1, 0.4))

    def _do_delay(self) -> None:
        self.delay = self.random.choice((0.05, 0.3))

    def _do_archive(self) -> None:
        """Of a partition more is tiered, and its leader lets go of what is."""
        tip = self.random.choice(list(self.controller.partitions))
        committed, end = self.oracle.archive(tip)
        self.oracle.tiered[tip] = self.random.randint(end, len(committed))
        for broker in self.brokers.values():
            if broker.is_alive and tip in broker.leaders:
                log = broker.logs[tip]
                log.release(min(self.oracle.tiered[tip], log.high_watermark))

    def _do_delete(self) -> None:
        """DeleteRecords at the leader."""
        for broker in self.brokers.values():
            if broker.is_alive:
                for tip in broker.leaders:
                    log = broker.logs[tip]
                    if self.random.random() < 0.5:
                        log.log_start_offset = self.random.randint(log.log_start_offset, log.high_watermark)

    # -- the end

    def _heal(self) -> None:
        self.is_healing = True
        self.corruption = 0.0
        self._do_heal()
        self._silenced.clear()
        for broker in self.brokers.values():
            self._start(broker)
        self.controller.publish()
        goal = {tip: len(committed) for tip, committed in self.oracle.committed.items()}
        if not self.run_until(self.now + WELL_WITHIN_MS, lambda: self._is_well(goal)):
            raise Violation(f"not well {WELL_WITHIN_MS / 1000:.0f} s after all was healed: {self._told()}")

    def _is_well(self, goal: dict[TopicIdPartition, int]) -> bool:
        """All are in sync and know it, and something new is committed."""
        for tip, state in self.controller.partitions.items():
            if set(state.isr) != set(state.replicas) or not state.has_leader:
                return False
            marks = [self.brokers[one].logs[tip].high_watermark for one in state.replicas]
            if min(marks) <= goal.get(tip, 0):
                return False
        return True

    def _told(self) -> str:
        return "; ".join(
            f"{tip}: {state.leader} of {state.isr} in {state.replicas}, epoch {state.leader_epoch}, "
            + ", ".join(
                f"{one}: {log.log_start_offset} {log.base} {log.high_watermark} {log.log_end_offset}"
                for one in state.replicas
                if (log := self.brokers[one].logs.get(tip)) is not None
            )
            for tip, state in self.controller.partitions.items()
        )
