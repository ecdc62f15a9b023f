"""A world of one transactional id: its client, coordinator and leaders of partitions, and a late network.

Leaders have the real states of producers and guards, and ask by the real `VerificationQueue`. Requests may
arrive late, and again; markers are written in any order; the coordinator may abort by itself. After each
append the oracle asks whether the coordinator knew (invariant X7): the data's transaction has the partition
and is open, or its marker for this partition is still to come.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.hot.markers import Marker, judge
from service.hot.producers import ProducerStates
from service.hot.verification import VERIFICATION_OFF, VerificationGuard, VerificationGuards
from service.records.batch import BatchHeader
from service.records.markers import EndMarker
from service.transactions.verification import (
    Answered,
    AskBroker,
    Asked,
    AskHere,
    Mode,
    TransactionQuestion,
    VerificationEffect,
    VerificationQueue,
)

PRODUCER = 7
PARTITIONS = ("a", 0), ("b", 0)
Place = tuple[str, int]
TRANSACTIONAL = 0x10


class Violation(Exception):
    """The history broke an invariant."""


class State(Enum):
    EMPTY = 0
    ONGOING = 1
    PREPARED = 2


class Plant(NamedTuple):
    """A mistake in one of the two machines."""

    appends_unverified: bool = False
    guards: type[VerificationGuards] = VerificationGuards


class GuardOutlivesTheMarker(VerificationGuards):
    """A verification of the transaction before lets a late batch in."""

    __slots__ = ()

    def marked(self, producer_id: int, epoch: int) -> None:
        return


PLANTS = {
    "appended_before_it_is_verified": Plant(appends_unverified=True),
    "guard_outlives_the_marker": Plant(guards=GuardOutlivesTheMarker),
}


@dataclass
class Coordinator:
    """The state of the id, as its log has it."""

    epoch: int = 0
    state: State = State.EMPTY
    partitions: set[Place] = field(default_factory=set)
    to_mark: dict[Place, Marker] = field(default_factory=dict)

    def verify(self, question: TransactionQuestion) -> dict[Place, ErrorCode]:
        error = None
        if question.producer_epoch != self.epoch:
            error = ErrorCode.producer_fenced
        elif self.state is State.PREPARED:
            error = ErrorCode.concurrent_transactions
        elif question.mode is Mode.ADD:
            self.add(*question.partitions)
            error = ErrorCode.none
        if error is not None:
            return dict.fromkeys(question.partitions, error)
        return {
            one: ErrorCode.none if one in self.partitions else ErrorCode.transaction_abortable
            for one in question.partitions
        }

    def add(self, *places: Place) -> None:
        self.state = State.ONGOING
        self.partitions.update(places)

    def end(self, *, is_commit: bool, raises: bool, version: int) -> None:
        if raises:
            self.epoch += 1
        marker = Marker(PRODUCER, self.epoch, 1, is_commit, version)
        self.to_mark = dict.fromkeys(sorted(self.partitions), marker)
        self.state = State.PREPARED

    def marked(self, place: Place) -> None:
        self.to_mark.pop(place, None)
        if not self.to_mark:
            self.state, self.partitions = State.EMPTY, set()

    def knows(self, place: Place, epoch: int) -> bool:
        """Whether a marker will follow data of this epoch in this partition."""
        if self.state is State.ONGOING:
            return place in self.partitions and epoch == self.epoch
        marker = self.to_mark.get(place)
        return marker is not None and epoch in (marker.producer_epoch, marker.producer_epoch - 1)


class Leader:
    """The leader of one partition."""

    def __init__(self, plant: Plant) -> None:
        self.states = ProducerStates(1 << 40)
        self.states.guards = plant.guards()
        self.data: list[tuple[int, int]] = []
        """epoch and sequence of what was appended"""

    def append(self, batch: Batch, guard: VerificationGuard | None) -> bool:
        """Return whether the batch is new. Raises `RequestError`."""
        states = self.states
        header = BatchHeader(
            0, 0, 61, 0, 2, 0, TRANSACTIONAL, 0, 0, 0, PRODUCER, batch.epoch, batch.sequence, 1
        )
        if states.check(header, states.end_offset, True, guard) is not None:
            return False
        states.update(header, states.end_offset, states.end_offset)
        states.end_offset += 1
        self.data.append((batch.epoch, batch.sequence))
        return True

    def mark(self, marker: Marker) -> None:
        [refused] = judge(self.states, [marker])
        if refused is not None:
            raise refused
        header = BatchHeader(
            0, self.states.end_offset, 78, 0, 2, 0, 0x30, 0, 0, 0, PRODUCER, marker.producer_epoch, -1, 1
        )
        self.states.end_transaction(header, EndMarker(marker.coordinator_epoch, 0, marker.is_commit))
        self.states.end_offset += 1
        self.states.high_watermark_moved(self.states.end_offset)


class Batch(NamedTuple):
    """A Produce request of one batch on its way."""

    place: Place
    epoch: int
    sequence: int


class VerifiedLog:
    """One history."""

    def __init__(self, seed: int, version: int, plant: Plant = Plant()) -> None:  # noqa: B008
        self.random = Random(seed)
        self.version = version
        self.plant = plant
        self.mode = Mode.ADD if version == 2 else Mode.VERIFY
        self.coordinator = Coordinator()
        self.leaders = {place: Leader(plant) for place in PARTITIONS}
        self.queue = VerificationQueue(lambda _: self.random.choice((1, 2, 2, None)), own_id=1)
        self.now_ms = 0
        self.epoch = 0
        self.sequences = dict.fromkeys(PARTITIONS, 0)
        self.on_the_way: list[Batch] = []
        self.asking: dict[int, AskBroker] = {}
        self.asking_here: list[Asked] = []
        self.answers: list[Callable[[], list[VerificationEffect]]] = []
        self.waiting: dict[Asked, tuple[Batch, VerificationGuard]] = {}
        self.appended = 0

    def play(self, steps: int = 120) -> int:
        """Play it; return the number of batches that were appended. Raises `Violation`."""
        acts = (
            self.produce, self.produce, self.deliver, self.deliver, self.deliver, self.answer, self.answer,
            self.hear, self.hear, self.lose, self.mark, self.mark, self.end, self.time_out, self.wait,
        )  # fmt: skip
        for _ in range(steps):
            self.random.choice(acts)()
        self.settle()
        return self.appended

    # -- the client

    def produce(self) -> None:
        place = self.random.choice(PARTITIONS)
        if self.version == 1:
            if self.coordinator.epoch != self.epoch or self.coordinator.state is State.PREPARED:
                return
            self.coordinator.add(place)
        self.on_the_way.append(Batch(place, self.epoch, self.sequences[place]))
        self.sequences[place] += 1

    def end(self) -> None:
        coordinator = self.coordinator
        if coordinator.state is not State.ONGOING or coordinator.epoch != self.epoch:
            return
        raises = self.version == 2
        coordinator.end(is_commit=self.random.random() < 0.5, raises=raises, version=self.version)
        if raises:
            self._take_epoch()

    def _take_epoch(self) -> None:
        self.epoch = self.coordinator.epoch
        self.sequences = dict.fromkeys(PARTITIONS, 0)

    def time_out(self) -> None:
        """Abort by the coordinator; the client takes the next epoch some time later."""
        coordinator = self.coordinator
        if self.random.random() < 0.7:
            if coordinator.state is State.EMPTY and coordinator.epoch != self.epoch:
                self._take_epoch()
        elif coordinator.state is State.ONGOING:
            coordinator.end(is_commit=False, raises=True, version=self.version)

    # -- the network and the leaders

    def deliver(self) -> None:
        """Let a request arrive; one in four arrives again later."""
        if not self.on_the_way:
            return
        at = self.random.randrange(len(self.on_the_way))
        batch = self.on_the_way[at]
        if self.random.random() < 0.75:
            del self.on_the_way[at]
        states = self.leaders[batch.place].states
        if states.has_open_transaction(PRODUCER, batch.epoch):
            self._append(batch, None)
            return
        try:
            guard = states.begin_verification(PRODUCER, batch.epoch, batch.sequence, self.version == 2)
        except RequestError:
            return
        assert guard is not None
        if self.plant.appends_unverified:
            self._append(batch, VERIFICATION_OFF)
            return
        asked = Asked(
            TransactionQuestion("pay", PRODUCER, batch.epoch, (batch.place,), self.mode), self.now_ms
        )
        self.waiting[asked] = batch, guard
        self._carry_out(self.queue.ask(asked, self.now_ms))

    def _append(self, batch: Batch, guard: VerificationGuard | None) -> None:
        try:
            is_new = self.leaders[batch.place].append(batch, guard)
        except RequestError:
            return
        if is_new:
            self.appended += 1
            if not self.coordinator.knows(batch.place, batch.epoch):
                raise Violation(f"{batch} was appended, and no marker follows: {self.coordinator}")

    def _carry_out(self, effects: list[VerificationEffect]) -> None:
        for effect in effects:
            if isinstance(effect, AskBroker):
                assert effect.broker not in self.asking, "two requests to one coordinator"
                self.asking[effect.broker] = effect
            elif isinstance(effect, AskHere):
                self.asking_here.append(effect.asked)
            else:
                assert isinstance(effect, Answered)
                batch, guard = self.waiting.pop(effect.asked)
                if effect.errors[batch.place] == ErrorCode.none:
                    self._append(batch, guard)
                elif self.random.random() < 0.5:
                    self.on_the_way.append(batch)

    def answer(self) -> None:
        """Let the coordinator answer a request; the answer arrives later."""
        if self.asking and self.random.random() < 0.7:
            broker = self.random.choice(tuple(self.asking))
            questions = self.asking.pop(broker).questions
            results = {one.transactional_id: self.coordinator.verify(one) for one in questions}
            self.answers.append(lambda: self.queue.answered(broker, results, self.now_ms))
        elif self.asking_here:
            asked = self.asking_here.pop(self.random.randrange(len(self.asking_here)))
            errors = self.coordinator.verify(asked.question)
            self.answers.append(lambda: self.queue.answered_here(asked, errors, self.now_ms))

    def hear(self) -> None:
        if self.answers:
            self._carry_out(self.answers.pop(self.random.randrange(len(self.answers)))())

    def lose(self) -> None:
        """Lose a request, before or after the coordinator has decided."""
        if self.asking and self.random.random() < 0.2:
            broker = self.random.choice(tuple(self.asking))
            questions = self.asking.pop(broker).questions
            if self.random.random() < 0.5:
                for one in questions:
                    self.coordinator.verify(one)
            self._carry_out(self.queue.lost(broker, self.now_ms))

    def mark(self) -> None:
        if self.coordinator.to_mark:
            place = self.random.choice(tuple(self.coordinator.to_mark))
            self.leaders[place].mark(self.coordinator.to_mark[place])
            if self.random.random() < 0.8:  # else its answer is lost, and it is sent again
                self.coordinator.marked(place)

    def wait(self) -> None:
        self.now_ms += self.random.choice((1, 20, 200))
        self._carry_out(self.queue.due(self.now_ms))

    # -- the end

    def settle(self) -> None:
        """Let everything arrive, end what is open, and look for what hangs."""
        for _ in range(10_000):
            if not (self.on_the_way or self.asking or self.asking_here or self.answers or self.waiting):
                break
            for act in (self.deliver, self.answer, self.hear, self.wait):
                act()
        else:
            raise Violation("requests without an end")
        if self.coordinator.state is State.ONGOING:
            self.coordinator.end(is_commit=False, raises=True, version=self.version)
        while self.coordinator.to_mark:
            self.mark()
        for place, leader in self.leaders.items():
            if leader.states.first_unstable_offset is not None:
                raise Violation(f"{place} has a hanging transaction")
