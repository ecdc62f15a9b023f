"""`firn group` and the groups of `firn dump`, against a real node with members of both protocols."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from service.cli.main import main
from tests.support.clients import Admin
from tests.support.members import Member
from tests.support.processes import Node, wait_until

RECORDS = 30


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    found = Node(tmp_path_factory.mktemp("node"), {"group.initial.rebalance.delay.ms": "0"})
    yield found.start()
    found.close()


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    found = Node(tmp_path_factory.mktemp("bare"))
    yield found.start()
    found.close()


def write(bootstrap: str, topic: str) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for number in range(RECORDS):
        producer.produce(topic, b"%d" % number, partition=number % 3)
    assert not producer.flush(30)


def asked(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert main(list(words)) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("client", "kind", "protocol"),
    [("confluent", "classic", "range"), ("confluent-consumer", "consumer", "uniform")],
)
def test_a_group_with_its_members_and_its_lag(
    node: Node, capsys: pytest.CaptureFixture[str], client: str, kind: str, protocol: str
) -> None:
    topic, group, there = f"topic-{kind}", f"group-{kind}", ("--bootstrap-server", node.bootstrap)
    Admin(node.bootstrap).create(topic, 3)
    write(node.bootstrap, topic)
    member = Member(client, node.bootstrap, group, topic).start()
    try:
        wait_until("it has read all", lambda: len(member.values) == RECORDS)
        rows = json.loads(asked(capsys, "group", "list", "--json", *there))
        (row,) = [one for one in rows if one["group_id"] == group]
        assert (row["kind"], row["state"], row["node"]) == (kind, "Stable", 1)
        assert f"{group}  " in asked(capsys, "group", "list", *there)
        told = json.loads(asked(capsys, "group", "describe", group, "--json", *there))
        assert (told["kind"], told["state"], told["protocol"]) == (kind, "Stable", protocol)
        (one,) = told["members"]
        assert one["assigned"] == {topic: [0, 1, 2]}
        assert one["topics"] == [topic]
        assert one["is_classic"] is (kind == "classic")
        assert [p["end"] for p in told["positions"]] == [10, 10, 10]
        assert {p["member_id"] for p in told["positions"]} == {one["member_id"]}
        text = asked(capsys, "group", "describe", group, *there)
        assert "state: Stable" in text
        assert f"{topic}-0,1,2" in text
    finally:
        member.leave()
    write(node.bootstrap, topic)
    told = json.loads(asked(capsys, "group", "describe", group, "--json", *there))
    assert (told["state"], told["members"], told["lag"]) == ("Empty", [], RECORDS)
    assert [(p["committed"], p["end"], p["lag"]) for p in told["positions"]] == [(10, 20, 10)] * 3

    found = dumped(node.data, capsys)
    offsets = [row for row in found if row["type"] == "OffsetCommit" and row["group"] == group]
    assert {(row["topic"], row["partition"]) for row in offsets} == {(topic, p) for p in range(3)}
    assert {row["value"]["offset"] for row in offsets} >= {10}
    if kind == "classic":
        groups = [row for row in found if row["type"] == "GroupMetadata" and row["group"] == group]
        with_members = [row["value"]["members"] for row in groups if row["value"]["members"]]
        ((one,),) = with_members[-1:]
        assert one["subscription"]["topics"] == [topic]
        assert one["assignment"]["partitions"] == [[topic, [0, 1, 2]]]
    else:
        kinds = {row["type"] for row in found if row["group"] == group}
        assert kinds >= {
            "ConsumerGroupMetadata",
            "ConsumerGroupMemberMetadata",
            "ConsumerGroupTargetAssignmentMember",
            "ConsumerGroupCurrentMemberAssignment",
        }
        gone = [row for row in found if row["type"] == "ConsumerGroupMemberMetadata" and "tombstone" in row]
        assert [row["group"] for row in gone] == [group]


def dumped(data: Path, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """All records of all partitions of `__consumer_offsets`, as `firn dump --records --json` has them."""
    rows: list[dict[str, Any]] = []
    for path in sorted(data.glob("__consumer_offsets-*/*.log")):
        if path.stat().st_size:
            rows += json.loads(asked(capsys, "dump", str(path), "--records", "--json"))["records"]
    return rows


def test_a_group_that_is_not_there_is_named(bare: Node, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["group", "describe", "nobody", "--bootstrap-server", bare.bootstrap]) == 1
    assert capsys.readouterr().err == (
        "firn group: there is no group nobody; 'firn group list' has the names\n"
    )


def test_asking_makes_no_topic(bare: Node, capsys: pytest.CaptureFixture[str]) -> None:
    there = ("--bootstrap-server", bare.bootstrap)
    assert asked(capsys, "group", "list", *there) == ""
    assert json.loads(asked(capsys, "group", "list", "--json", *there)) == []
    assert asked(capsys, "topic", "list", *there) == ""
    assert not list(bare.data.glob("__consumer_offsets-*"))
