"""`firn format`: directories that either server starts on, whichever tool made them ready."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from service.base.disk import SystemDisk
from service.cli.main import main
from service.config.cluster import ClusterConfig
from service.hot.log_dir import decode_uuid, encode_uuid
from service.hot.meta_properties_ensemble import load_ensemble
from service.metadata.bootstrap import parse_initial_controllers
from service.metadata.features import cluster_features
from service.metadata.formatting import check_formatted
from tests.support.kafka_tools import RUNNER, run_tool, tool
from tests.support.processes import FIRN, Node, child, free_port, wait_until
from tests.support.quorums import Cluster, Program
from tests.support.requirements import KAFKA_LIBS, need_kafka_tools

CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"
FORMATTED = "All of the log directories are already formatted."
QUORUM_TOOL = "org.apache.kafka.tools.MetadataQuorumCommand"


class Config:
    """A `server.properties` of a node of both roles, for either server."""

    def __init__(self, folder: Path, *, is_dynamic: bool) -> None:
        self.port, self.controller = free_port(), free_port()
        quorum = "bootstrap.servers=" if is_dynamic else "voters=1@"
        self.lines = (
            "process.roles=broker,controller",
            "node.id=1",
            f"controller.quorum.{quorum}127.0.0.1:{self.controller}",
            f"listeners=PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{self.controller}",
            "controller.listener.names=CONTROLLER",
            f"log.dirs={folder / 'data'}",
        )
        self.path = folder / "server.properties"
        self.path.write_text("\n".join(self.lines) + "\n")
        self.data = folder / "data"

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def cluster(self) -> ClusterConfig:
        pairs = (line.partition("=") for line in self.lines)
        return ClusterConfig.from_properties({key: value for key, _, value in pairs})


def firn_format(config: Config, *options: str) -> int:
    return main(["format", "--config", str(config.path), "--cluster-id", CLUSTER_ID, *options])


def test_ids_are_printed_and_none_begins_like_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(50):
        assert main(["random-uuid"]) == 0
    ids = capsys.readouterr().out.splitlines()
    assert len(set(ids)) == 50
    assert all(len(one) == 22 and decode_uuid(one) and not one.startswith("-") for one in ids)


@pytest.mark.parametrize(
    ("is_dynamic", "options", "message"),
    [
        (
            True,
            (),
            "Because controller.quorum.voters is not set on this controller, you must specify one of the "
            "following: --standalone, --initial-controllers, or --no-initial-controllers. The settings name "
            "no controller but this one: `firn format -s` makes it the first, and for now the only, voter.",
        ),
        (False, ("--standalone",), "You cannot specify controller.quorum.voters and format the node with"),
        (False, ("-I", "1@a:1:JEXY6aqzQY-32P5TStzaFg"), "You cannot specify controller.quorum.voters and"),
        (True, ("-I", "1@a:1:x"), "Failed to parse directory ID in dynamic voter string: x"),
        (True, ("-s", "-f", "foo=1"), "Unsupported feature: foo. Supported features are: "),
        (True, ("-s", "-f", "kraft.version=0"), "Cannot set kraft.version to 0 if controller.quorum.voters"),
        (True, ("-N", "-r", "4.2"), "--release-version 4.2: only 4.3, which is metadata.version 30, can be"),
        (
            True,
            ("-N", "-r", "4.3", "-f", "metadata.version=30"),
            "Use --release-version instead of --feature metadata.version=X to avoid ambiguity.",
        ),
        (True, ("-N", "--set", "process.role=x"), "--set process.role: unknown configuration key"),
        (True, ("-N", "-t", "AAAAAAAAAAAAAAAAAAAAAA"), "--cluster-id AAAAAAAAAAAAAAAAAAAAAA: Expected 22"),
    ],
)
def test_invalid_format_options_are_refused_without_effect(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    is_dynamic: bool,
    options: tuple[str, ...],
    message: str,
) -> None:
    config = Config(tmp_path, is_dynamic=is_dynamic)
    assert firn_format(config, *options) == 1
    assert capsys.readouterr().err.startswith(f"firn format: {message}")
    assert not config.data.exists()


def test_a_node_with_no_settings_at_all_is_formatted_as_it_would_format_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["format", "-t", CLUSTER_ID]) == 0
    assert f"Formatting metadata directory {tmp_path}/firn-data with" in capsys.readouterr().out
    assert main(["format", "-t", CLUSTER_ID]) == 1
    assert "is already formatted" in capsys.readouterr().err


def test_a_node_that_is_alone_is_the_voter_of_a_directory_formatted_so_and_of_no_other(
    tmp_path: Path,
) -> None:
    node = Node(tmp_path)
    node.settings["listeners"] += f",CONTROLLER://127.0.0.1:{free_port()}"
    node.settings["controller.listener.names"] = "CONTROLLER"
    settings = [f"--set={key}={value}" for key, value in node.settings.items()]
    try:
        assert main(["format", "-t", CLUSTER_ID, "--standalone", *settings]) == 0
        for _ in range(2):
            node.start().stop()
        log = node.data / "__cluster_metadata-0"
        assert '"data_version":1' in (log / "quorum-state").read_text()
        shutil.rmtree(node.data)
        others = "1@127.0.0.1:9093:JEXY6aqzQY-32P5TStzaFg,2@127.0.0.1:9094:uPEPqLpXQnCAPzIjZlhlUQ"
        assert main(["format", "-t", CLUSTER_ID, "--initial-controllers", others, *settings]) == 0
        # a member of theirs would wait for them; one whom nobody can reach is none
        node.settings["listeners"] = node.settings["listeners"].partition(",")[0]
        del node.settings["controller.listener.names"]
        with pytest.raises(AssertionError):
            node.start()
        assert "the log has the voters 1 (JEXY6aqzQY-32P5TStzaFg), 2 (" in node.log()
    finally:
        node.close()


def test_a_firn_node_starts_on_what_it_formatted(tmp_path: Path) -> None:
    node = Node(tmp_path)
    settings = [f"--set={key}={value}" for key, value in node.settings.items()]
    assert main(["format", "-t", CLUSTER_ID, *settings]) == 0
    before = (node.data / "meta.properties").read_bytes()
    try:
        node.start().stop()
    finally:
        node.close()
    assert (node.data / "meta.properties").read_bytes() == before


class TestWithKafka:
    @pytest.fixture(autouse=True)
    def _tools(self) -> None:
        need_kafka_tools()

    @pytest.mark.parametrize("is_dynamic", [False, True], ids=["static", "dynamic"])
    def test_kafka_starts_on_what_firn_formatted(self, tmp_path: Path, is_dynamic: bool) -> None:
        config = Config(tmp_path, is_dynamic=is_dynamic)
        # a feature of ours is none that Kafka's nodes support: they would refuse themselves
        own = [one.name for one in cluster_features() if one.name.startswith("firn.")]
        without = [word for name in own for word in ("-f", f"{name}=0")]
        assert firn_format(config, *without, *(("--standalone",) if is_dynamic else ())) == 0
        with child(
            [str(RUNNER), "server", str(config.path)], tmp_path / "log", {"KAFKA_LIBS": str(KAFKA_LIBS)}
        ):
            described: list[bytes] = []

            def leads() -> bool:
                done = run_tool(QUORUM_TOOL, "--bootstrap-server", config.bootstrap, "describe", "--status")
                described.append(done.stdout)
                return done.returncode == 0

            wait_until("Apache Kafka to lead", leads, 60)
            text = described[-1].decode()
            assert f"ClusterId:              {CLUSTER_ID}" in text
            features = tool("features", "--bootstrap-server", config.bootstrap, "describe")
        meta = load_ensemble(SystemDisk(), [config.data]).formatted[config.data]
        assert meta.node_id == 1
        assert ("directoryId" in text) is is_dynamic
        level = {line.split()[1]: line.split()[7] for line in features.splitlines() if "Feature:" in line}
        assert (level["metadata.version"], level["group.version"]) == ("4.3-IV0", "1")
        assert level["kraft.version"] == ("1" if is_dynamic else "0")

    @pytest.mark.parametrize("is_dynamic", [False, True], ids=["static", "dynamic"])
    def test_both_tools_see_what_the_other_formatted(
        self, tmp_path: Path, is_dynamic: bool, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "ours").mkdir()
        ours = Config(tmp_path / "ours", is_dynamic=is_dynamic)
        flags = ("--standalone",) if is_dynamic else ()
        assert firn_format(ours, *flags) == 0
        again = ("-t", CLUSTER_ID, "-c", ours.path, *flags)
        assert FORMATTED in tool("storage", "format", *again, "--ignore-formatted")
        assert "is already formatted" in run_tool("storage", "format", *again).stderr.decode()

        theirs = Config(tmp_path, is_dynamic=is_dynamic)
        tool("storage", "format", "-t", CLUSTER_ID, "-c", theirs.path, *flags)
        capsys.readouterr()
        assert firn_format(theirs, *flags) == 1
        assert "is already formatted" in capsys.readouterr().err
        assert firn_format(theirs, *flags, "-g") == 0
        assert capsys.readouterr().out == FORMATTED + "\n"
        check_formatted(theirs.cluster(), load_ensemble(SystemDisk(), [theirs.data]))

    def test_a_firn_node_starts_on_what_kafka_formatted(self, tmp_path: Path) -> None:
        config = Config(tmp_path, is_dynamic=False)
        tool("storage", "format", "-t", CLUSTER_ID, "-c", config.path)
        node = Node(tmp_path)
        try:
            node.start()
            status = tool("features", "--bootstrap-server", node.bootstrap, "describe")
            assert "metadata.version" in status
            node.stop()
        finally:
            node.close()
        ids = tool("storage", "info", "-c", config.path)
        assert f"cluster.id={CLUSTER_ID}" in ids


def test_the_command_says_what_it_did(tmp_path: Path) -> None:
    config = Config(tmp_path, is_dynamic=True)
    done = subprocess.run(
        [str(FIRN), "format", "-c", str(config.path), "-t", CLUSTER_ID, "-s"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert done.stdout.splitlines()[-1] == (
        f"Formatting dynamic metadata voter directory {tmp_path}/data with metadata.version 4.3-IV0."
    )


@pytest.mark.thorough
def test_a_quorum_of_kafka_nodes_forms_on_what_firn_laid_out_and_formatted(tmp_path: Path) -> None:
    need_kafka_tools()
    kafka = dict.fromkeys((1, 2, 3), Program.KAFKA)
    with Cluster(tmp_path, nodes=3, controllers=2, programs=kafka) as cluster:
        cluster.start(seconds=90)
        quorum = (QUORUM_TOOL, "--bootstrap-server", cluster.bootstrap, "describe")
        status = tool(*quorum, "--status")
        assert f"ClusterId:              {cluster.plan.cluster_id}" in status
        voters = parse_initial_controllers(cluster.plan.initial_controllers)
        assert len(voters) == 2
        (told,) = (line for line in status.splitlines() if line.startswith("CurrentVoters:"))
        for voter in voters:
            assert encode_uuid(voter.directory_id) in told
            assert f"CONTROLLER://{voter.host}:{voter.port}" in told
        replication = tool(*quorum, "--replication")
        roles = [line.split()[-1] for line in replication.splitlines()[1:] if line.strip()]
        assert sorted(roles) == ["Follower", "Leader", "Observer"]
