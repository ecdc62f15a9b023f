"""Brokers of Firn and of Apache Kafka 4.3.1 with replicas of the same partitions, in one ISR.

Each of them leads and follows, is killed and comes back, gives up what was never committed and begins anew
where its leader's log does. What was acknowledged is read, and the files of all replicas hold the same bytes.
"""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.support.clients import CODECS, Admin
from tests.support.mixed import CONTROLLERS, FIRN, FIRST_BROKER, Member, Mixed, mixed
from tests.support.placing import in_sync, lead, prefer, rotated
from tests.support.replicas import check_equal, log_bytes, states
from tests.support.storms import Writers, check_files, read_partition
from tests.support.waiting import until

pytestmark = pytest.mark.java

WRITTEN, PRESSED, TORN, TRIMMED = "written", "pressed", "torn", "trimmed"
OFFSETS = "__consumer_offsets"
SETTINGS = {"offsets.topic.num.partitions": "1"}
"""All coordinators must know by what number a group's partition is found."""
PARTITIONS = len(CODECS)
PLACES = [(WRITTEN, index) for index in range(PARTITIONS)] + [(PRESSED, 0)]
OPTIONS = {(WRITTEN, index): {"compression.type": codec} for index, codec in enumerate(CODECS)}


async def create(cluster: Mixed) -> None:
    admin = Admin(cluster.asked.bootstrap)
    for name, partitions, own in (
        (WRITTEN, PARTITIONS, {}),
        (PRESSED, 1, {"compression_type": "lz4"}),  # whoever leads compresses anew
        (TORN, 1, {}),
        (TRIMMED, 1, {}),
    ):
        config = {"min_insync_replicas": "2", "segment_bytes": "1048576", **own}
        await asyncio.to_thread(admin.replicate, name, partitions, 3, **config)
        await in_sync(cluster, name)


async def has_acks(writers: Writers, seconds: float = 60) -> None:
    for topic in (WRITTEN, PRESSED):
        await asyncio.to_thread(writers.wait_for_acks, seconds, topic)


async def wander(cluster: Mixed, writers: Writers) -> None:
    """Each broker leads each partition, there and back again."""
    brokers = list(cluster.brokers)
    there = list(range(len(brokers)))
    for by in there + there[-2::-1]:
        await lead(cluster, WRITTEN, rotated(brokers, PARTITIONS, by))
        await lead(cluster, PRESSED, rotated(brokers, 1, by))
        await has_acks(writers)


async def write(cluster: Mixed, topic: str, count: int, **options: str) -> None:
    """So many batches of one record, acknowledged."""

    def each() -> None:
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 2, **options})
        for number in range(count):
            producer.produce(topic, b"%0500d" % number, partition=0)
            assert producer.flush(60) == 0, f"{topic} takes no records"

    await asyncio.to_thread(each)


def others(cluster: Mixed, victim: Member) -> list[Member]:
    """Those of the other software first."""
    left = [one for one in cluster.brokers.values() if one is not victim]
    return sorted(left, key=lambda one: one.is_firn is victim.is_firn)


async def dies_and_returns(cluster: Mixed, writers: Writers, victim: Member) -> None:
    """kill -9 of a leader. While it is away its partitions go on, and of one the beginning is deleted, also
    where its own log ended."""
    rest = others(cluster, victim)
    cluster.asked = rest[0]
    order = {0: [one.node_id for one in (*rest, victim)]}
    await lead(cluster, TRIMMED, order)
    await write(cluster, TRIMMED, 10, acks="all")
    end_before = max(log_bytes(victim.data / f"{TRIMMED}-0"))
    victim.kill()
    await has_acks(writers)
    await write(cluster, TRIMMED, 40, acks="all")
    before = TopicPartition(TRIMMED, 0, end_before + 20)
    assert await asyncio.to_thread(delete, rest[0], before) == end_before + 20
    await returns(cluster, victim)
    await has_acks(writers)
    assert min(log_bytes(victim.data / f"{TRIMMED}-0")) > end_before
    await lead(cluster, TRIMMED, {0: [victim.node_id, *order[0][:-1]]})
    await write(cluster, TRIMMED, 5, acks="all")


def delete(leader: Member, before: TopicPartition) -> int:
    """DeleteRecords; the low watermark of all that live.

    A leader of Kafka counts who waits for that by their timers, which begin a moment after they have looked
    for the last time: a follower's word that comes in between wakes nobody. Who asks again is answered.
    """
    client, tries = Admin(leader.bootstrap).client, 1 if leader.is_firn else 4
    while True:
        deleted = client.delete_records([before], request_timeout=30, operation_timeout=10)[before]
        try:
            found: int = deleted.result(60).low_watermark
            return found
        except KafkaException as e:
            tries -= 1
            if not tries or e.args[0].code() not in (KafkaError.REQUEST_TIMED_OUT, KafkaError._TIMED_OUT):
                raise


