"""A cut behind gates is one moment (invariant T18): whatever caused something in it is in it, too.

Three brokers in a modelled network: each partition has a leader and two followers, clients produce what
follows from what they have seen or had acknowledged, on any replica. A keeper makes cuts meanwhile. The gate
is the real one.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from uuid import UUID

import pytest

from service.base.steps import Steps
from service.partition.gate import CutGate, Gated, PartitionEnd

BROKERS, PARTITIONS, CLIENTS = 3, 6, 6
HOLD_MS = 20
_OVER = object()
Cause = tuple[int, int]
"""partition and offset"""


class NoGate(CutGate):
    """Planted: nothing is ever held back."""

    def close(self, attempt: UUID, now_ms: int, hold_ms: int) -> bool:
        return True

    def take(self, attempt: UUID, now_ms: int, partitions: object) -> Steps[None] | None:
        return super().take_at_once(partitions)  # type: ignore[arg-type]


class Replica:
    """One replica of a partition; `log` belongs to its leader."""

    def __init__(self, world: World, partition: int, broker: int) -> None:
        self.world, self.partition, self.broker = world, partition, broker
        self.high_watermark = 0
        self.waiting: list[tuple[int, Callable[[], None]]] = []

    @property
    def gate(self) -> CutGate:
        return self.world.gates[self.broker]

    def note_end(self) -> PartitionEnd | None:
        return PartitionEnd(0, 0, self.high_watermark, self.high_watermark)

    def rise(self, mark: int) -> None:
        if self.gate.is_open:
            self.raise_mark(mark, 0)
            return
        self.gate.moved(self, mark, 0)
        if self.world.tells_followers:
            self.tell(mark)

    def raise_mark(self, high_watermark: int, size: int) -> None:
        if high_watermark <= self.high_watermark:
            return
        self.high_watermark = high_watermark
        answered = [answer for offset, answer in self.waiting if offset < high_watermark]
        self.waiting = [one for one in self.waiting if one[0] >= high_watermark]
        for answer in answered:
            answer()
        if self is self.world.leaders[self.partition]:
            self.tell(high_watermark)

    def tell(self, mark: int) -> None:
        """Tell the followers, which show it at once: what their leader shows needs no gate of theirs."""
        for follower in self.world.followers[self.partition]:
            self.world.send(partial(follower.raise_mark, mark, 0))


@dataclass
class World:
    seed: int
    gate: Callable[[], CutGate] = CutGate
    tells_followers: bool = False
    now_ms: float = 0.0
    events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    cuts: int = 0
    torn: int = 0
    void: int = 0

    def __post_init__(self) -> None:
        self.source = random.Random(self.seed)
        self.gates = [self.gate() for _ in range(BROKERS)]
        self.logs: list[list[Cause | None]] = [[] for _ in range(PARTITIONS)]
        self.leaders = [Replica(self, n, n % BROKERS) for n in range(PARTITIONS)]
        self.followers = [
            [Replica(self, n, b) for b in range(BROKERS) if b != n % BROKERS] for n in range(PARTITIONS)
        ]
        self.count = 0

    def at(self, after_ms: float, act: Callable[[], None]) -> None:
        self.count += 1
        heapq.heappush(self.events, (self.now_ms + after_ms, self.count, act))

    def send(self, act: Callable[[], None]) -> None:
        self.at(self.source.choice((0.1, 0.3, 1.0, 4.0)) * self.source.uniform(0.5, 2), act)

    def run(self, until_ms: float) -> None:
        for _ in range(CLIENTS):
            self.send(lambda: self.produce(None))
        self.send(lambda: self.cut(UUID(int=1)))
        for broker in range(BROKERS):
            self.at(1, partial(self.expire, broker))
        while self.events and self.now_ms < until_ms:
            self.now_ms, _, act = heapq.heappop(self.events)
            act()

    # -- clients

    def produce(self, cause: Cause | None) -> None:
        """Append what follows from `cause`; go on once it is acknowledged, or seen on some replica."""
        leader = self.leaders[self.source.randrange(PARTITIONS)]
        log = self.logs[leader.partition]
        offset = len(log)
        log.append(cause)
        place = (leader.partition, offset)
        self.send(lambda: leader.rise(max(offset + 1, leader.high_watermark)))
        if self.source.random() < 0.5:
            leader.waiting.append((offset, lambda: self.send(lambda: self.produce(place))))
        else:
            reader = self.source.choice([leader, *self.followers[leader.partition]])
            self.send(lambda: self.look(reader, offset))

    def look(self, reader: Replica, offset: int) -> None:
        if reader.high_watermark > offset:
            self.produce((reader.partition, offset))
        else:
            self.send(lambda: self.look(reader, offset))

    # -- brokers and keeper

    def expire(self, broker: int) -> None:
        rest = self.gates[broker].open_late(int(self.now_ms))
        if rest is not None:
            self.drive(rest, lambda: None)
        self.at(1, lambda: self.expire(broker))

    def drive(self, steps: Iterator[None], done: Callable[[], None]) -> None:
        """Do a few steps in each turn."""
        for _ in range(self.source.randrange(1, 4)):
            if next(steps, _OVER) is _OVER:
                done()
                return
        self.at(0.01, lambda: self.drive(steps, done))

    def cut(self, attempt: UUID) -> None:
        closed: list[int] = []
        ends: dict[int, PartitionEnd] = {}
        answered: list[bool] = []

        def begin(broker: int) -> None:
            is_closed = self.gates[broker].close(attempt, int(self.now_ms), HOLD_MS)
            self.send(lambda: began(broker, is_closed))

        def began(broker: int, is_closed: bool) -> None:
            closed.append(broker)
            if not is_closed:
                answered.append(False)
            if len(closed) == BROKERS:
                for one in range(BROKERS):
                    self.send(partial(take, one))

        def take(broker: int) -> None:
            led: list[Gated] = [one for one in self.leaders if one.broker == broker]
            gate = self.gates[broker]
            steps = gate.take(attempt, int(self.now_ms), led)
            if steps is None:
                taken(False)
                return

            def done() -> None:
                for one, end in gate.ends().items():
                    if isinstance(one, Replica) and end is not None and one in led:
                        ends[one.partition] = end
                taken(True)

            self.drive(steps, done)

        def taken(is_taken: bool) -> None:
            answered.append(is_taken)
            if len(answered) >= BROKERS:
                self.judge(ends if all(answered) else None)
                self.at(5, lambda: self.cut(UUID(int=attempt.int + 1)))

        for broker in range(BROKERS):
            self.send(partial(begin, broker))

    def judge(self, ends: dict[int, PartitionEnd] | None) -> None:
        if ends is None:
            self.void += 1
            return
        self.cuts += 1
        assert sorted(ends) == list(range(PARTITIONS))
        lacks = [
            cause
            for partition, end in ends.items()
            for cause in self.logs[partition][: end.end]
            if cause is not None and cause[1] >= ends[cause[0]].end
        ]
        self.torn += bool(lacks)


SEEDS = range(12)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_cut_behind_gates_is_torn(seed: int) -> None:
    world = World(seed)
    world.run(2_000)
    assert world.torn == 0
    assert world.cuts > 20, f"{world.void} were void"
    assert all(gate._late == {} or not gate.is_open for gate in world.gates)


def test_cuts_without_gates_or_with_gates_that_forget_followers_are_torn() -> None:
    bare = [World(seed, gate=NoGate) for seed in SEEDS[:2]]
    told = [World(seed, tells_followers=True) for seed in SEEDS[:2]]
    for world in (*bare, *told):
        world.run(2_000)
    assert sum(world.torn for world in bare) > 0
    assert sum(world.torn for world in told) > 0
