"""Storms over a cluster's nodes while ordinary clients write: kills, sleeps, restarts; and what must be true.

A `Writers` writes numbered records at a steady pace, one producer of its own per partition, so that a stall
of one is no stall of another. A `Storm` does the harm, by a seed.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tests.support.processes import wait_until
from tests.support.quorums import Cluster, Member
from tests.support.replicas import Nodes, states

Place = tuple[str, int]
"""topic and partition"""
VALUE_BYTES = 1000
MOVED = (
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.OFFSET_NOT_AVAILABLE,
)
"""So a broker answers that a leader has just left, or come to; to librdkafka some of them are final."""
LONG_SLEEP_S: Final = 30.0
"""of a node, in a long storm"""
BRISK: Final = {
    "broker.session.timeout.ms": "4000",
    "broker.heartbeat.interval.ms": "1000",
    "replica.lag.time.max.ms": "5000",
    "replica.socket.timeout.ms": "5000",
    "log.flush.offset.checkpoint.interval.ms": "1000",
}
"""Settings of nodes: where silence is all that tells of a harm, a default is a long time."""

NOWHERE: Final = -1
"""Acknowledged, and the client does not say where: what it sent again had been written before."""


class Ack(NamedTuple):
    number: int
    offset: int
    produced_s: float
    acked_s: float


class Stall(NamedTuple):
    """No record of a partition was acknowledged for so long, from `began_s` on (monotonic)."""

    place: Place
    seconds: float
    began_s: float


class Written:
    """Results of the numbered records that a writer writes to one partition."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.acks: list[Ack] = []
        self.refused: list[tuple[int, str]] = []

    def stop(self, seconds: float) -> int:
        """Write no more; how many records are not decided in time."""
        raise NotImplementedError

    def stall_since(self, began_s: float, until_s: float) -> Stall:
        """The longest time between two acknowledgements of which a part lies between these."""
        worst, last_s = Stall(self.place, 0.0, began_s), None
        for ack in list(self.acks):
            if last_s is not None and ack.acked_s >= began_s and last_s <= until_s:
                gap = ack.acked_s - max(last_s, began_s)
                if gap > worst.seconds:
                    worst = Stall(self.place, gap, max(last_s, began_s))
            last_s = ack.acked_s
        if last_s is not None and until_s - max(last_s, began_s) > worst.seconds:
            worst = Stall(self.place, until_s - max(last_s, began_s), max(last_s, began_s))
        return worst


class Writer(Written):
    """Numbered records to one partition: acks=all, idempotent, retries as the client's defaults have them."""

    def __init__(
        self, bootstrap: str, place: Place, every_s: float, options: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(place)
        self.written = 0
        self._every_s = every_s
        self._over = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 0,
                "log_level": 2,  # that brokers die is no news
                **(options or {}),
            }
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        topic, partition = self.place
        due_s = time.monotonic()
        while not self._over.is_set():
            number, self.written = self.written, self.written + 1
            produced_s = time.monotonic()

            def told(
                error: KafkaError | None, message: Message, number: int = number, at_s: float = produced_s
            ) -> None:
                if error is not None:
                    self.refused.append((number, str(error)))
                else:
                    offset = message.offset()
                    self.acks.append(
                        Ack(number, NOWHERE if offset is None else offset, at_s, time.monotonic())
                    )

            try:
                self._producer.produce(
                    topic, b"%0*d" % (VALUE_BYTES, number), partition=partition, on_delivery=told
                )
            except BufferError:
                self.written -= 1  # it waits for room
            due_s = max(due_s + self._every_s, time.monotonic() - 1)
            while (left_s := due_s - time.monotonic()) > 0 and not self._over.is_set():
                self._producer.poll(left_s)
            self._producer.poll(0)

    def stop(self, seconds: float) -> int:
        self._over.set()
        self._thread.join(30)
        left: int = self._producer.flush(seconds)
        return left


