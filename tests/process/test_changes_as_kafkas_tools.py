"""`firn` commands that change things beside Kafka's tools, at nodes of either: the same answers and files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from service.client.blocking_client import BlockingClient
from tests.node.conftest import NodeThread, Talk
from tests.support.firn_commands import Firn
from tests.support.kafka_node import KafkaNode
from tests.support.kafka_tools import run_tool
from tests.support.processes import wait_until
from tests.support.requirements import need_kafka_tools

pytestmark = [pytest.mark.java, pytest.mark.thorough]
MIDNIGHT = 1_767_225_600_000  # 2026-01-01T00:00:00Z
LONG = "a-topic-of-more-than-24-characters"
REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
ELECT = "org.apache.kafka.tools.LeaderElectionCommand"
QUORUM = "org.apache.kafka.tools.MetadataQuorumCommand"


@pytest.fixture(scope="module", params=["firn", "kafka"])
def bootstrap(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker with topics `t` and `LONG`: ten records from midnight on in the first partition of each."""
    need_kafka_tools()
    folder = tmp_path_factory.mktemp(request.param) / "node"
    node = (
        NodeThread(folder, None, None, offsets_topic_num_partitions="1").start()
        if request.param == "firn"
        else KafkaNode(folder, {"offsets.topic.num.partitions": "1", "log.retention.ms": "-1"}, heap="512m")
    )
    address = f"127.0.0.1:{node.port}" if isinstance(node, NodeThread) else node.bootstrap
    host, _, port = address.rpartition(":")
    try:
        with BlockingClient(host, int(port), "test", timeout_s=30) as client:
            talk = Talk(client)
            for topic in ("t", LONG):
                talk.create(topic, 2)
                id_ = talk.topic_id(topic)
                wait_until("a leader", lambda id_=id_: _taken(talk, id_))  # type: ignore[misc]
        yield address
    finally:
        node.stop()


def _taken(talk: Talk, topic_id: Any) -> bool:
    return bool(talk.produce(topic_id, [b"x"] * 10, MIDNIGHT).error_code == ErrorCode.none)


@pytest.fixture
def firn(bootstrap: str, capsys: pytest.CaptureFixture[str]) -> Firn:
    return Firn(bootstrap, capsys)


def kafkas(bootstrap: str, tool: str, *words: str) -> str:
    done = run_tool(tool, "--bootstrap-server", bootstrap, *words)
    assert done.returncode == 0, (done.stdout, done.stderr)
    return done.stdout.decode()


def test_exported_offsets_are_the_same_bytes(firn: Firn, bootstrap: str, tmp_path: Path) -> None:
    for group in ("g", "group two"):
        firn(
            "group", "reset-offsets", group, "--topic", "t", "--topic", LONG, "--to-offset", "7", "--execute"
        )
    path = tmp_path / "offsets.csv"
    for mode in (
        ("--to-earliest",), ("--to-latest",), ("--to-current",), ("--to-offset", "4"), ("--shift-by", "-3"),
        ("--to-datetime", "2026-01-01T00:00:00.003"), ("--by-duration", "PT0S"), ("--from-file", str(path)),
    ):  # fmt: skip
        scope = () if mode[0] == "--from-file" else ("--all-topics",)
        for groups in (("g",), ("group two", "g")):
            named = [word for group in groups for word in ("--group", group)]
            ours = firn("group", "reset-offsets", *groups, *scope, *mode, "--export")
            theirs = kafkas(
                bootstrap,
                "consumer-groups",
                *named,
                "--reset-offsets",
                *scope,
                *mode,
                "--export",
                "--dry-run",
            )
            rows = [line for line in theirs.splitlines() if line and not line.startswith("Warn: ")]
            assert sorted(rows) == sorted(ours.splitlines()), (mode, groups)
            if mode[0] == "--to-current":
                path.write_text(ours)


