"""Three real nodes on one prefix: the keeper's store fails alone, one has another prefix, `cluster.json` is a
stranger's. What the others lead is archived, nobody ends, and each surface says what is the matter.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen
from uuid import UUID

import pytest
from confluent_kafka import Producer

from service.cli.dev_nodes import agree_on_ports
from service.remote.format.manifest_codec import ClusterFile, encode_cluster
from service.remote.format.stamp import Stamp, Writer
from tests.conftest import BRISK
from tests.support.clients import Admin
from tests.support.faults import Fault, FaultProxy, fault_proxy
from tests.support.processes import FIRN, wait_until
from tests.support.quorums import Cluster, Member
from tests.support.replicas import wait_in_sync
from tests.support.stores import Store, folder_store, moto_server, new_bucket
from tests.support.tiers import LATEST_TIERED, offset

BROKERS = (11, 12, 13)
TOPIC = "kept"
PLACED = ((11, 12, 13), (12, 13, 11), (13, 11, 12))
"""Whoever of 12 and 13 is restarted first leads one of them after both have been."""


def make(tmp_path: Path, stores: dict[int, Store]) -> Cluster:
    made = Cluster.apart(tmp_path / "nodes", (1,), BROKERS, {**BRISK, **stores[13].node_settings})
    made.members[1].environ = stores[13].env
    ports, _ = agree_on_ports(0, len(BROKERS), 0)
    for broker_id, port in zip(BROKERS, ports, strict=True):
        store, member = stores[broker_id], made.members[broker_id]
        member.settings |= {**store.node_settings, "firn.http.listener": f"127.0.0.1:{port}"}
        member.environ = store.env
    return made


def create(cluster: Cluster) -> None:
    Admin(cluster.bootstrap).place(
        TOPIC, PLACED, min_insync_replicas="2", remote_storage_enable="true",
        segment_bytes=str(1 << 20), local_retention_bytes="1",
    )  # fmt: skip
    wait_in_sync(cluster, TOPIC)


def write(cluster: Cluster) -> None:
    """Some segments to each partition."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    for number in range(3 * 3500):
        producer.produce(TOPIC, b"%01000d" % number, partition=number % 3)
        producer.poll(0)
    assert producer.flush(120) == 0


def led_by(cluster: Cluster) -> dict[int, int]:
    states = Admin(cluster.bootstrap).client.list_topics(TOPIC, timeout=30).topics[TOPIC].partitions
    return {number: one.leader for number, one in states.items()}


def archived(cluster: Cluster) -> dict[int, int]:
    """The last offset in the archive, by partition."""
    return {
        number: offset(cluster.members[leader].bootstrap, TOPIC, number, LATEST_TIERED)
        for number, leader in led_by(cluster).items()
    }


def ready(member: Member) -> str:
    """What `/readyz` says."""
    url = f"http://{member.settings['firn.http.listener']}/readyz"
    try:
        with urlopen(url, timeout=20) as answer:
            return str(answer.read().decode())
    except HTTPError as e:
        return str(e.read().decode())


def firn(*command: str, cluster: Cluster) -> str:
    """What a command says of the cluster."""
    asked = [str(FIRN), *command, "--bootstrap-server", cluster.bootstrap]
    environ = {**os.environ, **cluster.members[12].environ}
    return subprocess.run(asked, env=environ, capture_output=True, text=True, timeout=60).stdout


def waits_s(member: Member) -> float:
    with urlopen(f"http://{member.settings['firn.http.listener']}/metrics", timeout=20) as answer:
        text = answer.read().decode()
    (line,) = [one for one in text.splitlines() if one.startswith("firn_tiering_waits_seconds ")]
    return float(line.split()[1])


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with moto_server(tmp_path) as endpoint:
        yield new_bucket(endpoint, "kept")


@pytest.fixture
def proxy(store: Store) -> Iterator[FaultProxy]:
    assert store.endpoint is not None
    with fault_proxy(store.endpoint) as made:
        yield made


