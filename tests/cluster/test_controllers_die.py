"""The active controller is killed, again and again, while topics come and go through every node."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.changes import Changes
from tests.support.processes import wait_until
from tests.support.quorums import Cluster

SEED = int(os.environ.get("SEED", "20261123"))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as made:
        yield made.start()


def changes_of(cluster: Cluster, per_second: float) -> Changes:
    places = [(one.node_id, one.bootstrap) for one in cluster.members.values()]
    return Changes(places, per_second, SEED)


def kills(cluster: Cluster, count: int, per_second: float) -> list[float]:
    """Kill whoever leads, so often; how long each time until a change was answered (s)."""
    print(f"SEED={SEED}")
    waits = []
    with changes_of(cluster, per_second) as changes:
        for n in range(count):
            time.sleep(0.5)  # a little load between two kills; nothing depends on it
            leader = cluster.leader()
            cluster.members[leader].kill()
            waits.append(changes.wait_for_next(time.monotonic()))
            print(f"kill {n + 1}: node {leader}, {waits[-1] * 1000:.0f} ms to the next answer", flush=True)
            cluster.members[leader].start()
        changes.stop()
        assert changes.refusals == []
        there, gone = changes.expected()
        assert len(there) + len(gone) > 10
        for node_id in cluster.members:
            wait_until(
                f"node {node_id} to know all that was answered",
                lambda node_id=node_id: there <= cluster.members[node_id].topics(),  # type: ignore[misc]
                30,
            )
            assert not gone & cluster.members[node_id].topics()
    end = cluster.members[cluster.leader()].quorum().high_watermark
    cluster.stop()
    logs = {one.committed(end) for one in cluster.members.values()}
    assert len(logs) == 1, "the metadata logs differ below the high watermark"
    return waits


def test_every_answered_change_survives_the_controllers_death(cluster: Cluster) -> None:
    kills(cluster, 4, 20)


@pytest.mark.soak
def test_two_hundred_times(cluster: Cluster) -> None:
    waits = sorted(kills(cluster, 200, 50))
    print(f"to the next answered change: median {waits[100] * 1000:.0f} ms, worst {waits[-1] * 1000:.0f} ms")


def test_a_leader_that_sleeps_answers_nothing_after_its_successor(cluster: Cluster) -> None:
    with changes_of(cluster, 20) as changes:
        changes.wait_for_next(time.monotonic())
        leader = cluster.leader()
        process = cluster.members[leader].process
        assert process is not None
        other = next(one for one in cluster.members.values() if one.node_id != leader)
        os.kill(process.pid, signal.SIGSTOP)
        try:
            wait_until("a successor", lambda: other.quorum().leader not in (-1, leader), 30)
            changes.wait_for_next(time.monotonic())
        finally:
            os.kill(process.pid, signal.SIGCONT)
        wait_until(
            "the old leader to follow",
            lambda: cluster.members[leader].quorum()[:2] == other.quorum()[:2],
            30,
        )
        changes.wait_for_next(time.monotonic())
        changes.stop()
        assert changes.refusals == []
        there, gone = changes.expected()
        for node_id in cluster.members:
            found = cluster.members[node_id].topics()
            assert there <= found
            assert not gone & found
