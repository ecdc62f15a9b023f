"""Replicas of tiered partitions on real nodes: leaders change, brokers die and lose their disks, the archive
goes on, and nothing that was acknowledged is missing in it. Storms of that are in test_replica_stores.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from service.cli.dev_nodes import agree_on_ports
from tests.conftest import BRISK
from tests.support.clients import Admin
from tests.support.fsck import fsck
from tests.support.processes import wait_until
from tests.support.quorums import Cluster, Member
from tests.support.replicas import check_equal, states, wait_in_sync
from tests.support.stores import Store, moto_server, new_bucket
from tests.support.storms import Writers, check_files, read_partition
from tests.support.tiers import EARLIEST_LOCAL, LATEST_TIERED, offset

BROKERS = (11, 12, 13)
TOPIC = "kept"
PARTITIONS = range(3)
SEGMENT_BYTES = 1 << 20


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with moto_server(tmp_path) as endpoint:
        yield new_bucket(endpoint, "replicas")


@pytest.fixture
def cluster(tmp_path: Path, store: Store) -> Iterator[Cluster]:
    """Three brokers that hold nothing but their logs, and one controller."""
    made = Cluster.apart(tmp_path / "nodes", (1,), BROKERS, {**BRISK, **store.node_settings})
    ports, _ = agree_on_ports(0, len(BROKERS), 0)
    for broker_id, port in zip(BROKERS, ports, strict=True):
        made.members[broker_id].settings |= {
            "firn.http.listener": f"127.0.0.1:{port}",
            "broker.rack": f"rack-{broker_id}",
            "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
        }
    for member in made.members.values():
        member.environ = store.env
    with made:
        made.start()
        Admin(made.bootstrap).replicate(
            TOPIC,
            len(PARTITIONS),
            3,
            min_insync_replicas="2",
            remote_storage_enable="true",
            segment_bytes=str(SEGMENT_BYTES),
            local_retention_bytes="1",
        )
        wait_in_sync(made, TOPIC)
        yield made


def wipe(member: Member) -> None:
    """All that it has is gone, and it comes back."""
    if member.is_running:
        member.kill()
    shutil.rmtree(member.data)
    member.start()


def leader(cluster: Cluster, index: int = 0) -> Member:
    running = next(cluster.members[one] for one in BROKERS if cluster.members[one].is_running)
    return cluster.members[states(running, TOPIC)[index].leader]


def in_the_archive(cluster: Cluster, index: int) -> int:
    """The last offset there."""
    return offset(leader(cluster, index).bootstrap, TOPIC, index, LATEST_TIERED)


def wait_for_archive(cluster: Cluster, beyond: int) -> None:
    """Until each partition has more in the archive than `beyond`, and has let go of it."""

    def is_there() -> bool:
        return all(
            in_the_archive(cluster, one) > beyond
            and offset(leader(cluster, one).bootstrap, TOPIC, one, EARLIEST_LOCAL) > beyond
            for one in PARTITIONS
        )

    wait_until(f"offset {beyond} to be in the archive alone", is_there, 120)


def told(member: Member, metric: str) -> float:
    """Of a broker's metrics."""
    with urlopen(f"http://{member.settings['firn.http.listener']}/metrics", timeout=20) as answer:
        text = answer.read().decode()
    (line,) = [one for one in text.splitlines() if one.startswith(metric + " ")]
    return float(line.split()[1])


def let_go(member: Member) -> int:
    """Where the last segment of the first partition began whose local copy has gone."""
    found = re.findall(rf"/{TOPIC}-0/.*?(\d+)\.log: local retention by size", member.said())
    return int(found[-1]) if found else -1


def downloaded(member: Member) -> float:
    """Bytes of records that a broker has got out of the bucket."""
    return told(member, "firn_cache_downloaded_bytes_total")


def fetched(member: Member, tier: str) -> float:
    """Bytes of records that consumers have got from a broker."""
    return told(member, f'firn_fetched_bytes_total{{tier="{tier}"}}')


