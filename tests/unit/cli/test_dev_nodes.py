"""Several nodes of `firn dev`: their settings, and messages as they start and end."""

from __future__ import annotations

import random
import socket
from pathlib import Path

import pytest

from service.base.errors import ConfigError
from service.cli.dev_nodes import HOST, Plan, agree_on_ports, format_nodes, plan_nodes
from service.cli.roster import Roster
from service.config.cluster import ClusterConfig
from service.hot.meta_properties_ensemble import load_ensemble
from service.metadata.bootstrap import parse_initial_controllers
from service.metadata.formatting import check_formatted
from tests.support.world import WORLD, make_world


def laid_out(folder: Path, nodes: int = 3, controllers: int = 3) -> Plan:
    ports = ([9092 + i for i in range(nodes)], [19092 + i for i in range(controllers)])
    settings = {"log.segment.bytes": "1048576", "node.id": "7"}
    return plan_nodes(nodes, controllers, ports, folder, make_world(), settings)


class TestRoster:
    def test_the_cluster_is_ready_once_all_nodes_are(self) -> None:
        roster = Roster([1, 2, 3])
        assert roster.note_line(3, "ready: node 3 on h:3") == []
        assert roster.note_line(1, "ready: node 1 on h:1") == []
        assert roster.note_line(2, "ready: node 2 on h:2") == ["ready: nodes 1, 2, 3 on h:1,h:2,h:3"]
        assert roster.note_line(2, "ready: node 2 on h:2") == []

    def test_one_that_dies_is_named_and_the_others_go_on(self) -> None:
        roster = Roster([1, 2, 3])
        assert roster.note_exit(2, -9) == ["node 2 was ended by SIGKILL; nodes 1, 3 continue"]
        assert roster.note_exit(3, 1) == ["node 3 ended with status 1; node 1 continues"]
        assert roster.note_exit(1, -99) == ["node 1 was ended by signal 99; no node is left"]
        assert (roster.living, roster.exit_code) == ((), 1)

    def test_the_others_are_ready_without_one_that_never_was(self) -> None:
        roster = Roster([1, 2])
        roster.note_line(1, "ready: node 1 on h:1")
        assert roster.note_exit(2, 1) == [
            "node 2 ended with status 1; node 1 continues",
            "ready: nodes 1 on h:1",
        ]

    def test_a_node_that_stops_on_request_is_not_reported(self) -> None:
        roster = Roster([1, 2])
        roster.is_stopping = True
        assert roster.note_exit(1, 0) == []
        assert roster.exit_code == 0
        assert roster.note_line(2, "ready: node 2 on h:2") == []
        assert roster.note_exit(2, -9) == ["node 2 was ended by SIGKILL"]
        assert roster.exit_code == 1

    def test_the_request_itself_may_end_one_that_has_begun_nothing(self) -> None:
        roster = Roster([1])
        roster.stop()
        assert (roster.note_exit(1, -15), roster.exit_code) == ([], 0)

    def test_every_exit_is_reported_in_any_order_of_events(self) -> None:
        for seed in range(300):
            chance = random.Random(seed)
            ids = list(range(1, chance.randint(2, 6)))
            roster = Roster(ids)
            steps = [(one, what) for one in ids for what in ("ready", "end")]
            chance.shuffle(steps)
            gone: set[int] = set()
            told: list[str] = []
            for node_id, what in steps:
                if what == "end":
                    told += roster.note_exit(node_id, chance.choice([0, 1, -9, -15]))
                    gone.add(node_id)
                elif node_id not in gone:
                    told += roster.note_line(node_id, f"ready: node {node_id} on h:{node_id}")
                assert set(roster.living) == set(ids) - gone, seed
            assert sum(line.startswith("ready: ") for line in told) <= 1, seed
            assert [sum(line.startswith(f"node {one} ") for line in told) for one in ids] == [1] * len(ids)
            assert told[-1].endswith("no node is left"), seed