@pytest.mark.thorough
def test_a_rolling_restart_while_the_keeper_gets_503_tiers(
    tmp_path: Path, store: Store, proxy: FaultProxy
) -> None:
    ways = {11: store.through(proxy.endpoint), 12: store, 13: store}
    with make(tmp_path, ways) as cluster:
        cluster.start()
        create(cluster)
        write(cluster)
        wait_until("an archive", lambda: min(archived(cluster).values()) >= 0, 60)
        proxy.mode = Fault.SLOW_DOWN
        before = archived(cluster)
        for broker_id in (12, 13):
            cluster.members[broker_id].stop()
            cluster.members[broker_id].start()
            wait_in_sync(cluster, TOPIC)
        write(cluster)
        wait_until(
            "one that waits to say so",
            lambda: "waits to be named by broker 11" in ready(cluster.members[12]),
            60,
        )
        assert waits_s(cluster.members[12]) >= 0
        for command in ("cluster", "describe"), ("tiers", TOPIC):
            assert "waits to be named by broker 11" in firn(*command, cluster=cluster), command

        def others_tier() -> bool:
            now, leaders = archived(cluster), led_by(cluster)
            others = [one for one, leader in leaders.items() if leader != 11]
            return bool(others) and all(now[one] > before[one] for one in others)

        wait_until("what the others lead to be archived", others_tier, 120)
        assert waits_s(cluster.members[12]) == 0
        assert "waits to be named by broker 11" in cluster.members[12].said() + cluster.members[13].said()
        proxy.mode = Fault.PASS
        wait_until(
            "everything to be archived", lambda: min(archived(cluster).values()) > max(before.values()), 120
        )


@pytest.mark.thorough
def test_a_wrong_prefix_and_a_foreign_cluster_json_stop_no_broker(
    tmp_path: Path,
) -> None:
    store, other = folder_store(tmp_path / "bucket"), folder_store(tmp_path / "other")
    with make(tmp_path, dict.fromkeys(BROKERS, store)) as cluster:
        cluster.start()
        create(cluster)
        write(cluster)
        wait_until("an archive", lambda: min(archived(cluster).values()) >= 0, 60)
        odd = cluster.members[11]
        odd.stop()
        odd.settings |= other.node_settings
        odd.start()
        wait_in_sync(cluster, TOPIC)
        begins = sorted(int(one.stem) for one in (odd.data / f"{TOPIC}-0").glob("*.log"))[0]
        before = archived(cluster)
        write(cluster)

        def others_tier() -> bool:
            now, leaders = archived(cluster), led_by(cluster)
            others = [one for one, leader in leaders.items() if leader != 11]
            return bool(others) and all(now[one] > before[one] for one in others)

        wait_until("what the others lead to be archived", others_tier, 120)
        wait_until("it to say so", lambda: "it is not the cluster's, or was emptied" in ready(odd), 90)
        assert not any(key.startswith("data") for key in other.objects())
        assert sorted(int(one.stem) for one in (odd.data / f"{TOPIC}-0").glob("*.log"))[0] == begins
        odd.stop()
        odd.settings |= store.node_settings
        odd.start()
        wait_in_sync(cluster, TOPIC)
        place = tmp_path / "bucket" / "cluster.json"
        owned = place.read_bytes()
        stranger = Stamp(1, Writer(1, UUID(int=5)))
        place.write_bytes(encode_cluster(ClusterFile("another-cluster", stranger)))
        cluster.members[13].stop()
        cluster.members[13].start()
        wait_until(
            "all to say whose it is",
            lambda: all("another-cluster" in ready(cluster.members[one]) for one in BROKERS),
            90,
        )
        for command in ("cluster", "describe"), ("tiers", TOPIC):
            assert "another-cluster" in firn(*command, cluster=cluster), command
        write(cluster)
        assert all(cluster.members[one].is_running for one in BROKERS)
        before = archived(cluster)
        place.write_bytes(owned)
        wait_until("it to go on", lambda: min(archived(cluster).values()) > max(before.values()), 150)