class Writers:
    """One `Writer` for each place, with these options of its producer where there are any. For a `with`."""

    def __init__(
        self,
        cluster: Nodes,
        places: Iterable[Place],
        every_s: float = 0.02,
        options: Mapping[Place, Mapping[str, str]] | None = None,
    ) -> None:
        self.all: list[Written] = [
            Writer(cluster.bootstrap, one, every_s, (options or {}).get(one)) for one in places
        ]

    def __enter__(self) -> Writers:
        return self

    def __exit__(self, *_: object) -> None:
        with ThreadPoolExecutor(len(self.all)) as pool:
            list(pool.map(lambda one: one.stop(0), self.all))

    def stop(self, seconds: float = 180) -> None:
        """Every record is acknowledged, in time."""
        with ThreadPoolExecutor(len(self.all)) as pool:
            left = list(pool.map(lambda one: one.stop(seconds), self.all))
        undecided = {one.place: count for one, count in zip(self.all, left, strict=True) if count}
        assert not undecided, f"not decided after {seconds:g} s: {undecided}"
        refused = {one.place: one.refused[:3] for one in self.all if one.refused}
        assert not refused, f"failed for good: {refused}"

    def worst_since(self, began_s: float, until_s: float, topic: str) -> list[Stall]:
        """Return the longest stall of each partition of the topic, the longest first."""
        found = [one.stall_since(began_s, until_s) for one in self.all if one.place[0] == topic]
        return sorted(found, key=lambda one: -one.seconds)

    def wait_for_acks(self, seconds: float, topic: str) -> None:
        """Wait until each partition of the topic has acknowledged a record produced from now on."""
        now_s = time.monotonic()
        ours = [one for one in self.all if one.place[0] == topic]
        wait_until(
            f"acknowledgements of {topic}",
            lambda: all(one.acks and one.acks[-1].produced_s >= now_s for one in ours),
            seconds,
        )

    def check_read(self, cluster: Nodes, again: Mapping[Place, Collection[int]] | None = None) -> int:
        """What was acknowledged is read at its place, once, in order, and nothing else is; how many.

        `again`: offsets at which there may be what its client, told so, has written once more.
        """
        return sum(_check_read(cluster, one, (again or {}).get(one.place, ())) for one in self.all)


def _check_read(cluster: Nodes, writer: Written, again: Collection[int]) -> int:
    found = read_partition(cluster.bootstrap, writer.place)
    places = {number: offset for offset, number in found.items()}
    found = {
        offset: number for offset, number in found.items() if offset not in again or places[number] == offset
    }
    # Whoever looks at them after this, too, finds them where they are.
    writer.acks = [
        ack if ack.offset != NOWHERE else ack._replace(offset=places.get(ack.number, NOWHERE))
        for ack in writer.acks
    ]
    acked = {ack.offset: ack.number for ack in writer.acks}
    wrong = {
        offset: (number, found.get(offset)) for offset, number in acked.items() if found.get(offset) != number
    }
    assert not wrong, f"{writer.place}: acknowledged, and not read: {len(wrong)}, {_some(wrong)}"
    assert len(acked) == len(writer.acks), f"{writer.place}: two records acknowledged at one offset"
    extra = {offset: number for offset, number in found.items() if offset not in acked}
    assert not extra, f"{writer.place}: read twice, or never acknowledged: {_some(extra)}"
    numbers = [found[offset] for offset in sorted(found)]
    assert numbers == sorted(numbers), f"{writer.place}: not in order"
    return len(found)


def _some(found: Mapping[int, object]) -> dict[int, object]:
    return dict(sorted(found.items())[:5])