class TestPorts:
    def test_free_ones_are_all_different_and_free(self) -> None:
        brokers, controllers = agree_on_ports(0, 5, 3)
        assert len({*brokers, *controllers}) == 8
        for port in (*brokers, *controllers):
            with socket.socket() as listener:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind((HOST, port))

    def test_the_nodes_follow_each_other_from_the_one_that_is_given(self) -> None:
        first = next(
            port for port in range(20_000, 30_000, 10) if all(_is_free(port + offset) for offset in range(3))
        )
        brokers, controllers = agree_on_ports(first, 3, 1)
        assert brokers == [first, first + 1, first + 2]
        assert not set(controllers) & set(brokers)

    def test_one_that_is_taken_is_named(self) -> None:
        with socket.socket() as taken:
            taken.bind((HOST, 0))
            taken.listen()
            port = taken.getsockname()[1]
            with pytest.raises(ConfigError, match=f"cannot listen on port {port} of {HOST}"):
                agree_on_ports(port, 1, 1)

    def test_ports_beyond_65535_are_refused(self) -> None:
        with pytest.raises(ConfigError, match="3 nodes need as many ports from that one on"):
            agree_on_ports(65534, 3, 1)


def _is_free(port: int) -> bool:
    with socket.socket() as listener:
        try:
            listener.bind((HOST, port))
        except OSError:
            return False
        return True


class TestLayout:
    @pytest.mark.parametrize(("nodes", "controllers"), [(3, 3), (3, 1), (5, 3), (1, 1)])
    def test_the_settings_make_one_cluster(self, tmp_path: Path, nodes: int, controllers: int) -> None:
        plan = laid_out(tmp_path, nodes, controllers)
        clusters = [ClusterConfig.from_properties(node.settings) for node in plan.nodes]
        assert [one.node_id for one in clusters] == list(range(1, nodes + 1))
        assert [one.is_controller for one in clusters] == [i < controllers for i in range(nodes)]
        assert all(one.is_broker for one in clusters)
        assert len({one.quorum.bootstrap_servers for one in clusters}) == 1
        assert len({one.log_dirs for one in clusters}) == nodes
        voters = parse_initial_controllers(plan.initial_controllers)
        assert [one.node_id for one in voters] == [one.node_id for one in clusters if one.is_controller]
        told = [one.advertised_controller_listeners[0] for one in clusters if one.is_controller]
        assert [(one.host, one.port) for one in told] == [(one.host, one.port) for one in voters]
        assert all(node.settings["log.segment.bytes"] == "1048576" for node in plan.nodes)

    def test_a_command_line_shows_whose_it_is(self, tmp_path: Path) -> None:
        commands = [node.child("info").command for node in laid_out(tmp_path).nodes]
        assert len(commands) == 3
        for number, command in enumerate(commands, 1):
            assert [word for word in command if word.startswith("node.id=")] == [f"node.id={number}"]
            assert "--until-eof" in command

    def test_formatted_they_may_start(self, tmp_path: Path) -> None:
        plan = laid_out(tmp_path, 3, 2)
        format_nodes(plan, WORLD)
        voters = {one.node_id: one for one in parse_initial_controllers(plan.initial_controllers)}
        assert len(plan.nodes) == 3
        for node in plan.nodes:
            cluster = ClusterConfig.from_properties(node.settings)
            found = load_ensemble(WORLD.disk, cluster.directories)
            check_formatted(cluster, found)
            meta = found.formatted[cluster.metadata_log_dir]
            assert meta.cluster_id == plan.cluster_id
            if node.is_controller:
                assert meta.directory_id == voters[node.node_id].directory_id
            else:
                assert meta.directory_id not in {one.directory_id for one in voters.values()}

    @pytest.mark.parametrize("controllers", [0, 4])
    def test_controllers_are_among_the_nodes(self, tmp_path: Path, controllers: int) -> None:
        with pytest.raises(ConfigError, match=f"--controllers {controllers}: must be from 1 to"):
            laid_out(tmp_path, 3, controllers)
