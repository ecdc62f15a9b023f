"""Apache Kafka's tools for groups and features, run as operators run them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import confluent_kafka
import pytest

from tests.clients.conftest import NewTopic
from tests.conftest import NodeFactory
from tests.support.kafka_tools import run_tool, tool
from tests.support.members import Member
from tests.support.processes import wait_until

pytestmark = pytest.mark.java
_numbers = count(1)


class Tools:
    """`consumer-groups` and its like on one broker; rows of what they print, cell by cell."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def __call__(self, name: str, *arguments: str | Path) -> str:
        return tool(name, "--bootstrap-server", self.bootstrap, *arguments)

    def fails(self, name: str, *arguments: str | Path) -> str:
        done = run_tool(name, "--bootstrap-server", self.bootstrap, *arguments)
        assert done.returncode != 0
        return done.stdout.decode() + done.stderr.decode()

    def rows(self, name: str, *arguments: str | Path) -> list[list[str]]:
        return [line.split() for line in self(name, *arguments).splitlines() if line.strip()]


@pytest.fixture
def tools(bootstrap: str) -> Tools:
    return Tools(bootstrap)


@pytest.fixture
def topic(bootstrap: str, new_topic: NewTopic) -> str:
    """Two partitions with 50 records each."""
    name = new_topic(2)
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for n in range(100):
        producer.produce(name, b"%d" % n, partition=n % 2)
    assert not producer.flush(20)
    return name


@pytest.fixture(params=["confluent", "confluent-consumer"])
def group(request: pytest.FixtureRequest, bootstrap: str, topic: str) -> Iterator[tuple[str, str, Member]]:
    """A group of one member that has read the topic: its name and kind, and the member."""
    name, kind = f"tools-{os.getpid()}-{next(_numbers)}", request.param
    member = Member(kind, bootstrap, name, topic).start()
    wait_until("everything is read", lambda: len(member.values) == 100)
    yield name, "Classic" if kind == "confluent" else "Consumer", member
    member.leave()


def test_groups_are_listed_and_described(tools: Tools, topic: str, group: tuple[str, str, Member]) -> None:
    name, kind, _ = group
    assert [name] in tools.rows("consumer-groups", "--list")
    assert [name, kind, "consumer"] in tools.rows("groups", "--list")
    assert [name, "Stable"] in tools.rows("consumer-groups", "--list", "--state", "stable")
    assert [name] not in tools.rows("consumer-groups", "--list", "--state", "empty")
    offsets = tools.rows("consumer-groups", "--describe", "--group", name)
    assert sorted(row[:6] for row in offsets[1:]) == [[name, topic, str(n), "50", "50", "0"] for n in (0, 1)]
    [_, state] = tools.rows("consumer-groups", "--describe", "--group", name, "--state")
    assert state[-2:] == ["Stable", "1"]
    assert state[-3] == ("range" if kind == "Classic" else "uniform")
    [_, member] = tools.rows("consumer-groups", "--describe", "--group", name, "--members", "--verbose")
    assert f"{topic}:0,1" in member


def test_positions_are_reset_exported_and_deleted(
    tools: Tools, topic: str, group: tuple[str, str, Member], tmp_path: Path
) -> None:
    name, _, member = group
    reset = ("consumer-groups", "--reset-offsets", "--group", name, "--topic", topic)
    refused = tools(*reset, "--to-earliest", "--execute")
    assert "can only be reset if the group" in refused
    assert "is inactive" in refused
    member.leave()

    def positions(*how: str | Path) -> list[str]:
        """By partition; without the warnings that there may be."""
        rows = tools.rows(*reset, *how)
        return sorted(f"{row[2]}:{row[3]}" for row in rows if row[0] == name)

    assert positions("--to-earliest", "--dry-run") == ["0:0", "1:0"]
    assert positions("--to-current", "--dry-run") == ["0:50", "1:50"]
    assert positions("--shift-by", "-10", "--execute") == ["0:40", "1:40"]
    assert positions("--to-offset", "7", "--execute") == ["0:7", "1:7"]
    exported = tools(*reset, "--to-current", "--dry-run", "--export")
    (tmp_path / "plan.csv").write_text(exported.replace(",7", ",9"))
    plan = ("--from-file", tmp_path / "plan.csv")
    again = tools.rows("consumer-groups", "--reset-offsets", "--group", name, *plan, "--execute")
    assert sorted(row[3] for row in again[1:]) == ["9", "9"]
    assert positions("--to-datetime", "2000-01-01T00:00:00.000", "--execute") == ["0:0", "1:0"]
    assert positions("--by-duration", "PT0S", "--execute") == ["0:50", "1:50"]
    assert positions("--to-latest", "--execute") == ["0:50", "1:50"]
    deleted = tools("consumer-groups", "--delete-offsets", "--group", name, "--topic", topic)
    assert "Request succeeded for deleting offsets" in deleted
    assert "was successful" in tools("consumer-groups", "--delete", "--group", name)
    assert [name] not in tools.rows("consumer-groups", "--list")


def test_a_group_with_members_is_not_deleted(tools: Tools, group: tuple[str, str, Member]) -> None:
    name, _, _ = group
    assert "The group is not empty" in tools("consumer-groups", "--delete", "--group", name)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_the_console_consumer_reads_and_goes_on_where_it_was(tools: Tools, topic: str, protocol: str) -> None:
    name = f"console-{os.getpid()}-{next(_numbers)}"
    ask = (
        "console-consumer", "--topic", topic, "--group", name, "--max-messages", "50",
        "--command-property", f"group.protocol={protocol}",
        "--command-property", "auto.offset.reset=earliest",
    )  # fmt: skip
    first, second = ({int(line) for line in tools(*ask).splitlines() if line.isdigit()} for _ in range(2))
    assert (len(first), len(second)) == (50, 50)
    assert first | second == set(range(100))


def test_features_are_described_lowered_and_raised(start_node: NodeFactory) -> None:
    tools = Tools(start_node().bootstrap)

    def level() -> str:
        [line] = [one for one in tools("features", "describe").splitlines() if "group.version" in one]
        assert "SupportedMinVersion: 0" in line
        assert "SupportedMaxVersion: 1" in line
        return line.partition("FinalizedVersionLevel: ")[2].split()[0]

    assert level() == "1"
    assert "was downgraded to 0" in tools("features", "downgrade", "--feature", "group.version=0")
    assert level() == "0"
    assert "can be upgraded to 1" in tools("features", "upgrade", "--feature", "group.version=1", "--dry-run")
    assert level() == "0"
    assert "was upgraded to 1" in tools("features", "upgrade", "--feature", "group.version=1")
    assert level() == "1"
    assert "only supports versions 0-1" in tools.fails("features", "upgrade", "--feature", "group.version=2")