def test_files_of_offsets_and_deletions_are_read_by_both(firn: Firn, bootstrap: str, tmp_path: Path) -> None:
    firn("group", "reset-offsets", "h", "--topic", "t", "--to-offset", "2", "--execute")
    told = kafkas(bootstrap, "consumer-groups", "--describe", "--group", "h", "--offsets")
    rows = {tuple(line.split()[1:4]) for line in told.splitlines() if line.startswith("h ")}
    assert rows == {("t", "0", "2"), ("t", "1", "0")}
    firn("group", "delete-offsets", "h", "--topic", "t:1", "--execute")
    kafkas(bootstrap, "consumer-groups", "--delete", "--group", "h")
    assert "there is no group h" in firn.refused("group", "delete", "h", "--execute")
    path = tmp_path / "records.json"
    path.write_text(json.dumps({"partitions": [{"topic": "t", "partition": 0, "offset": 1}], "version": 1}))
    firn("topic", "delete-records", "--offset-json-file", str(path), "--execute")
    assert "low_watermark: 1" in kafkas(bootstrap, "delete-records", "--offset-json-file", str(path))


def test_offsets_and_settings_are_told_alike(firn: Firn, bootstrap: str) -> None:
    for time in ("earliest", "latest", "max-timestamp", "earliest-local", "1767225600003"):
        ours = [
            f"{row['topic']}:{row['partition']}:{row['offsets'][time]}"
            for row in json.loads(firn("offsets", "t", "--time", time, "--json"))
            if row["offsets"][time] is not None
        ]
        assert kafkas(bootstrap, "get-offsets", "--topic", "t", "--time", time).splitlines() == ours
    firn("topic", "alter", "t", "--config", "retention.ms=77000")
    firn("config", "set", "--broker-defaults", "log.cleaner.threads=2")
    firn("config", "set", "--group", "g", "consumer.session.timeout.ms=50000")
    for kind, name, setting in (
        ("topics", ("--entity-name", "t"), "retention.ms=77000"),
        ("brokers", ("--entity-default",), "log.cleaner.threads=2"),
        ("groups", ("--entity-name", "g"), "consumer.session.timeout.ms=50000"),
    ):
        assert setting in kafkas(bootstrap, "configs", "--describe", "--entity-type", kind, *name)
    firn("config", "unset", "--topic", "t", "retention.ms")
    assert "retention.ms" not in firn("topic", "describe", "t")
    firn("topic", "add-partitions", LONG, "--partitions", "3")
    assert "PartitionCount: 3" in kafkas(bootstrap, "topics", "--describe", "--topic", LONG)


def test_plans_of_reassignments_are_read_by_both(firn: Firn, bootstrap: str, tmp_path: Path) -> None:
    topics, plan = tmp_path / "topics.json", tmp_path / "plan.json"
    topics.write_text('{"topics": [{"topic": "t"}], "version": 1}')
    theirs = kafkas(
        bootstrap, REASSIGN, "--generate", "--topics-to-move-json-file", str(topics), "--broker-list", "1"
    )
    plan.write_text(theirs.strip().splitlines()[-1])
    ours = firn("cluster", "reassign", "generate", "--topics-to-move-json-file", str(topics), "--to", "1")
    assert json.loads(ours) == json.loads(plan.read_text())
    assert "done" in firn("cluster", "reassign", "verify", str(plan))
    plan.write_text(ours)
    told = kafkas(bootstrap, REASSIGN, "--verify", "--reassignment-json-file", str(plan))
    assert "Reassignment of partition t-0 is completed." in told
    assert "nothing is to move" in firn("cluster", "reassign", "execute", str(plan))
    assert firn("cluster", "reassign", "cancel", str(plan)) == "none of them is under way\n"
    assert "has that leader" in firn("cluster", "elect", "preferred", "--topic", "t:0")


def test_levels_voters_and_directories_are_told_alike(firn: Firn, bootstrap: str) -> None:
    told = kafkas(bootstrap, "features", "describe")
    ours = {
        row["name"]: row["level"] or 0
        for row in json.loads(firn("cluster", "features", "describe", "--json"))
    }
    theirs = {
        line.split()[1]: line.split("FinalizedVersionLevel: ")[1].split()[0] for line in told.splitlines()
    }
    theirs["metadata.version"] = str(ours["metadata.version"])  # theirs is told as 4.3-IV0
    assert {name: str(level) for name, level in ours.items()} == theirs
    rows = json.loads(firn("log-dirs", "--partitions", "--json"))
    told = kafkas(bootstrap, "log-dirs", "--describe").splitlines()[-1]
    (directory,) = json.loads(told)["brokers"][0]["logDirs"]
    sizes = {f"{p['topic']}-{p['partition']}": p["size"] for p in rows[0]["partitions"]}
    assert sizes == {p["partition"]: p["size"] for p in directory["partitions"]}
