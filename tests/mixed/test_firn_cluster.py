"""`firn cluster` speaks Kafka's protocol alone: nodes of Apache Kafka are described and widened as ours."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from service.cli.main import main
from service.serving.internal_topics import OFFSETS
from tests.cluster.test_cluster_command import is_taken
from tests.support.clients import Admin
from tests.support.processes import wait_until
from tests.support.quorums import Cluster, Program
from tests.support.replicas import states, wait_in_sync

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]

NODES = (1, 2, 3)


def described(capsys: pytest.CaptureFixture[str], *way: str) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    code = main(["cluster", "describe", "--format", "json", *way])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, found


@pytest.mark.thorough
def test_a_cluster_of_kafkas_is_described_and_its_internal_topic_widened(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    programs = dict.fromkeys(NODES, Program.KAFKA)
    with Cluster(tmp_path / "nodes", programs=programs) as cluster:
        cluster.start(seconds=120)
        Admin(cluster.bootstrap).replicate("events", 3, 3)
        wait_until("it is committed", partial(is_taken, cluster.bootstrap, "billing"), 60)
        code, told = described(capsys, "--bootstrap-server", cluster.bootstrap)
        assert (code, told["wrong"]) == (0, [])
        assert [one["roles"] for one in told["nodes"]] == [["broker", "controller"]] * 3
        assert told["quorum"]["leader"] == cluster.leader()
        code, told = described(capsys, "--bootstrap-controller", cluster.bootstrap_controllers)
        assert (code, told["quorum"]["leader"]) == (0, cluster.leader())

        before = states(cluster.members[1], OFFSETS)
        repair = ["cluster", "repair-internal", "--at-once", "25", "--bootstrap-server", cluster.bootstrap]
        assert main(repair) == 0
        after = wait_in_sync(cluster, OFFSETS)
        assert len(after) == len(before) == 50
        for number, one in after.items():
            assert set(one.replicas) == set(NODES)
            assert one.replicas[0] == before[number].replicas[0]
        capsys.readouterr()
        assert main(repair) == 0
        assert "nothing to do" in capsys.readouterr().out