def read_partition(bootstrap: str, place: Place, seconds: float = 120) -> dict[int, int]:
    """The numbers of a partition, by offset, up to its high watermark."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.auto.commit": False, "log_level": 2}
    )
    found: dict[int, int] = {}
    try:
        end = -1

        def ends() -> bool:
            nonlocal end
            try:
                end = consumer.get_watermark_offsets(TopicPartition(*place), timeout=10)[1]
            except KafkaException as e:
                if not e.args[0].retriable() and e.args[0].code() not in MOVED:
                    raise
            return bool(end >= 0)

        wait_until(f"the end of {place}", ends, seconds)
        consumer.assign([TopicPartition(*place, 0)])
        last = -1

        def all_read() -> bool:
            nonlocal last
            for one in consumer.consume(5000, 0.2):
                error = one.error()
                assert error is None or error.retriable(), error
                if error is None:
                    assert one.offset() > last, f"{place} at {one.offset()} after {last}"
                    last = one.offset()
                    found[last] = int(one.value() or b"-1")
            return bool(last >= end - 1)

        wait_until(f"{place} to be read up to {end}, {last} is there", all_read, seconds)
    finally:
        consumer.close()
    return found


# -- the harm


_WHOLE: Final = "kill all"


class Harm(NamedTuple):
    what: str
    victims: tuple[int, ...]
    at_s: float


class Storm:
    """One harm after the other, as `source` has it."""

    def __init__(self, cluster: Cluster, topic: str, source: random.Random) -> None:
        self._cluster, self._topic, self._source = cluster, topic, source
        self.kills = 0
        self.longest_sleep_s = 10.0
        self.kills_a_whole = 0
        """After so many kills at the latest the whole cluster is killed again; 0: as it comes."""
        self.done: list[Harm] = []
        self._began_s = time.monotonic()

    @property
    def _kinds(self) -> Sequence[tuple[int, str, Callable[[], tuple[int, ...]]]]:
        return (
            (6, "kill a leader", lambda: self._kill([self.leader_of_partition()])),
            (4, "kill the active controller", lambda: self._kill([self.controller()])),
            (4, "kill a follower", lambda: self._kill([self._follower()])),
            (2, "kill one again as it starts", self._kill_as_it_starts),
            (2, "kill two", lambda: self._kill(self._source.sample(self._ids, 2))),
            (2, "kill everybody but one", self._kill_all_but_one),
            (2, _WHOLE, lambda: self._kill(self._ids)),
            (3, "let one sleep", lambda: self._sleep(kills_another=False)),
            (1, "kill one while another sleeps", lambda: self._sleep(kills_another=True)),
            (1, "roll", self._roll),
        )

    @property
    def wholes(self) -> int:
        """Return how often all nodes were killed at once."""
        return sum(one.what == _WHOLE for one in self.done)

    @property
    def _ids(self) -> list[int]:
        return sorted(self._cluster.members)

    def next(self) -> Harm:
        """Does one harm, and undoes it: all nodes run after it, not all may be in sync."""
        if self.kills_a_whole and self.wholes < self.kills // self.kills_a_whole:
            return self.do(_WHOLE, lambda: self._kill(self._ids))
        kinds = self._kinds
        ((_, what, do),) = self._source.choices(kinds, [one[0] for one in kinds])
        return self.do(what, do)

    def do(self, what: str, do: Callable[[], tuple[int, ...]]) -> Harm:
        """Do this harm, as `next` does one."""
        at_s = time.monotonic()
        victims = do()
        self.done.append(Harm(what, victims, at_s))
        took_s = time.monotonic() - at_s
        print(f"{at_s - self._began_s:7.1f} s {what}: {victims}, {took_s:.1f} s", flush=True)
        return self.done[-1]

    def _kill(self, victims: Sequence[int]) -> tuple[int, ...]:
        for one in victims:
            self._cluster.members[one].kill()
        self.kills += len(victims)
        time.sleep(self._source.choice((0.0, 0.3, 1.0, 3.0)))
        self._start(victims)
        return tuple(victims)

    def _kill_as_it_starts(self) -> tuple[int, ...]:
        victim = self._source.choice(self._ids)
        member = self._cluster.members[victim]
        for _ in range(3):
            member.kill()
            member.launch()
            time.sleep(self._source.uniform(0, 5))
        member.kill()
        self.kills += 4
        self._start([victim])
        return (victim,)

    def _kill_all_but_one(self) -> tuple[int, ...]:
        spared = self._source.choice(self._ids)
        return self._kill([one for one in self._ids if one != spared])

    def _start(self, victims: Sequence[int]) -> None:
        """Start all at once, or one after the other if a majority of controllers lives."""
        if len(victims) > 1:
            self._cluster.start(victims, 120)
        else:
            self._cluster.members[victims[0]].start(120)

    def _sleep(self, *, kills_another: bool) -> tuple[int, ...]:
        sleeper, other = self._source.sample(self._ids, 2)
        process = self._cluster.members[sleeper].process
        assert process is not None
        seconds = self._source.uniform(1, self.longest_sleep_s)
        os.kill(process.pid, signal.SIGSTOP)
        try:
            if kills_another:
                time.sleep(seconds / 2)
                self._cluster.members[other].kill()
                self.kills += 1
                time.sleep(seconds / 2)
            else:
                time.sleep(seconds)
        finally:
            os.kill(process.pid, signal.SIGCONT)
        if kills_another:
            self._start([other])
            return sleeper, other
        return (sleeper,)

    def _roll(self) -> tuple[int, ...]:
        for one in self._ids:
            self._cluster.members[one].leave(120)
            self._cluster.members[one].start(120)
        return tuple(self._ids)

    # -- who is who

    def _running(self) -> list[Member]:
        running = [one for one in self._cluster.members.values() if one.is_running]
        self._source.shuffle(running)
        return running

    def leader_of_partition(self) -> int:
        """Return the leader of any partition of the topic."""
        found = states(self._running()[0], self._topic)
        leaders = [one.leader for one in found.values() if one.leader >= 0]
        return self._source.choice(leaders or self._ids)

    def _follower(self) -> int:
        found = states(self._running()[0], self._topic)
        others = [id_ for one in found.values() for id_ in one.replicas if id_ != one.leader]
        return self._source.choice(others or self._ids)

    def controller(self) -> int:
        return active_controller(self._cluster)


def active_controller(cluster: Cluster) -> int:
    found: list[int] = []

    def look() -> bool:
        for one in cluster.members.values():
            if one.is_running and (leader := one.quorum().leader) >= 0:
                found.append(leader)
                return True
        return False

    wait_until("a controller", look, 60)
    return found[-1]


# -- what the disks must say


def check_files(cluster: Nodes, topic: str, partitions: Iterable[int]) -> None:
    """Checkpoints parse as Kafka's, and what replicas say of leader epochs agrees where they overlap. All
    nodes are stopped."""
    for member in cluster.members.values():
        for name in (
            "recovery-point-offset-checkpoint",
            "replication-offset-checkpoint",
            "log-start-offset-checkpoint",
        ):
            for path in (one / name for one in member.directories):
                if path.exists():
                    _checkpoint(path)
    for index in partitions:
        known = {
            member.node_id: _epochs(found / "leader-epoch-checkpoint")
            for member in cluster.members.values()
            if (found := member.replica(topic, index)) is not None
        }
        merged: dict[int, int] = {}
        for node_id, entries in known.items():
            starts = [start for _, start in entries]
            epochs = [epoch for epoch, _ in entries]
            assert epochs == sorted(set(epochs)), f"{topic}-{index} on {node_id}: {entries}"
            assert starts == sorted(starts), f"{topic}-{index} on {node_id}: {entries}"
            for epoch, start in entries:
                assert merged.setdefault(epoch, start) == start, f"{topic}-{index}: {known}"


def _lines(path: Path) -> list[list[str]]:
    version, count, *rest = path.read_text().splitlines()
    assert version == "0", f"{path}: version {version}"
    assert int(count) == len(rest), f"{path}: {count} entries, {len(rest)} lines"
    return [one.split() for one in rest]


def _checkpoint(path: Path) -> dict[Place, int]:
    found = {(topic, int(index)): int(offset) for topic, index, offset in _lines(path)}
    assert all(offset >= 0 for offset in found.values()), path
    return found


def _epochs(path: Path) -> list[tuple[int, int]]:
    if not path.exists():
        return []
    return [(int(epoch), int(start)) for epoch, start in _lines(path)]