def check(cluster: Cluster, store: Store, writers: Writers) -> None:
    """The cluster is stopped by it."""
    wait_in_sync(cluster, TOPIC, 120)
    writers.stop()
    print(f"{writers.check_read(cluster)} records acknowledged and read", flush=True)
    wait_in_sync(cluster, TOPIC, 120)
    cluster.stop()
    check_equal(cluster, TOPIC, PARTITIONS)
    check_files(cluster, TOPIC, PARTITIONS)
    assert len(fsck(store)["partitions"]) == len(PARTITIONS)


@pytest.mark.thorough
def test_a_wiped_broker_needs_nothing_of_the_archive_and_can_lead(cluster: Cluster, store: Store) -> None:
    with Writers(cluster, [(TOPIC, index) for index in PARTITIONS], 0.002) as writers:
        wait_for_archive(cluster, 300)
        victim = leader(cluster)
        wipe(victim)
        states_now = wait_in_sync(cluster, TOPIC)
        assert downloaded(victim) == 0
        for index in PARTITIONS:
            # What it has begins where its leader's does, or a little behind.
            assert (
                offset(cluster.members[states_now[index].leader].bootstrap, TOPIC, index, EARLIEST_LOCAL)
                > 300
            )
            (first, *_) = sorted(one.stem for one in (victim.data / f"{TOPIC}-{index}").glob("*.log"))
            assert int(first) > 300
        others = [cluster.members[one] for one in BROKERS if cluster.members[one] is not victim]
        others[0].leave()  # in sync is who is left, and leads
        writers.wait_for_acks(60, TOPIC)
        others[1].leave()
        wait_until(
            "the wiped one to lead",
            lambda: all(one.leader == victim.node_id for one in states(victim, TOPIC).values()),
            60,
        )
        cluster.start([one.node_id for one in others])
        wait_in_sync(cluster, TOPIC)
        for writer in writers.all:
            acked = {one.offset: one.number for one in writer.acks}
            found = read_partition(cluster.bootstrap, writer.place)
            assert {at: found.get(at) for at in acked} == acked
        assert downloaded(victim) > 0, "the archive was not read"
        before = max(in_the_archive(cluster, one) for one in PARTITIONS)
        wait_for_archive(cluster, before + 1000)
        check(cluster, store, writers)


def write(cluster: Cluster, first: int, count: int) -> None:
    """Records `first` and so on to the first partition."""
    refused: list[object] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "batch.size": 20_000})
    for number in range(first, first + count):
        producer.produce(
            TOPIC,
            b"%01000d" % number,
            partition=0,
            on_delivery=lambda error, _: refused.append(error) if error is not None else None,
        )
        producer.poll(0)
    assert producer.flush(60) == 0
    assert refused == []


def test_a_consumer_reads_both_tiers_from_the_replica_of_its_rack_until_that_dies(cluster: Cluster) -> None:
    write(cluster, 0, 5000)
    wait_until("an archive", lambda: in_the_archive(cluster, 0) > 2000, 60)
    leads = leader(cluster)
    near = next(cluster.members[one] for one in BROKERS if one != leads.node_id)
    wait_until("its oldest records to be in the archive alone", lambda: let_go(near) > 1000, 60)
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "near",
            "client.rack": near.settings["broker.rack"],
            "log_level": 2,  # that its broker dies is no news
        }
    )
    found: list[int] = []

    def all_read(count: int) -> bool:
        for one in consumer.consume(1000, 0.2):
            error = one.error()
            assert error is None or error.retriable(), error
            if error is None:
                found.append(int(one.value() or b"-1"))
        return len(found) >= count

    try:
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        wait_until("5000 records", lambda: all_read(5000), 60)
        assert fetched(leads, "local") == fetched(leads, "bucket") == 0
        assert fetched(near, "bucket") > 2_000_000
        assert fetched(near, "local") + fetched(near, "bucket") >= 5_000_000
        near.kill()
        write(cluster, 5000, 1000)
        wait_until("what comes later", lambda: all_read(6000), 60)
    finally:
        consumer.close()
    assert found == list(range(6000))
