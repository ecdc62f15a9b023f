"""Apache Kafka's own tools for clusters, unchanged, and `firn dump`, on what they and it find there."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from service.cli.main import main
from tests.support.clients import Admin
from tests.support.kafka_tools import run_tool, tool
from tests.support.processes import wait_until
from tests.support.quorums import Cluster

QUORUM = "org.apache.kafka.tools.MetadataQuorumCommand"
CLUSTER = "org.apache.kafka.tools.ClusterTool"

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster.apart(tmp_path_factory.mktemp("cluster"), [1, 2, 3], [4, 5]) as made:
        yield made.start()


def ways(cluster: Cluster) -> list[tuple[str, str]]:
    return [
        ("--bootstrap-server", cluster.bootstrap),
        ("--bootstrap-controller", cluster.bootstrap_controllers),
    ]


def test_kafka_metadata_quorum_describes_leader_and_offsets(cluster: Cluster) -> None:
    for way in ways(cluster):
        lines = tool(QUORUM, *way, "describe", "--status").splitlines()
        status = dict(line.split(":", 1) for line in lines if ":" in line)
        quorum = cluster.members[4].quorum()
        assert status["ClusterId"].strip() == cluster.plan.cluster_id
        assert int(status["LeaderId"]) == quorum.leader
        assert int(status["LeaderEpoch"]) == quorum.epoch
        assert {int(one) for one in re.findall(r'"id": (\d+)', status["CurrentVoters"])} == {1, 2, 3}
        assert {int(one) for one in re.findall(r'"id": (\d+)', status["CurrentObservers"])} == {4, 5}
        assert set(re.findall(r'"directoryId": "([^"]+)"', status["CurrentVoters"])) == set(
            quorum.voters.values()
        )
        text = tool(QUORUM, *way, "describe", "--replication")
        rows = [line.split() for line in text.splitlines()[1:] if line.strip()]
        assert sorted((int(row[0]), row[-1]) for row in rows) == [
            *((node_id, "Leader" if node_id == quorum.leader else "Follower") for node_id in (1, 2, 3)),
            (4, "Observer"),
            (5, "Observer"),
        ]


def test_kafka_features_and_the_endpoints_are_told_by_both_listeners(cluster: Cluster) -> None:
    for way in ways(cluster):
        text = tool("features", *way, "describe")
        for feature, level in (("metadata.version", "4.3-IV0"), ("kraft.version", "1")):
            assert re.search(rf"Feature: {feature}\s.*FinalizedVersionLevel: {level}\s", text), text
        assert tool(CLUSTER, "cluster-id", *way).strip() == f"Cluster ID: {cluster.plan.cluster_id}"
    brokers, controllers = ways(cluster)
    rows = tool(CLUSTER, "list-endpoints", *brokers).splitlines()[1:]
    assert {int(row.split()[0]) for row in rows if row.strip()} == {4, 5}
    rows = tool(CLUSTER, "list-endpoints", *controllers).splitlines()[1:]
    assert {int(row.split()[0]) for row in rows if row.strip()} == {1, 2, 3}
    refused = run_tool("features", *brokers, "downgrade", "--feature", "kraft.version=0")
    assert refused.returncode != 0


def test_kafka_cluster_takes_a_broker_that_has_gone_off_the_list(cluster: Cluster) -> None:
    brokers, controllers = ways(cluster)
    for node_id, way in ((6, brokers), (7, controllers)):
        member = cluster.broker(node_id).start()
        member.leave()
        listed = tool(CLUSTER, "list-endpoints", *brokers, "--include-fenced-brokers")
        assert re.search(rf"^{node_id}\s", listed, re.MULTILINE), listed
        tool(CLUSTER, "unregister", *way, "--id", str(node_id))
        wait_until(
            "it to be off the list",
            lambda node_id=node_id: (  # type: ignore[misc]
                not re.search(
                    rf"^{node_id}\s",
                    tool(CLUSTER, "list-endpoints", *brokers, "--include-fenced-brokers"),
                    re.MULTILINE,
                )
            ),
        )
        del cluster.members[node_id]
    refused = run_tool(CLUSTER, "unregister", *brokers, "--id", "99")
    assert b"is not currently registered" in refused.stdout + refused.stderr


def test_the_metadata_log_and_its_snapshot_are_read_by_both(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    Admin(cluster.bootstrap).create("a-topic", 3)
    folder = cluster.members[1].data / "__cluster_metadata-0"
    first = folder / "00000000000000000000-0000000000.checkpoint"
    log = folder / "00000000000000000000.log"
    wait_until("the topic to be in its log", lambda: b"a-topic" in log.read_bytes())
    for path, words in (
        (first, ("KRaftVersion", "KRaftVoters")),
        (log, ("LeaderChange", "REGISTER_BROKER_RECORD", "a-topic", "PARTITION_RECORD")),
    ):
        text = tool("dump-log", "--cluster-metadata-decoder", "--files", path)
        for word in words:
            assert word in text
        assert "isvalid: false" not in text
    assert main(["dump", str(log)]) == 0
    text = capsys.readouterr().out
    for word in ("RegisterBrokerRecord", "a-topic", "PartitionRecord"):
        assert word in text
    assert main(["dump", str(first)]) == 0
    text = capsys.readouterr().out
    for node_id in (1, 2, 3):
        assert str(node_id) in text
    print(text)
