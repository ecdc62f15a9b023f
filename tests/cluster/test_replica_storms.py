"""Storms over real nodes: acknowledged records are read, and replicas are equal, after any kills.

`make soak-replicas SECONDS=600 SEED=n` for a long one, `KILLS=500` for so many kills, `NODES=5` for five
nodes; without either how long partitions stall, too.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.clients import Admin
from tests.support.quorums import Cluster
from tests.support.replicas import check_equal, wait_in_sync
from tests.support.storms import LONG_SLEEP_S, Storm, Writers, active_controller, check_files

SEED = int(os.environ.get("SEED", random.SystemRandom().randrange(1 << 32)))
NODES = int(os.environ.get("NODES", "3"))
PARTITIONS = 3
SAFE, ALONE = "safe", "alone"
"""topics of three replicas, and of one"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    print(f"SEED={SEED} NODES={NODES}", flush=True)
    with Cluster(tmp_path / "nodes", NODES, NODES) as made:
        yield made.start()


def create(cluster: Cluster) -> list[tuple[str, int]]:
    """The topics; where their records go."""
    admin = Admin(cluster.bootstrap)
    admin.replicate(SAFE, PARTITIONS, 3, min_insync_replicas="2", segment_bytes=str(1 << 20))
    admin.create(ALONE, PARTITIONS)
    wait_in_sync(cluster, SAFE)
    return [(topic, index) for topic in (SAFE, ALONE) for index in range(PARTITIONS)]


def check(cluster: Cluster, writers: Writers) -> None:
    """After the storm; the cluster is stopped by it."""
    wait_in_sync(cluster, SAFE, 120)
    writers.stop()
    print(f"{writers.check_read(cluster)} records acknowledged and read", flush=True)
    wait_in_sync(cluster, SAFE, 120)
    cluster.stop()
    print(f"{sum(check_equal(cluster, SAFE, range(PARTITIONS)).values())} equal batches", flush=True)
    check_files(cluster, SAFE, range(PARTITIONS))


KILLS_A_WHOLE = 25
"""Of 500 kills 20 are of the whole cluster."""


def blow(
    cluster: Cluster, is_over: Callable[[Storm], bool], longest_sleep_s: float = 10, kills_a_whole: int = 0
) -> None:
    source = random.Random(SEED)
    with Writers(cluster, create(cluster)) as writers:
        storm = Storm(cluster, SAFE, source)
        storm.longest_sleep_s, storm.kills_a_whole = longest_sleep_s, kills_a_whole
        while not is_over(storm):
            storm.next()
            if source.random() < 0.4:
                wait_in_sync(cluster, SAFE, 120)
            time.sleep(source.uniform(0, 3))
        check(cluster, writers)
    print(f"{len(storm.done)} harms, {storm.kills} kills, {storm.wholes} times everybody", flush=True)


def test_a_short_storm_loses_nothing(cluster: Cluster) -> None:
    until_s = time.monotonic() + 45
    blow(cluster, lambda _: time.monotonic() > until_s)


@pytest.mark.soak
def test_a_long_storm_loses_nothing(cluster: Cluster) -> None:
    kills = int(os.environ.get("KILLS", "0"))
    until_s = time.monotonic() + float(os.environ.get("SECONDS_OF_STORM", "300"))
    is_over = (lambda storm: storm.kills >= kills) if kills else (lambda _: time.monotonic() > until_s)
    blow(cluster, is_over, LONG_SLEEP_S, KILLS_A_WHOLE if kills else 0)


@pytest.mark.soak
def test_partitions_stall_for_a_bounded_time(cluster: Cluster) -> None:
    """`kill -9` of a broker, and of the active controller with its broker, in turn."""
    rounds = int(os.environ.get("ROUNDS", "5"))
    places = [one for one in create(cluster) if one[0] == SAFE]
    with Writers(cluster, places, 0.01) as writers:
        for n in range(2 * rounds):
            wait_in_sync(cluster, SAFE)
            time.sleep(3)
            writers.wait_for_acks(30, SAFE)
            controller = active_controller(cluster)
            others = [one for one in cluster.members if one != controller]
            victim = others[n // 2 % len(others)] if n % 2 else controller
            what = "broker" if n % 2 else "active controller"
            before_s, at = time.monotonic(), time.strftime("%X")
            cluster.members[victim].kill()
            writers.wait_for_acks(60, SAFE)
            until_s = time.monotonic() + 2
            time.sleep(2)
            worst = writers.worst_since(before_s, until_s, SAFE)
            told = ", ".join(f"{one.place[1]}: {one.seconds * 1000:.0f} ms" for one in worst)
            print(f"kill -9 of {what} {victim} at {at}: {told}", flush=True)
            cluster.members[victim].start()
        check(cluster, writers)


@pytest.mark.soak
def test_rolling_restarts_stall_no_client_for_long(cluster: Cluster) -> None:
    places = [one for one in create(cluster) if one[0] == SAFE]
    with Writers(cluster, places, 0.01) as writers:
        time.sleep(2)
        for n in range(3):
            for node_id, member in cluster.members.items():
                wait_in_sync(cluster, SAFE)
                time.sleep(2)
                before_s = time.monotonic()
                member.leave()
                left_s = time.monotonic()
                member.start()
                started_s = time.monotonic()
                wait_in_sync(cluster, SAFE)
                worst = writers.worst_since(before_s, time.monotonic(), SAFE)
                told = ", ".join(
                    f"{one.place[1]}: {one.seconds * 1000:.0f} ms (from {one.began_s - before_s:.2f} s)"
                    for one in worst
                )
                print(
                    f"round {n + 1}, node {node_id}, {left_s - before_s:.1f} s to leave,"
                    f" {started_s - left_s:.1f} s to start: {told}",
                    flush=True,
                )
        check(cluster, writers)
