"""Controllers that come back under other addresses, all at once or one after the other."""

from __future__ import annotations

from pathlib import Path

from service.cli.dev_nodes import agree_on_ports
from tests.support.processes import wait_until
from tests.support.quorums import Cluster, Member, Program


def _of_controller(member: Member) -> str:
    return member.settings["listeners"].partition("CONTROLLER://")[2].partition(",")[0]


def _move(cluster: Cluster, member: Member, to: str) -> None:
    """Its controller listens elsewhere, and every file says so."""
    at = _of_controller(member)
    for one in cluster.members.values():
        one.settings = {key: value.replace(at, to) for key, value in one.settings.items()}


def test_three_controllers_whose_ports_all_changed_form_their_quorum_by_the_bootstrap_servers(
    tmp_path: Path,
) -> None:
    with Cluster(tmp_path, programs=dict.fromkeys((1, 2, 3), Program.FIRN)) as cluster:
        cluster.start(seconds=120)
        for member in cluster.members.values():
            member.stop()
        _, ports = agree_on_ports(0, 3, 3)
        for member, port in zip(cluster.members.values(), ports, strict=True):
            _move(cluster, member, f"127.0.0.1:{port}")
        cluster.start(seconds=120)
        wait_until("a leader", lambda: cluster.members[1].quorum().leader in (1, 2, 3), 60)
        assert {*cluster.members[1].quorum().voters} == {1, 2, 3}


def test_a_controller_that_moved_is_ready_once_the_voters_record_has_its_address(tmp_path: Path) -> None:
    """So that a rolling move, node by node at its `ready:`, may be followed by a stop of all."""
    with Cluster(tmp_path, programs=dict.fromkeys((1, 2, 3), Program.FIRN)) as cluster:
        cluster.start(seconds=120)
        _, ports = agree_on_ports(0, 3, 3)
        for member, port in zip(cluster.members.values(), ports, strict=True):
            member.stop()
            _move(cluster, member, f"127.0.0.1:{port}")
            member.start(120)
            record = b"".join(one.read_bytes() for one in sorted(member.metadata_log.glob("*.log")))
            told = [part[:40] for part in record.split(b"CONTROLLER")]
            is_told = any(port.to_bytes(2, "big") in part for part in told)
            assert is_told, f"node {member.node_id} is ready, and no record of the voters has port {port}"
