"""`firn cluster` against three real nodes: its description of them, and more replicas for internal topics."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from service.cli.main import main
from service.serving.internal_topics import OFFSETS
from tests.conftest import BRISK
from tests.support.clients import Admin
from tests.support.processes import wait_until
from tests.support.quorums import Cluster
from tests.support.replicas import states, wait_in_sync

PARTITIONS = 12
NODES = (1, 2, 3)
SETTINGS = {**BRISK, "offsets.topic.num.partitions": str(PARTITIONS), "offsets.topic.replication.factor": "1"}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path / "nodes", settings=SETTINGS) as made:
        for node_id, member in made.members.items():
            member.settings["broker.rack"] = f"rack-{node_id}"
        yield made.start()


class Command:
    """`firn cluster`, as it was asked last."""

    def __init__(self, capsys: pytest.CaptureFixture[str], cluster: Cluster) -> None:
        self._capsys, self._cluster = capsys, cluster
        self.code, self.out, self.err = -1, "", ""

    def __call__(self, *words: str, way: tuple[str, str] | None = None) -> str:
        self._capsys.readouterr()
        way = way or ("--bootstrap-server", self._cluster.bootstrap)
        self.code = main(["cluster", *words, *way])
        self.out, self.err = self._capsys.readouterr()
        return self.out

    def told(self, *words: str, way: tuple[str, str] | None = None) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self("describe", "--format", "json", *words, way=way))
        return found


def sessions(capsys: pytest.CaptureFixture[str], *way: str) -> tuple[int, set[int], str]:
    """Exit code of `firn user sessions`, the nodes that have some, and what it complains of."""
    capsys.readouterr()
    where = way if len(way) == 2 else ("--bootstrap-server", *way)
    code = main(["user", "sessions", "--json", *where])
    out, err = capsys.readouterr()
    return code, {one["node"] for one in json.loads(out)}, err


def is_taken(bootstrap: str, group: str) -> bool:
    """Whether an offset is committed: the topic of all offsets is made for it, and may still be loading."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        consumer.commit(offsets=[confluent_kafka.TopicPartition("events", 0, 7)], asynchronous=False)
    except confluent_kafka.KafkaException:
        return False
    finally:
        consumer.close()
    return True