async def returns(cluster: Mixed, victim: Member) -> None:
    """It is in sync again, and leads what it is the first replica of."""
    victim.launch()
    await victim.serves()
    for topic in (WRITTEN, PRESSED, TORN, TRIMMED):
        await in_sync(cluster, topic)
        first = await asyncio.to_thread(states, victim, topic)
        await prefer(cluster, topic, {index: one.replicas[0] for index, one in first.items()})


async def leaves_and_returns(cluster: Mixed, writers: Writers, victim: Member) -> None:
    cluster.asked = others(cluster, victim)[0]
    assert await victim.terminate() in (0, 143), victim.log()
    await has_acks(writers)
    await returns(cluster, victim)
    await has_acks(writers)


async def gives_up_what_was_not_committed(cluster: Mixed, leader: Member) -> None:
    """The others sleep while it writes, it dies, and they write something else at the same offsets."""
    rest = others(cluster, leader)
    cluster.asked = rest[0]
    await lead(cluster, TORN, {0: [leader.node_id, *(one.node_id for one in rest)]})
    await write(cluster, TORN, 3, acks="all")
    for one in rest:
        one.signal(signal.SIGSTOP)
    try:
        # by way of the leader alone, as the others answer nothing
        await asyncio.to_thread(only_here, leader)
        leader.kill()
    finally:
        for one in rest:
            one.signal(signal.SIGCONT)
    had = log_bytes(leader.data / f"{TORN}-0")
    await write(cluster, TORN, 5, acks="all")
    now = log_bytes(rest[0].data / f"{TORN}-0")
    assert any(now.get(offset) != data for offset, data in had.items()), "nothing has to be given up"
    await returns(cluster, leader)
    await write(cluster, TORN, 3, acks="all")


def only_here(leader: Member) -> None:
    producer = Producer({"bootstrap.servers": leader.bootstrap, "acks": "1", "log_level": 2})
    for number in range(20):
        producer.produce(TORN, b"%0300d" % number, partition=0)
        assert producer.flush(20) == 0, "it takes no records while the others sleep"


async def groups_go_on(cluster: Mixed) -> None:
    """What is committed at the coordinator of one software is known to that of the other."""

    def committed(*, commits: int | None = None) -> int:
        options = {"bootstrap.servers": cluster.bootstrap, "group.id": "g", "log_level": 2}
        consumer = Consumer({**options, "enable.auto.commit": False})
        try:
            if commits is not None:
                place = TopicPartition(WRITTEN, 0, commits)
                consumer.commit(offsets=[place], asynchronous=False)
            (found,) = consumer.committed([TopicPartition(WRITTEN, 0)], timeout=30)
        finally:
            consumer.close()
        return int(found.offset)

    assert await asyncio.to_thread(committed, commits=1) == 1
    brokers = list(cluster.brokers)
    partitions = len(await asyncio.to_thread(states, cluster.asked, OFFSETS))
    for number in range(len(brokers) + 1):
        await lead(cluster, OFFSETS, rotated(brokers, partitions, number))
        # Either coordinator tells what is committed, which it has to learn first of the others' fetches.
        for left in reversed(range(20)):
            if (found := await asyncio.to_thread(committed)) == number + 1:
                break
            assert left, f"{found} is not what was committed"
        assert await asyncio.to_thread(committed, commits=number + 2) == number + 2


async def moves_away(cluster: Mixed, leaver: Member) -> None:
    """A partition leaves a broker: the one that comes in its place has everything from it."""
    topic, (first, second) = f"moved-from-{leaver.node_id}", others(cluster, leaver)
    cluster.asked = first
    admin = Admin(first.bootstrap)
    await asyncio.to_thread(admin.create, topic, 1, segment_bytes="1048576")
    await lead(cluster, topic, {0: [leaver.node_id, second.node_id]})
    await write(cluster, topic, 50, acks="all")
    await lead(cluster, topic, {0: [first.node_id, second.node_id]})
    assert len(await asyncio.to_thread(read_partition, cluster.bootstrap, (topic, 0))) == 50
    await until(lambda: not (leaver.data / f"{topic}-0").exists())


