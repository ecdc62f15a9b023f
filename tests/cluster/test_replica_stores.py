"""Storms over replicas of tiered partitions: brokers die and lose their disks, the store is away, leaders and
replicas move. What was acknowledged is read from both tiers, the archive is whole, and replicas are equal.

`make soak-replicas SECONDS=600 SEED=n` for a long one, `NODES=5` for so many brokers.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import conftest
from tests.support.clients import Admin
from tests.support.faults import FaultProxy, fault_proxy
from tests.support.fsck import fsck
from tests.support.harms import complaints
from tests.support.moves import Mover, places, wait_placed
from tests.support.processes import wait_until
from tests.support.quorums import Cluster
from tests.support.replicas import check_equal, states, wait_in_sync
from tests.support.stores import Store, moto_server, new_bucket, versitygw_binary, versitygw_server
from tests.support.storms import BRISK, Writers, check_files, read_partition
from tests.support.tier_storms import TierStorm
from tests.support.tiers import EARLIEST_LOCAL, LATEST_TIERED, offset

SEED = int(os.environ.get("SEED", random.SystemRandom().randrange(1 << 32)))
NODES = int(os.environ.get("NODES", "3"))
CONTROLLER, FIRST_BROKER = 1, 11
TOPIC = "kept"
PARTITIONS = range(3)
PACE_S = 0.005
SEGMENT_BYTES = 1 << 18
BATCHES = {"batch.size": str(SEGMENT_BYTES // 2)}
"""What waits for a leader comes in batches of any size, which is to fit a segment."""


@pytest.fixture
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Store]:
    """moto begins soonest; what is much is too much for it."""
    is_long = request.node.get_closest_marker("soak") is not None
    server = versitygw_server if is_long and versitygw_binary() is not None else moto_server
    with server(tmp_path) as endpoint:
        yield new_bucket(endpoint, "storm")


@pytest.fixture
def proxy(store: Store) -> Iterator[FaultProxy]:
    assert store.endpoint is not None
    with fault_proxy(store.endpoint) as made:
        yield made


@pytest.fixture
def cluster(tmp_path: Path, store: Store, proxy: FaultProxy) -> Iterator[Cluster]:
    """Brokers that hold nothing but their logs, and one controller."""
    print(f"SEED={SEED} NODES={NODES}", flush=True)
    settings = {
        **conftest.BRISK,
        **BRISK,
        **store.through(proxy.endpoint).node_settings,
    }
    brokers = range(FIRST_BROKER, FIRST_BROKER + NODES)
    with Cluster.apart(tmp_path / "nodes", (CONTROLLER,), brokers, settings) as made:
        for member in made.members.values():
            member.environ = store.env
        made.start()
        Admin(made.bootstrap).replicate(
            TOPIC,
            len(PARTITIONS),
            3,
            min_insync_replicas="2",
            remote_storage_enable="true",
            internal_segment_bytes=str(SEGMENT_BYTES),
            local_retention_bytes="1",
            file_delete_delay_ms="1000",
        )
        wait_in_sync(made, TOPIC)
        yield made


def of_leader(cluster: Cluster, index: int, which: int) -> int:
    """An offset of a partition, as its leader tells."""
    brokers = [one for one in cluster.members.values() if one.is_running and not one.is_controller]
    leader = states(brokers[0], TOPIC)[index].leader
    return offset(cluster.members[leader].bootstrap, TOPIC, index, which)


def wait_for_archive(cluster: Cluster) -> int:
    """Until of each partition some is in the archive alone; how many offsets are there."""
    wait_until(
        "an archive of each partition, and what is there alone",
        lambda: all(of_leader(cluster, one, EARLIEST_LOCAL) > 0 for one in PARTITIONS),
        120,
    )
    return sum(of_leader(cluster, one, LATEST_TIERED) + 1 for one in PARTITIONS)


def read_one(cluster: Cluster, writers: Writers, source: random.Random) -> None:
    """A partition from its start, while it is written to."""
    one = source.choice(writers.all)
    acked = {ack.offset: ack.number for ack in list(one.acks) if ack.offset >= 0}
    found = read_partition(cluster.bootstrap, one.place)
    wrong = {at: (number, found.get(at)) for at, number in acked.items() if found.get(at) != number}
    assert not wrong, f"{one.place}: acknowledged, and not read: {len(wrong)}, {list(wrong.items())[:5]}"


def check(cluster: Cluster, store: Store, writers: Writers) -> None:
    """After the storm, while nothing moves; the cluster is stopped by it."""
    wait_in_sync(cluster, TOPIC, 120)
    archived = wait_for_archive(cluster)
    writers.stop()
    told = [f"{writers.check_read(cluster)} records acknowledged and read, {archived} in the archive"]
    wait_in_sync(cluster, TOPIC, 120)
    placed = places(cluster, [TOPIC])
    aside = wait_placed(cluster, placed)
    cluster.stop()
    told.append(f"{sum(check_equal(cluster, TOPIC, PARTITIONS).values())} equal batches on disks")
    check_files(cluster, TOPIC, PARTITIONS)
    assert len(fsck(store)["partitions"]) == len(PARTITIONS)
    print("; ".join(told), f"{aside} replicas set aside", sep="; ", flush=True)
    # what was set aside is named at each start, and a store that is away at each pause
    found = complaints(cluster, "not a replica in use", "calls to the store are suspended")
    assert found == [], "\n".join(found[:20])


def blow(cluster: Cluster, store: Store, proxy: FaultProxy, seconds: float, longest_s: float) -> None:
    source = random.Random(SEED)
    where = [(TOPIC, index) for index in PARTITIONS]
    writers = Writers(cluster, where, PACE_S, dict.fromkeys(where, BATCHES))
    mover = Mover(cluster, [TOPIC], random.Random(SEED + 1))
    with contextlib.ExitStack() as stack:
        stack.enter_context(writers)
        wait_for_archive(cluster)
        stack.enter_context(mover)
        storm = TierStorm(cluster, TOPIC, source, writers, mover, proxy, longest_s)
        storm.longest_sleep_s = 2 * longest_s
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            storm.next()
            if source.random() < 0.4:
                storm.wait()
                read_one(cluster, writers, source)
            time.sleep(source.uniform(0, 3))
        with mover.still():
            check(cluster, store, writers)
    done = ", ".join(f"{count} {what}" for what, count in sorted(mover.done.items()))
    print(
        f"{len(storm.done)} harms, {storm.kills} kills, {storm.wipes} of them wipes,"
        f" {proxy.failed} requests of the store failed; {done}",
        flush=True,
    )


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_a_short_storm_of_stores_loses_nothing(cluster: Cluster, store: Store, proxy: FaultProxy) -> None:
    blow(cluster, store, proxy, 30, 4)


@pytest.mark.soak
def test_a_long_storm_loses_nothing_of_two_tiers(cluster: Cluster, store: Store, proxy: FaultProxy) -> None:
    blow(cluster, store, proxy, float(os.environ.get("SECONDS_OF_STORM", "300")), 15)
