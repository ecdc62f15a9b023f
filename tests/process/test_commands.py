"""The `firn` command as a person meets it: what it prints, where, and with which exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from service.cli.main import main
from service.cli.tiers import PartitionTiers, TopicTiers, human_bytes, table
from tests.support.processes import REPOSITORY, Node
from tests.support.stores import folder_store


class TestUsage:
    def test_help_needs_the_standard_library_only(self) -> None:
        code = "import sys; from service.cli.main import build_parser; build_parser(); print(*sys.modules)"
        modules = subprocess.run(
            [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True
        ).stdout.split()
        assert not {"kio", "obstore", "asyncio", "service.base.errors"} & set(modules)

    def test_every_command_explains_itself(self) -> None:
        for command in ("server", "dev", "console", "topic", "group", "tiers", "dump", "fsck"):
            with pytest.raises(SystemExit) as left:
                main([command, "--help"])
            assert left.value.code == 0

    @pytest.mark.parametrize(
        "arguments", [["nonsense"], ["dump"], ["server", "--set", "novalue"], ["topic"], ["topic", "create"]]
    )
    def test_wrong_usage_is_exit_code_2(self, arguments: list[str]) -> None:
        with pytest.raises(SystemExit) as left:
            main(arguments)
        assert left.value.code == 2

    def test_without_a_command_it_shows_help(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main([]) == 2
        assert "run a node" in capsys.readouterr().out


class TestErrors:
    """One clear line on stderr, exit code 1, no traceback."""

    def test_a_bad_setting(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        config = tmp_path / "server.properties"
        config.write_text("node.id=1\nlog.segmnt.bytes=1\n")
        assert main(["server", str(config), "--set", "num.partitions=0"]) == 1
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.splitlines() == [
            "firn server: 2 problems:",
            f"{config}:2: log.segmnt.bytes: unknown configuration key; did you mean 'log.segment.bytes'?",
            "--set num.partitions: invalid value '0': Value must be at least 1",
        ]

    def test_no_such_file(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["server", "/nowhere.properties"]) == 1
        assert capsys.readouterr().err == "firn server: /nowhere.properties: No such file or directory\n"

    def test_a_refused_connection_is_reported(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["topic", "list", "--bootstrap-server", "127.0.0.1:1"]) == 1
        assert capsys.readouterr().err == "firn topic: cannot connect to 127.0.0.1:1: Connection refused\n"

    def test_an_address_that_is_none(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["tiers", "t", "--bootstrap-server", "localhost"]) == 1
        assert capsys.readouterr().err == "firn tiers: 'localhost' is not HOST:PORT\n"

    def test_a_dev_directory_with_old_data(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "old").write_text("data")
        assert main(["dev", "--dir", str(tmp_path)]) == 1
        assert "is not empty" in capsys.readouterr().err

    def test_a_bucket_instead_of_an_object(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["dump", "s3://bucket"]) == 1
        assert capsys.readouterr().err == "firn dump: s3://bucket names a bucket; name one of its objects\n"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    folder = tmp_path_factory.mktemp("node")
    node = Node(folder, folder_store(folder / "cold").node_settings)
    yield node.start()
    node.close()


class TestTopics:
    def test_a_topic_from_creation_to_deletion(self, node: Node, capsys: pytest.CaptureFixture[str]) -> None:
        there = ("--bootstrap-server", node.bootstrap)
        create = ["topic", "create", "flights", "--partitions", "3", "--config", "retention.ms=-1", *there]
        assert main(create) == 0
        assert capsys.readouterr().out.startswith("created flights (id ")
        assert main(["topic", "list", *there]) == 0
        assert "flights" in capsys.readouterr().out.splitlines()
        assert main(["topic", "describe", "flights", "--json", *there]) == 0
        described = json.loads(capsys.readouterr().out)
        assert described["configs"] == {"retention.ms": "-1"}
        assert [p["partition"] for p in described["partitions"]] == [0, 1, 2]
        assert main(["topic", "describe", "flights", *there]) == 0
        assert "partition: 2 leader: 1 replicas: 1 isr: 1" in capsys.readouterr().out
        assert main(create) == 1
        assert "already exists. (TOPIC_ALREADY_EXISTS)" in capsys.readouterr().err
        assert main(["topic", "delete", "flights", *there]) == 0
        assert main(["topic", "describe", "flights", *there]) == 1
        assert capsys.readouterr().err == (
            "firn topic: topic flights: there is no such topic or partition (UNKNOWN_TOPIC_OR_PARTITION);"
            " 'firn topic list' has the names, 'firn topic describe TOPIC' the partitions\n"
        )

    def test_a_bad_topic_setting_is_named(self, node: Node, capsys: pytest.CaptureFixture[str]) -> None:
        there = ("--bootstrap-server", node.bootstrap)
        assert main(["topic", "create", "t", "--config", "segment.bytes=1", *there]) == 1
        assert "Value must be at least 1048576 (INVALID_CONFIG)" in capsys.readouterr().err

    def test_tiers_of_an_empty_topic(self, node: Node, capsys: pytest.CaptureFixture[str]) -> None:
        there = ("--bootstrap-server", node.bootstrap)
        assert main(["topic", "create", "empty", "--config", "remote.storage.enable=true", *there]) == 0
        capsys.readouterr()
        assert main(["tiers", "empty", "--json", *there]) == 0
        captured = capsys.readouterr()
        (partition,) = json.loads(captured.out)["partitions"]
        assert partition == {
            "partition": 0, "hot_start": 0, "hot_end": 0, "hot_bytes": 0, "hot_segments": 1,
            "cold_start": 0, "cold_end": 0, "cold_bytes": 0, "cold_objects": 0,
        }  # fmt: skip
        assert captured.err == ""


def test_a_node_at_the_end_of_a_tunnel(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The name that it tells its clients is known in its own network alone (docs/deploy.md has a tunnel)."""
    node = Node(tmp_path, {"advertised.listeners": "PLAINTEXT://firn-1.invalid:9092"})
    try:
        node.start()
        there = ("--bootstrap-server", node.bootstrap)
        assert main(["topic", "create", "far", *there]) == 0
        assert main(["topic", "describe", "far", *there]) == 0
        assert main(["tiers", "far", *there]) == 0, capsys.readouterr().err
    finally:
        node.close()


def test_the_tiers_as_a_table() -> None:
    rows = (
        PartitionTiers(0, 80, 100, 2_000, 1, 0, 90, 12_500_000, 6),
        PartitionTiers(1, 0, 0, None, None, 0, 0, None, None),
    )
    lines = table(TopicTiers("t", UUID(int=1), "s3://b/p", None, rows))
    assert lines == [
        "t  s3://b/p",
        "partition  hot offsets   bytes  segments  cold offsets    bytes  objects",
        "        0       80..99  2.0 kB         1         0..89  12.5 MB        6",
        "        1            -       -         -             -        -        -",
        "      all   20 records       -         -    90 records        -        -",
    ]


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "-"),
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (10**9, "1.0 GB"),
        (5 * 10**15, "5,000.0 TB"),
    ],
)
def test_bytes_for_people(count: int | None, text: str) -> None:
    assert human_bytes(count) == text