async def judge(cluster: Mixed, writers: Writers) -> None:
    """acked = read; and all replicas have the same files."""
    await asyncio.to_thread(writers.stop)
    count = await asyncio.to_thread(writers.check_read, cluster, cluster.written_again())
    for topic in (TORN, TRIMMED):
        await in_sync(cluster, topic)
    kept = await asyncio.to_thread(read_partition, cluster.bootstrap, (TORN, 0))
    assert len(kept) >= 10
    await cluster.stop()
    for topic, partitions in ((WRITTEN, PARTITIONS), (PRESSED, 1), (TORN, 1), (TRIMMED, 1)):
        batches = check_equal(cluster, topic, range(partitions))
        assert min(batches.values()) > 0
        check_files(cluster, topic, range(partitions))
        if topic is TRIMMED:
            continue
        for index in range(partitions):
            files = {one.node_id: whole(one.data / f"{topic}-{index}") for one in cluster.brokers.values()}
            assert len(set(files.values())) == 1, {key: len(data) for key, data in files.items()}
    complaints = {one.node_id: one.complaints() for one in cluster.members.values()}
    assert not any(complaints.values()), complaints
    print(f"{count} records, the same bytes on {list(cluster.brokers)}")


def whole(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))


async def live(cluster: Mixed, controllers_die: tuple[str, ...] = ()) -> None:
    ours = next(one for one in cluster.brokers.values() if one.is_firn)
    theirs = next(one for one in cluster.brokers.values() if not one.is_firn)
    await create(cluster)
    with Writers(cluster, PLACES, options=OPTIONS) as writers:
        await has_acks(writers)
        await wander(cluster, writers)
        for way in controllers_die:
            await cluster.move(way)
            await wander(cluster, writers)
        for victim in (ours, theirs):
            await dies_and_returns(cluster, writers, victim)
            await leaves_and_returns(cluster, writers, victim)
        for leader in (ours, theirs):
            await gives_up_what_was_not_committed(cluster, leader)
        for leaver in (ours, theirs):
            await moves_away(cluster, leaver)
        await groups_go_on(cluster)
        await has_acks(writers)
        await judge(cluster, writers)


@pytest.mark.thorough
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "controller", ["firn", pytest.param("kafka", marks=pytest.mark.soak)], ids=lambda one: f"{one}-controls"
)
def test_firn_and_kafka_are_in_one_isr(tmp_path: Path, controller: str) -> None:
    firn = {FIRST_BROKER, FIRST_BROKER + 1} | ({FIRN} if controller == "firn" else set())

    async def scenario() -> None:
        async with mixed(tmp_path, controllers=1, brokers=3, firn=firn, settings=SETTINGS) as cluster:
            await live(cluster)

    asyncio.run(scenario())


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_firn_and_kafka_are_in_one_isr_while_controllers_die(tmp_path: Path) -> None:
    firn = {*CONTROLLERS, FIRST_BROKER, FIRST_BROKER + 1}

    async def scenario() -> None:
        async with mixed(tmp_path, controllers=3, brokers=3, firn=firn, settings=SETTINGS) as cluster:
            await live(cluster, ("kill", "pause", "term"))

    asyncio.run(scenario())


@pytest.mark.soak
@pytest.mark.timeout(400)
@pytest.mark.parametrize("controller", ["firn", "kafka"])
def test_brokers_of_kafka_are_replaced_one_by_one(tmp_path: Path, controller: str) -> None:
    """Under load, each under its own id and with an empty disk, until there are none."""
    firn = {FIRN} if controller == "firn" else set()

    async def scenario() -> None:
        made = mixed(tmp_path, controllers=1, brokers=3, firn=firn, settings=SETTINGS, by_kafka=True)
        async with made as cluster:
            await create(cluster)
            with Writers(cluster, PLACES, options=OPTIONS) as writers:
                for number, node_id in enumerate(tuple(cluster.brokers)):
                    await groups_go_on(cluster)
                    rest = [one for one in cluster.brokers.values() if one.node_id != node_id]
                    cluster.asked = rest[-1]
                    await cluster.replace(node_id)
                    for topic in (WRITTEN, PRESSED, TORN, TRIMMED, OFFSETS):
                        await in_sync(cluster, topic)
                    await write(cluster, TORN, 10, acks="all")
                    await write(cluster, TRIMMED, 10, acks="all")
                    await lead(cluster, WRITTEN, rotated(list(cluster.brokers), PARTITIONS, number))
                    await has_acks(writers)
                assert all(one.is_firn for one in cluster.brokers.values())
                await groups_go_on(cluster)
                await judge(cluster, writers)

    asyncio.run(scenario())
