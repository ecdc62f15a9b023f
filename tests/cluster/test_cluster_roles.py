"""Controllers and brokers as nodes of their own: they come, are used, go, and are replaced."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest

from service.cli.main import main
from service.metadata.batches import decode_batches
from service.metadata.records import PartitionChangeRecord, RegisterBrokerRecord
from service.records.batch import iter_headers
from tests.support.changes import Changes
from tests.support.clients import Admin, Confluent, by_partition, make_rows
from tests.support.kafka_tools import run_tool, tool
from tests.support.processes import wait_until
from tests.support.quorums import Cluster, Member

SEED = int(os.environ.get("SEED", "20261123"))
QUORUM = "org.apache.kafka.tools.MetadataQuorumCommand"
BROKERS = (4, 5)
CONTROLLERS = (1, 2, 3)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Three pure controllers, formatted, and two pure brokers, of which nobody has made anything."""
    # nobody is fenced for having been silent
    with Cluster.apart(tmp_path, CONTROLLERS, BROKERS, {"broker.session.timeout.ms": "100000"}) as made:
        yield made.start()


def spread(cluster: Cluster, name: str, partitions: int) -> list[int]:
    """A topic on both brokers; the leaders of its partitions."""
    Admin(cluster.bootstrap).create(name, partitions)
    wait_until(
        "the topic to be there", lambda: len(cluster.members[BROKERS[0]].partitions(name)) == partitions
    )
    leaders = cluster.members[BROKERS[0]].partitions(name)
    assert set(leaders) == set(BROKERS)
    return leaders


