"""A node that was alone becomes a cluster, and the cluster grows and shrinks, while it is used."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from service.cli.dev_nodes import HOST, DevNode
from service.cli.main import main
from tests.support.changes import Changes, judge
from tests.support.clients import Admin, Confluent, make_rows
from tests.support.kafka_tools import run_tool, tool
from tests.support.processes import free_port, wait_until
from tests.support.quorums import Member, Program
from tests.support.reading import Reader

SEED = int(os.environ.get("SEED", "20261123"))
QUORUM = "org.apache.kafka.tools.MetadataQuorumCommand"

pytestmark = pytest.mark.java


def cluster_id(member: Member) -> str:
    lines = (member.data / "meta.properties").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)["cluster.id"]


def old_node(folder: Path) -> Member:
    """A node as it was before there were clusters: alone, without a controller's listener."""
    settings = {
        "node.id": "1",
        "listeners": f"PLAINTEXT://{HOST}:{free_port()}",
        "log.dirs": str(folder / "node-1"),
    }
    return Member(DevNode(1, True, settings), folder, Program.FIRN)


def opened(member: Member) -> str:
    """Gives it a controller's listener; returns that one's address."""
    place = f"{HOST}:{free_port()}"
    member.settings["listeners"] += f",CONTROLLER://{place}"
    member.settings["controller.listener.names"] = "CONTROLLER"
    return place


class Growing:
    """The nodes there are, and the controllers' addresses that new ones are told."""

    def __init__(self, folder: Path, first: Member, controller: str) -> None:
        self.folder = folder
        self.members = {1: first}
        self.controllers = controller

    def new(self, node_id: int, *, joins: bool) -> Member:
        """A node more, of both roles, formatted by `firn format --no-initial-controllers`, and started."""
        settings = {
            "process.roles": "broker,controller",
            "node.id": str(node_id),
            "listeners": f"PLAINTEXT://{HOST}:{free_port()}",
            "log.dirs": str(self.folder / f"node-{node_id}"),
            "controller.quorum.bootstrap.servers": self.controllers,
            "controller.quorum.auto.join.enable": str(joins).lower(),
        }
        member = Member(DevNode(node_id, True, settings), self.folder, Program.FIRN)
        self.controllers += "," + opened(member)
        options = ("--config", str(member.properties), "--cluster-id", cluster_id(self.members[1]))
        assert main(["format", *options, "--no-initial-controllers"]) == 0
        self.members[node_id] = member
        return member.start()

    def voters(self) -> set[int]:
        return set(self.members[1].quorum().voters)

    def wait_for_voters(self, *node_ids: int) -> None:
        wait_until(f"voters {node_ids}", lambda: self.voters() == set(node_ids), 60)

    def add(self, node_id: int) -> None:
        member = self.members[node_id]
        there = ("--bootstrap-server", self.members[1].bootstrap, "--command-config", member.properties)

        def is_added() -> bool:
            done = run_tool(QUORUM, *there, "add-controller")
            print(done.stdout.decode() + done.stderr.decode())
            return done.returncode == 0

        # it is refused until the new one has caught up, and while another change is under way
        wait_until(f"node {node_id} to be added", is_added, 60)

    def remove(self, node_id: int) -> None:
        directory = self.members[1].quorum().voters[node_id]
        who = ("--controller-id", str(node_id), "--controller-directory-id", directory)
        there = ("--bootstrap-server", self.members[1].bootstrap)
        tool(QUORUM, *there, "remove-controller", *who)

    def close(self) -> None:
        for member in self.members.values():
            if member.is_running:
                member.kill()


@contextmanager
def growing(folder: Path, first: Member, controller: str) -> Iterator[Growing]:
    made = Growing(folder, first, controller)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.thorough
@pytest.mark.timeout(420)
def test_an_old_node_grows_to_three_voters_to_five_and_back(tmp_path: Path) -> None:
    print(f"SEED={SEED}")
    first = old_node(tmp_path)
    rows = make_rows(200, 2, seed=SEED)
    with growing(tmp_path, first, "") as nodes, ExitStack() as stack:
        first.start()
        Admin(first.bootstrap).create("old", 2)
        Confluent().produce(first.bootstrap, "old", rows)
        first.leave()

        nodes.controllers = opened(first)
        first.start()
        reader = stack.enter_context(Reader(first.bootstrap, "old", rows))
        changes = stack.enter_context(Changes([(1, first.bootstrap)], 50, SEED, each=4))
        reader.wait_for_next()
        described = tool("features", "--bootstrap-server", first.bootstrap, "describe")
        (line,) = (one for one in described.splitlines() if "kraft.version" in one)
        assert "SupportedMaxVersion: 1" in line
        assert "FinalizedVersionLevel: 0" in line
        assert set(first.quorum().voters) == {1}
        tool("features", "--bootstrap-server", first.bootstrap, "upgrade", "--feature", "kraft.version=1")
        described = tool("features", "--bootstrap-server", first.bootstrap, "describe")
        (line,) = (one for one in described.splitlines() if "kraft.version" in one)
        assert "FinalizedVersionLevel: 1" in line

        for node_id, joins in ((2, False), (3, True), (4, True), (5, False)):
            member = nodes.new(node_id, joins=joins)
            changes.add(node_id, member.bootstrap)
            if not joins:
                assert node_id not in nodes.voters()
                nodes.add(node_id)
            nodes.wait_for_voters(*range(1, node_id + 1))
            reader.wait_for_next()

        # what its configuration says of the quorum is now what that of the others says
        first.settings["controller.quorum.bootstrap.servers"] = nodes.controllers
        first.leave()
        first.start()
        reader.wait_for_next()

        for node_id in (5, 2):
            nodes.remove(node_id)
        nodes.wait_for_voters(1, 3, 4)
        reader.wait_for_next()
        # with two of the three voters left there is a majority
        leader = first.quorum().leader
        assert leader in (1, 3, 4)
        gone = leader if leader != 1 else 3
        nodes.members[gone].kill()
        reader.wait_for_next()
        nodes.members[gone].start()
        judge(changes, list(nodes.members.values()))
        reader.wait_for_next()
        stack.close()
        for one in nodes.members.values():
            one.leave()
