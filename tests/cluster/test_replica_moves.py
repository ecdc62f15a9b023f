"""Storms while replicas move: what was acknowledged is read, replicas are equal and where they should be,
whoever died in the midst of a reassignment.

`make soak-replicas SECONDS=600 SEED=n` for a long one, `NODES=5` for five nodes, of which up to four have a
partition; of three nodes two or all have one.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.clients import Admin
from tests.support.harms import complaints
from tests.support.moves import Mover, places, wait_placed
from tests.support.quorums import Cluster
from tests.support.replicas import check_equal, states, wait_in_sync
from tests.support.storms import BRISK, LONG_SLEEP_S, Storm, Writer, Writers, check_files

SEED = int(os.environ.get("SEED", random.SystemRandom().randrange(1 << 32)))
NODES = int(os.environ.get("NODES", "3"))
FIRST, MOST_PARTITIONS = 3, 8
"""partitions at first, and later"""
PACE_S = 0.02
TOPICS = ("wide", "busy")


@pytest.fixture
def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    print(f"SEED={SEED} NODES={NODES}", flush=True)
    is_short = request.node.get_closest_marker("soak") is None
    settings = BRISK if is_short or random.Random(SEED).random() < 0.5 else {}
    with Cluster(tmp_path / "nodes", NODES, NODES, settings) as made:
        yield made.start()


def create(cluster: Cluster) -> list[tuple[str, int]]:
    for topic in TOPICS:
        Admin(cluster.bootstrap).replicate(
            topic,
            FIRST,
            3,
            min_insync_replicas="2",
            segment_bytes=str(1 << 20),
            file_delete_delay_ms="1000",
        )
        wait_in_sync(cluster, topic)
    return [(topic, index) for topic in TOPICS for index in range(FIRST)]


def wait(cluster: Cluster) -> None:
    for topic in TOPICS:
        wait_in_sync(cluster, topic, 120)


def grow(cluster: Cluster, mover: Mover, writers: Writers, topic: str) -> None:
    """A partition more, which is written to and moved as the others are; while all are in sync."""
    count = len(states(next(iter(cluster.members.values())), topic))
    if count < MOST_PARTITIONS:
        mover.grow(topic, count + 1)
        wait(cluster)
        writers.all.append(Writer(cluster.bootstrap, (topic, count), PACE_S))


def check(cluster: Cluster, writers: Writers) -> None:
    """After the storm, while nothing moves; the cluster is stopped by it."""
    wait(cluster)
    writers.stop()
    told = [f"{writers.check_read(cluster)} records acknowledged and read"]
    wait(cluster)
    placed = places(cluster, TOPICS)
    aside = wait_placed(cluster, placed)
    cluster.stop()
    for topic in TOPICS:
        ours = [index for name, index in placed if name == topic]
        told.append(f"{sum(check_equal(cluster, topic, ours).values())} equal batches of {topic}")
        check_files(cluster, topic, ours)
    wait_placed(cluster, placed, 0)
    print("; ".join(told), f"{aside} replicas set aside", sep="; ", flush=True)
    # what was set aside is named at each start
    assert (found := complaints(cluster, "not a replica in use")) == [], "\n".join(found[:20])


def blow(cluster: Cluster, seconds: float, longest_sleep_s: float) -> None:
    source, until_s = random.Random(SEED), time.monotonic() + seconds
    mover = Mover(cluster, TOPICS, random.Random(SEED + 1), most=4)
    with Writers(cluster, create(cluster), PACE_S) as writers, mover:
        storm = Storm(cluster, TOPICS[0], source)
        storm.longest_sleep_s = longest_sleep_s
        while time.monotonic() < until_s:
            storm.next()
            if source.random() < 0.4:
                with mover.still():
                    wait(cluster)
                    if source.random() < 0.5:
                        grow(cluster, mover, writers, source.choice(TOPICS))
            time.sleep(source.uniform(0, 3))
        with mover.still():
            check(cluster, writers)
    done = ", ".join(f"{count} {what}" for what, count in sorted(mover.done.items()))
    print(f"{len(storm.done)} harms, {storm.kills} kills; {done}", flush=True)


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_a_short_storm_of_moves_loses_nothing(cluster: Cluster) -> None:
    blow(cluster, 20, 10)


@pytest.mark.soak
def test_a_long_storm_loses_nothing_while_replicas_move(cluster: Cluster) -> None:
    blow(cluster, float(os.environ.get("SECONDS_OF_STORM", "300")), LONG_SLEEP_S)