def read_by_group(bootstrap: str, topic: str, count: int) -> list[bytes]:
    """What a group's member that begins at the beginning reads, and commits."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "readers", "auto.offset.reset": "earliest"}
    )
    found: list[bytes] = []
    try:
        consumer.subscribe([topic])
        deadline = time.monotonic() + 60
        while len(found) < count and time.monotonic() < deadline:
            found += [one.value() for one in consumer.consume(500, 0.5) if one.error() is None]
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    return found


def check_rows(cluster: Cluster, topic: str, rows: list) -> None:  # type: ignore[type-arg]
    for partition, expected in by_partition(rows).items():
        found = Confluent().read(cluster.bootstrap, topic, partition, 0, len(expected))
        assert [one.value for one in found] == [one.value for one in expected]


def marked_epoch(member: Member) -> int:
    """The broker epoch that the marker of a clean shutdown names."""
    marker = json.loads((member.data / ".kafka_cleanshutdown").read_text())
    return int(marker["brokerEpoch"])


def registrations(cluster: Cluster, broker: int) -> list[tuple[int, bool]]:
    """The broker's epochs so far, and whether it was put out of ISR or ELR when it came: so is one that does
    not tell the epoch before as its previous one. By the log of a controller."""
    folder = cluster.members[CONTROLLERS[0]].data / "__cluster_metadata-0"
    log = b"".join(path.read_bytes() for path in sorted(folder.glob("*.log")))
    whole = 0
    for header in iter_headers(log):
        whole += header.size
    found: list[tuple[int, bool]] = []
    incarnation = None
    for batch in decode_batches(log[:whole]):
        is_out = False
        for offset, frame in enumerate(batch.frames, start=batch.base_offset):
            record = frame.record
            if isinstance(record, PartitionChangeRecord):
                is_out = True
            if isinstance(record, RegisterBrokerRecord) and record.broker_id == broker:
                if record.incarnation_id == incarnation:
                    # the same process once more, whose answer came late: its epoch stays
                    assert record.broker_epoch == found[-1][0]
                    continue
                incarnation = record.incarnation_id
                assert record.broker_epoch == offset
                found.append((offset, is_out))
    return found


@pytest.mark.timeout(300)
def test_brokers_format_themselves_serve_go_and_come_back(cluster: Cluster) -> None:
    print(f"SEED={SEED}")
    ids = {
        line.partition("=")[2]
        for one in cluster.members.values()
        for line in (one.data / "meta.properties").read_text().splitlines()
        if line.startswith("cluster.id=")
    }
    assert ids == {cluster.plan.cluster_id}
    rows = make_rows(100, 4, seed=SEED)
    leaders = spread(cluster, "t", 4)
    Confluent().produce(cluster.bootstrap, "t", rows)
    assert len(read_by_group(cluster.bootstrap, "t", len(rows))) == len(rows)

    # a broker that is told to go has been let go: nothing is led by it when it has ended
    one, other = (cluster.members[node_id] for node_id in BROKERS)
    one.leave()
    told = [node_id if node_id != one.node_id else -1 for node_id in leaders]
    wait_until("the leaderships to be gone", lambda: other.partitions("t") == told, 30)
    ((epoch, _),) = registrations(cluster, one.node_id)
    assert marked_epoch(one) == epoch
    one.start()
    wait_until("the leaderships to be back", lambda: other.partitions("t") == leaders, 60)
    assert [is_out for _, is_out in registrations(cluster, one.node_id)] == [False, False]
    check_rows(cluster, "t", rows)

    # one that is killed is known to be dead as soon as it is found that nobody listens there any more
    one.kill()
    began = time.monotonic()
    wait_until("the broker to be fenced", lambda: other.partitions("t") == told, 30)
    took = time.monotonic() - began
    print(f"fenced after {took:.1f} s")
    one.start()
    wait_until("the leaderships to be back", lambda: other.partitions("t") == leaders, 60)
    # and has lost nothing by that, as it proves when it registers
    assert [is_out for _, is_out in registrations(cluster, one.node_id)] == [False, False, False]
    check_rows(cluster, "t", rows)

    for node_id in (*BROKERS, *CONTROLLERS):
        cluster.members[node_id].leave()


@pytest.mark.java
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "joins", [pytest.param(False, marks=pytest.mark.thorough), True], ids=["by the tool", "by itself"]
)
def test_a_controller_whose_disk_was_lost_is_replaced(cluster: Cluster, joins: bool) -> None:
    print(f"SEED={SEED}")
    places = [(node_id, cluster.members[node_id].bootstrap) for node_id in BROKERS]
    broker = cluster.members[BROKERS[0]]
    with Changes(places, 20, SEED) as changes:
        changes.wait_for_next(time.monotonic())
        before = broker.quorum()
        lost = cluster.members[before.leader]
        old = before.voters[lost.node_id]
        lost.kill()
        shutil.rmtree(lost.data)
        changes.wait_for_next(time.monotonic())
        assert f"No `meta.properties` found in {lost.data}" in lost.refused()

        lost.settings["controller.quorum.auto.join.enable"] = str(joins).lower()
        options = ("--config", str(lost.properties), "--cluster-id", cluster.plan.cluster_id)
        assert main(["format", *options, "--no-initial-controllers"]) == 0
        lost.start()
        if not joins:
            replace(cluster, lost, old)
        wait_until("it to be a voter", lambda: broker.quorum().voters.get(lost.node_id, old) != old, 60)
        assert set(broker.quorum().voters) == set(CONTROLLERS)

        # it counts: with it and without another there is a majority
        other = next(node_id for node_id in CONTROLLERS if node_id != lost.node_id)
        cluster.members[other].kill()
        changes.wait_for_next(time.monotonic())
        changes.stop()
        assert changes.refusals == []
        known, gone = changes.expected()
        wait_until("all of it", lambda: known <= broker.topics() and not gone & broker.topics())


def replace(cluster: Cluster, lost: Member, old: str) -> None:
    """By Kafka's tool, as an operator does."""
    there = ("--bootstrap-server", cluster.bootstrap)
    add = (*there, "--command-config", lost.properties, "add-controller")
    # this id votes already, and with another directory
    refused = run_tool(QUORUM, *add)
    assert b"DuplicateVoterException" in refused.stdout + refused.stderr
    who = ("--controller-id", str(lost.node_id), "--controller-directory-id", old)
    tool(QUORUM, *there, "remove-controller", *who)
    broker = cluster.members[BROKERS[0]]
    wait_until("it to be no voter", lambda: lost.node_id not in broker.quorum().voters)
    wait_until("it to be added", lambda: run_tool(QUORUM, *add).returncode == 0, 60)
