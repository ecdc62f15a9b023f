"""A world of brokers around `TransactionMarkers`: elections, lost requests, deletions, depositions.

This node is broker 1, and coordinates the ids of two partitions of the transaction log while it leads them.
The machine sees the image, which is behind the truth; brokers act by the truth. The oracle looks at each
effect: what is sent bears the epoch of the present leadership (X9), a transaction is complete when each
partition that is there has its marker (X1), no partition gets another decision than the committed one (X2).
In the end, with all brokers up, everything that was decided is complete within 30 seconds (X3, X11).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from service.transactions.marker_requests import (
    Disconnect,
    MarkerEffect,
    MarkerRefused,
    MarkersWritten,
    PreparedTransaction,
    SendMarkers,
)
from service.transactions.markers import MarkerResult, TransactionMarkers

HERE = 1
BROKERS = (1, 2, 3)
SHARDS = (0, 1)
Place = tuple[str, int]


class Violation(Exception):
    """The history broke an invariant."""


@dataclass
class Partition:
    """A partition, by the truth."""

    leader: int
    markers: list[tuple[int, int, bool]] = field(default_factory=list)
    """producer id and epoch, whether it commits"""
    coordinator_epochs: dict[int, int] = field(default_factory=dict)


@dataclass
class Decided:
    """A transaction that is decided."""

    shard: int
    transactional_id: str
    producer_id: int
    epoch: int
    is_commit: bool
    places: frozenset[Place]
    is_committed: bool = False
    is_complete: bool = False


class Plant(NamedTuple):
    """A mistake."""

    machine: type[TransactionMarkers] = TransactionMarkers
    tells_before_the_commit: bool = False


class CompleteBeforeAllMarkers(TransactionMarkers):
    """A transaction is complete when the first partition has answered."""

    def _partition_done(self, sending, topic, partition) -> None:  # type: ignore[no-untyped-def]
        sending.left = {(topic, partition)}
        super()._partition_done(sending, topic, partition)


class LostRequestsAreForgotten(TransactionMarkers):
    """What was under way to a dead broker is not sent again."""

    def lost(self, broker: int, now_ms: int) -> None:
        self._take_in_flight(broker)


class DeposedCoordinatorGoesOn(TransactionMarkers):
    """A deposition is not noticed."""

    def deposed(self, shard: int) -> None:
        return


class NoLookAtTheImage(TransactionMarkers):
    """What waits for a leader that has left goes on waiting for it."""

    def image_changed(self, topics: object) -> None:
        return

    def _route_one(self, sending, topic, partition, now_ms) -> None:  # type: ignore[no-untyped-def]
        if self._leader_of(topic, partition) != -1:
            super()._route_one(sending, topic, partition, now_ms)


PLANTS = {
    "markers_before_the_decision_is_committed": Plant(tells_before_the_commit=True),
    "complete_before_all_markers": Plant(CompleteBeforeAllMarkers),
    "lost_requests_are_forgotten": Plant(LostRequestsAreForgotten),
    "a_deposed_coordinator_goes_on": Plant(DeposedCoordinatorGoesOn),
    "markers_without_a_leader_are_forgotten": Plant(NoLookAtTheImage),
}


class MarkerStorm:
    """One history."""

    def __init__(self, seed: int, plant: Plant = Plant()) -> None:  # noqa: B008
        self.random = Random(seed)
        self.plant = plant
        self.now_ms = 0
        self.places = {
            (topic, index): Partition(self.random.choice(BROKERS)) for topic in "abc" for index in range(2)
        }
        self.image = {place: one.leader for place, one in self.places.items()}
        self.news: list[tuple[str, dict[Place, int]]] = []
        """images that are still to come: topic that changed, leaders of all partitions"""
        self.dead: set[int] = set()
        self.epochs = dict.fromkeys(SHARDS, 1)
        self.led = set(SHARDS)
        self.decided: list[Decided] = []
        self.under_way: dict[int, SendMarkers] = {}
        self.machine = plant.machine(lambda topic, index: self.image.get((topic, index)))
        self.sent = 0

    def play(self, steps: int = 150) -> int:
        """Play it; return the number of requests that were sent. Raises `Violation`."""
        acts = (
            self.decide, self.decide, self.commit, self.commit, self.answer, self.answer, self.answer,
            self.lose, self.elect, self.hear, self.hear, self.kill, self.revive, self.depose, self.lead,
            self.delete, self.wait, self.wait,
        )  # fmt: skip
        for _ in range(steps):
            self.random.choice(acts)()
            self.work()
        self.settle()
        return self.sent

    # -- decisions

    def decide(self) -> None:
        shard = self.random.choice(SHARDS)
        number = self.random.randrange(6)
        transactional_id = f"id-{shard}-{number}"
        if shard not in self.led or any(
            one.transactional_id == transactional_id and not one.is_complete for one in self.decided
        ):
            return
        places = frozenset(self.random.sample(sorted(self.places), k=min(len(self.places), 3)))
        epoch = sum(one.transactional_id == transactional_id for one in self.decided)
        is_commit = self.random.random() < 0.5
        one = Decided(shard, transactional_id, 10 * shard + number, epoch, is_commit, places)
        self.decided.append(one)
        if self.plant.tells_before_the_commit:
            self._tell(one)

    def commit(self) -> None:
        """Let a decision be committed by the replicas of the log."""
        for one in self.decided:
            if not one.is_committed and one.shard in self.led:
                one.is_committed = True
                if not self.plant.tells_before_the_commit:
                    self._tell(one)
                return

    def _tell(self, one: Decided) -> None:
        self.machine.prepared(
            one.shard,
            PreparedTransaction(
                one.transactional_id,
                one.producer_id,
                one.epoch,
                self.epochs[one.shard],
                one.is_commit,
                1,
                one.places,
            ),
            self.now_ms,
        )

    def depose(self) -> None:
        """Lose the leadership of a partition of the log, and with it what is not committed."""
        if self.led and self.random.random() < 0.3:
            shard = self.random.choice(sorted(self.led))
            self.led.discard(shard)
            self.machine.deposed(shard)
            for one in self.decided:
                if one.shard == shard and not one.is_committed:
                    one.is_commit = False  # the next coordinator times it out

    def lead(self) -> None:
        for shard in SHARDS:
            if shard not in self.led:
                self.led.add(shard)
                self.epochs[shard] += 2
                for one in self.decided:
                    if one.shard == shard and one.is_committed and not one.is_complete:
                        self._tell(one)
                return

    # -- brokers

    def elect(self) -> None:
        if self.places:
            place = self.random.choice(sorted(self.places))
            alive = [broker for broker in BROKERS if broker not in self.dead]
            self.places[place].leader = self.random.choice([*alive, -1])
            self._publish(place[0])

    def _publish(self, topic: str) -> None:
        self.news.append((topic, {place: one.leader for place, one in self.places.items()}))

    def hear(self) -> None:
        """Apply the next image here."""
        if self.news:
            topic, self.image = self.news.pop(0)
            self.machine.image_changed([topic])

    def kill(self) -> None:
        if self.random.random() < 0.3 and not self.dead:
            broker = self.random.choice(BROKERS[1:])
            self.dead.add(broker)
            for place, one in sorted(self.places.items()):
                if one.leader == broker:
                    one.leader = self.random.choice([1, -1])
                    self._publish(place[0])

    def revive(self) -> None:
        self.dead.clear()

    def delete(self) -> None:
        if self.random.random() < 0.05 and self.places:
            topic = self.random.choice(sorted(self.places))[0]
            self.places = {place: one for place, one in self.places.items() if place[0] != topic}
            self._publish(topic)

    def answer(self) -> None:
        """Let a broker handle a request, and its answer arrive or be lost."""
        alive = [broker for broker in self.under_way if broker not in self.dead]
        if not alive:
            return
        broker = self.random.choice(alive)
        request = self.under_way.pop(broker)
        results: list[MarkerResult] = [
            (marker.producer_id, topic, index, self._write(broker, request, n, (topic, index)))
            for n, marker in enumerate(request.markers)
            for topic, indexes in marker.topics
            for index in indexes
        ]
        self.random.shuffle(results)
        if self.random.random() < 0.15:
            self.machine.lost(broker, self.now_ms)
        else:
            self.machine.answered(broker, self._mangled(results), self.now_ms)

    def _mangled(self, results: list[MarkerResult]) -> list[MarkerResult]:
        if self.random.random() < 0.05:
            results = [*results[1:], (99, "a", 0, ErrorCode.none)]
        return results

    def _write(self, broker: int, request: SendMarkers, number: int, place: Place) -> ErrorCode:
        marker = request.markers[number]
        partition = self.places.get(place)
        if partition is None:
            return ErrorCode.unknown_topic_or_partition
        if partition.leader != broker:
            return ErrorCode.not_leader_or_follower
        if self.random.random() < 0.1:
            return self.random.choice((ErrorCode.not_enough_replicas, ErrorCode.kafka_storage_error))
        if partition.coordinator_epochs.get(marker.producer_id, -1) > marker.coordinator_epoch:
            return ErrorCode.transaction_coordinator_fenced
        partition.coordinator_epochs[marker.producer_id] = marker.coordinator_epoch
        partition.markers.append((marker.producer_id, marker.producer_epoch, marker.is_commit))
        newest = [one for one in self.decided if one.producer_id == marker.producer_id][-1]
        if not newest.is_committed or newest.is_commit != marker.is_commit:
            raise Violation(f"{place} has {marker}, decided is {newest}")
        if self.random.random() < 0.1:  # written, and not known to be replicated
            return ErrorCode.not_enough_replicas_after_append
        return ErrorCode.none

    def lose(self) -> None:
        """Lose a request before it is handled."""
        if self.under_way and self.random.random() < 0.3:
            self._lost(self.random.choice(sorted(self.under_way)))

    def _lost(self, broker: int) -> None:
        del self.under_way[broker]
        self.machine.lost(broker, self.now_ms)

    def wait(self) -> None:
        self.now_ms += self.random.choice((10, 100, 1000))

    # -- effects

    def work(self) -> None:
        due_ms = self.machine.due_ms
        while self.machine.has_work or (due_ms is not None and due_ms <= self.now_ms):
            for effect in self.machine.advance(self.now_ms):
                self.carry_out(effect)
            due_ms = self.machine.due_ms

    def carry_out(self, effect: MarkerEffect) -> None:
        if isinstance(effect, SendMarkers):
            self.sent += 1
            if effect.broker in self.under_way:
                raise Violation(f"two requests are under way to {effect.broker}")
            self.under_way[effect.broker] = effect
            for marker in effect.markers:
                shard = marker.producer_id // 10
                if shard not in self.led or marker.coordinator_epoch != self.epochs[shard]:
                    raise Violation(f"{marker} is sent, the epoch is {self.epochs[shard]}, {self.led} led")
        elif isinstance(effect, MarkersWritten):
            self._complete(effect)
        elif isinstance(effect, Disconnect):
            if effect.broker in self.under_way:
                self._lost(effect.broker)
        else:
            assert isinstance(effect, MarkerRefused)

    def _complete(self, effect: MarkersWritten) -> None:
        transaction = effect.transaction
        one = [one for one in self.decided if one.transactional_id == transaction.transactional_id][-1]
        if one.is_complete:
            raise Violation(f"{one} is completed twice")
        for place in sorted(transaction.partitions):
            partition = self.places.get(place)
            marker = (one.producer_id, one.epoch, one.is_commit)
            if partition is not None and marker not in partition.markers:
                raise Violation(f"{one} is complete, and {place} has no marker of it")
        if self.random.random() < 0.2:
            self.machine.not_completed(effect.shard, transaction, self.now_ms)
        else:
            one.is_complete = effect.shard in self.led and one.is_committed
            self.machine.completed(effect.shard, transaction.transactional_id)

    # -- the end

    def settle(self) -> None:
        """Bring everything up, and wait for 30 seconds."""
        self.dead.clear()
        for place, one in sorted(self.places.items()):
            if one.leader == -1:
                one.leader = self.random.choice(BROKERS)
                self._publish(place[0])
        for _ in SHARDS:
            self.lead()
        for _ in range(len(self.decided)):
            self.commit()
        end_ms = self.now_ms + 30_000
        while self.now_ms < end_ms:
            self.hear()
            self.work()
            for _ in range(len(self.under_way)):
                self.answer()
                self.work()
            self.now_ms += 50
        late = [one for one in self.decided if one.is_committed and not one.is_complete]
        if late or self.machine.transactions:
            raise Violation(f"not complete after 30 s: {late}")
