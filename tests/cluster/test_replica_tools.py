"""Apache Kafka's own tools, unchanged, on partitions of three replicas: who lacks some, who leads, what lies
where."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import BRISK
from tests.support.clients import CLIENTS, Admin, make_rows
from tests.support.kafka_tools import run_tool, tool
from tests.support.processes import wait_until
from tests.support.quorums import Cluster
from tests.support.replicas import states, wait_in_sync

ELECTION = "org.apache.kafka.tools.LeaderElectionCommand"
BROKERS = [11, 12, 13]
PARTITIONS = 3
ALL = list(range(PARTITIONS))

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster.apart(tmp_path_factory.mktemp("cluster"), [1], BROKERS, BRISK) as made:
        made.start()
        Admin(made.bootstrap).replicate("t", PARTITIONS, 3, min_insync_replicas="2")
        wait_in_sync(made, "t")
        yield made


def partitions(cluster: Cluster, what: str) -> list[int]:
    """That `kafka-topics --describe` lists of the topic."""
    at = ("--bootstrap-server", cluster.bootstrap, "--describe", "--topic", "t", what)
    return sorted(int(one) for one in re.findall(r"Partition: (\d+)\t", tool("topics", *at)))


WAYS = (
    "--under-replicated-partitions",
    "--at-min-isr-partitions",
    "--under-min-isr-partitions",
    "--unavailable-partitions",
)
NOTHING: dict[str, list[int]] = {way: [] for way in WAYS}


def told(cluster: Cluster) -> dict[str, list[int]]:
    return {way: partitions(cluster, way) for way in WAYS}


def in_sync(cluster: Cluster) -> list[int]:
    """How many replicas of each partition are in sync, as a broker that runs says."""
    alive = next(one for one in cluster.members.values() if one.is_running and not one.is_controller)
    found = states(alive, "t")
    return [len(found[index].isr) for index in sorted(found)]


@pytest.mark.thorough
def test_kafka_topics_names_what_is_not_as_it_should_be(cluster: Cluster) -> None:
    assert told(cluster) == NOTHING
    cluster.members[13].kill()
    wait_until("an ISR of two", lambda: in_sync(cluster) == [2] * PARTITIONS, 30)
    assert told(cluster) == dict(zip(WAYS, (ALL, ALL, [], []), strict=True))
    cluster.members[12].kill()
    wait_until("an ISR of one", lambda: in_sync(cluster) == [1] * PARTITIONS, 30)
    assert told(cluster) == dict(zip(WAYS, (ALL, [], ALL, []), strict=True))
    for node_id in (12, 13):
        cluster.members[node_id].start()
    wait_in_sync(cluster, "t")
    assert told(cluster) == NOTHING


def test_kafka_leader_election_brings_leaders_back(cluster: Cluster) -> None:
    at = ("--bootstrap-server", cluster.bootstrap, "--election-type")
    preferred = {index: state.replicas[0] for index, state in states(cluster.members[11], "t").items()}
    victim = cluster.members[preferred[0]]
    moved = [index for index, leader in preferred.items() if leader == victim.node_id]
    victim.leave()
    victim.start()
    wait_in_sync(cluster, "t")
    out = tool(ELECTION, *at, "preferred", "--all-topic-partitions")
    done = re.search(r"Successfully completed leader election \(PREFERRED\) for partitions (.*)", out)
    assert done, out
    assert sorted(int(one) for one in re.findall(r"\bt-(\d+)", done[1])) == moved
    found = states(victim, "t")
    assert {index: state.leader for index, state in found.items()} == preferred
    for kind in ("preferred", "unclean"):
        again = run_tool(ELECTION, *at, kind, "--topic", "t", "--partition", "0")
        out = (again.stdout + again.stderr).decode()
        assert again.returncode == 0, out
        assert "Valid replica already elected for partitions t-0" in out
    wrong = run_tool(ELECTION, *at, "preferred", "--topic", "t", "--partition", "9")
    assert wrong.returncode != 0
    out = (wrong.stdout + wrong.stderr).decode()
    assert re.search(r"t-9.*UnknownTopicOrPartition", out, re.DOTALL), out


def described(cluster: Cluster) -> dict[int, list[dict[str, Any]]]:
    """By broker, the replicas that `kafka-log-dirs` tells."""
    out = tool("log-dirs", "--bootstrap-server", cluster.bootstrap, "--describe", "--topic-list", "t")
    answer = json.loads(next(line for line in out.splitlines() if line.startswith("{")))
    return {
        one["broker"]: [each for found in one["logDirs"] for each in found["partitions"]]
        for one in answer["brokers"]
    }


def test_kafka_log_dirs_tells_size_and_lag_of_every_replica(cluster: Cluster) -> None:
    CLIENTS[0].produce(cluster.bootstrap, "t", make_rows(300, PARTITIONS), acks="all")
    names = [f"t-{index}" for index in ALL]

    def sizes() -> list[dict[str, int]]:
        return [{one["partition"]: one["size"] for one in held} for held in described(cluster).values()]

    wait_until("equal sizes", lambda: all(one == sizes()[0] for one in sizes()))
    found = described(cluster)
    assert sorted(found) == BROKERS
    for broker, held in found.items():
        assert sorted(one["partition"] for one in held) == names
        assert {(one["offsetLag"], one["isFuture"]) for one in held} == {(0, False)}
        for one in held:
            files = (cluster.members[broker].data / one["partition"]).glob("*.log")
            assert one["size"] == sum(path.stat().st_size for path in files) > 1000