def test_a_cluster_is_described_and_what_is_wrong_with_it_said(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    command = Command(capsys, cluster)
    Admin(cluster.bootstrap).replicate("events", 6, 3, min_insync_replicas="3")
    wait_in_sync(cluster, "events")
    told = command.told()
    assert (command.code, told["wrong"]) == (0, [])
    assert told["cluster_id"] == cluster.plan.cluster_id
    assert [one["node_id"] for one in told["nodes"]] == list(NODES)
    for one in told["nodes"]:
        assert one["roles"] == ["broker", "controller"]
        assert one["rack"] == f"rack-{one['node_id']}"
        assert one["listeners"][0] == cluster.members[one["node_id"]].bootstrap
        assert one["listeners"][1].startswith("CONTROLLER://127.0.0.1:")
        assert one["is_fenced"] is False
    assert told["quorum"]["leader"] == cluster.leader()
    assert [one["node_id"] for one in told["quorum"]["voters"]] == list(NODES)
    assert all(one["lag"] is not None for one in told["quorum"]["voters"])
    assert told["partitions"]["partitions"] == 6
    shares = told["partitions"]["shares"]
    assert [(one["replicas"], one["preferred"], one["out_of_sync"]) for one in shares] == [(6, 2, 0)] * 3
    assert sum(one["leads"] for one in shares) == 6
    assert told["reassignments"] == []
    assert "wrong: nothing" in command("describe")
    assert sessions(capsys, cluster.bootstrap) == (0, set(NODES), "")
    way = ("--bootstrap-controller", cluster.bootstrap_controllers)
    assert sessions(capsys, *way) == (0, set(NODES), "")

    victim = next(node for node in NODES if node != cluster.leader())
    cluster.members[victim].kill()
    wait_until("it is fenced", lambda: command.told()["nodes"][victim - 1]["is_fenced"], 30, 0.5)
    wait_until("all is led", lambda: command.told()["partitions"]["offline"] == 0, 30, 0.5)
    told = command.told("--most", "4")
    assert command.code == 1
    assert f"broker {victim} is down: the controller has fenced it" in told["wrong"]
    counts = told["partitions"]
    assert (counts["under_min_isr"], counts["under_replicated"], counts["ill_in_all"]) == (6, 6, 6)
    assert [one["min_isr"] for one in counts["ill"]] == [3] * 4
    assert {one["what"] for one in counts["ill"]} == {"under_min_isr"}
    assert victim not in counts["ill"][0]["isr"]
    code, nodes, problems = sessions(capsys, cluster.bootstrap)
    assert (code, nodes) == (1, set(NODES) - {victim})
    assert problems.startswith(f"firn user: node {victim}: cannot connect to 127.0.0.1:")
    text = command("describe")
    assert f"wrong: broker {victim} is down: the controller has fenced it" in text
    assert "6 under min ISR, 6 under-replicated" in text

    alive = [at for node, at in enumerate(cluster.bootstrap_controllers.split(","), 1) if node != victim]
    way = ("--bootstrap-controller", ",".join(alive))
    told = command.told(way=way)
    assert told["quorum"]["leader"] == cluster.leader()
    assert (told["partitions"], told["reassignments"]) == (None, [])
    assert {one["node_id"] for one in told["nodes"]} >= set(NODES) - {victim}


def test_internal_topics_are_widened_once(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    command = Command(capsys, cluster)
    Admin(cluster.bootstrap).replicate("events", 1, 3)
    wait_until("it is committed", partial(is_taken, cluster.bootstrap, "billing"), 60)
    before = states(cluster.members[1], OFFSETS)
    assert [len(one.replicas) for one in before.values()] == [1] * PARTITIONS

    lines = command("repair-internal", "--dry-run").splitlines()
    assert (command.code, len(lines)) == (0, PARTITIONS)
    assert states(cluster.members[1], OFFSETS) == before

    lines = command("repair-internal", "--at-once", "5").splitlines()
    assert (command.code, command.err) == (0, "")
    assert lines[-1] == f"{PARTITIONS} of {PARTITIONS} done"
    after = wait_in_sync(cluster, OFFSETS)
    for number, one in after.items():
        assert set(one.replicas) == set(NODES)
        assert one.replicas[0] == before[number].replicas[0]
        assert one.leader == before[number].leader
    told = command.told()
    assert (told["reassignments"], told["partitions"]["under_replicated"]) == ([], 0)

    assert "nothing to do" in command("repair-internal")
    assert command.code == 0

    # What was committed outlives whoever had it alone.
    victim = before[0].leader
    cluster.members[victim].kill()
    left = ",".join(cluster.members[node].bootstrap for node in NODES if node != victim)
    wait_until("it is still known", partial(is_known, left, "billing"), 60)


def test_groups_are_listed_beside_a_node_that_hangs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    groups = [f"group-{number}" for number in range(12)]
    # The node is not fenced while it is looked at.
    settings = {**SETTINGS, "broker.session.timeout.ms": "60000"}
    with Cluster(tmp_path / "nodes", settings=settings) as cluster:
        cluster.start()
        Admin(cluster.bootstrap).create("events", 1)
        for group in groups:
            wait_until("it is committed", partial(is_taken, cluster.bootstrap, group), 60)
        assert main(["group", "list", "--json", "--bootstrap-server", cluster.bootstrap]) == 0
        before = {one["group_id"]: one["node"] for one in json.loads(capsys.readouterr().out)}
        assert (set(before), set(before.values())) == (set(groups), set(NODES))
        hung = cluster.leader() % 3 + 1
        process = cluster.members[hung].process
        assert process is not None
        first, *others = (cluster.members[node].bootstrap for node in (hung, *sorted({*NODES} - {hung})))
        process.send_signal(signal.SIGSTOP)
        try:
            code = main(["group", "list", "--json", "--bootstrap-server", ",".join((first, *others))])
        finally:
            process.send_signal(signal.SIGCONT)
        told = capsys.readouterr()
        assert code == 1
        waits = "firn group: still waiting for "
        errors = [line for line in told.err.splitlines() if not line.startswith(waits)]
        assert errors == [f"firn group: node {hung}: no answer within 5 s"]
        found = {one["group_id"]: one["node"] for one in json.loads(told.out)}
        assert found == {group: node for group, node in before.items() if node != hung}


def is_known(bootstrap: str, group: str) -> bool:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        (found,) = consumer.committed([confluent_kafka.TopicPartition("events", 0)], timeout=10)
    except confluent_kafka.KafkaException:
        return False
    finally:
        consumer.close()
    offset: int = found.offset
    return offset == 7
