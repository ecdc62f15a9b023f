"""Three nodes of a restored cluster load their tails, and are killed in the middle: the leader, all of them,
or all with one replica's disk lost. What was in the cut is there, once, on all of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Consumer, TopicPartition

from service.base.errors import RequestError, StorageError
from service.client.admin import Cluster as Admins
from service.inspect.restore_status import restore_status
from service.remote.format.cut_codec import decode_cuts, open_cut
from tests.cluster.test_all_nodes_killed import PARTITIONS, read, write
from tests.cluster.test_frozen_sources import GAP, Hold, Step, asks, firn
from tests.conftest import BRISK
from tests.support.clients import Admin
from tests.support.faults import fault_proxy
from tests.support.processes import wait_until
from tests.support.quorums import Cluster, Member
from tests.support.replicas import check_equal, wait_in_sync
from tests.support.stores import Store

RECORDS: Final = 4_000
TOPIC: Final = "one"
SETTINGS: Final = {
    **BRISK,
    "firn.cut.interval.ms": "1000",
    "firn.cut.hold.max.ms": "1000",
    "offsets.topic.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "0",
}
MOMENTS: Final = {
    "tails are looked for": ("/cut/", 1),
    "a footer is read": ("/tail/", 1),
    "records are read": ("/tail/", 5),
}
"""part of a key, and which of the requests for such keys"""


def nth(part: str, number: int) -> Step:
    """Return whether it is the request of this number for a key with this part."""
    wanted, numbers = asks("GET", part), count(1)
    return lambda seen: wanted(seen) and next(numbers) == number


def is_in_a_cut(store: Store) -> bool:
    """Return whether the newest complete cut has all records, and the group's offset."""
    try:
        ref = decode_cuts(store.read("CUT")).exact
        rows = () if ref is None else open_cut(store.read(ref.key), ref).topics.values()
    except Exception:  # there is none yet: boto3 has no class for it
        return False
    ends = sorted(sum(row.end for row in one) for one in rows)
    return len(ends) == 2 and ends[0] >= 1 and ends[1] == RECORDS


def is_served(cluster: Cluster) -> bool:
    try:
        with Admins(cluster.bootstrap) as admins, ThreadPoolExecutor(3) as pool:
            return restore_status(admins, pool).is_served
    except (RequestError, StorageError, OSError):
        return False


def lost(folder: Path, store: Store) -> None:
    """Fill a bucket by a cluster of which nothing else is left."""
    with Cluster(folder, settings={**SETTINGS, **store.node_settings}, environ=store.env) as source:
        source.start()
        Admin(source.bootstrap).replicate(TOPIC, PARTITIONS, 3, min_insync_replicas="2")
        write(source, TOPIC, 0, RECORDS)
        consumer = Consumer({"bootstrap.servers": source.bootstrap, "group.id": "g"})
        consumer.commit(offsets=[TopicPartition(TOPIC, 0, 17)], asynchronous=False)
        consumer.close()
        wait_until("a cut of all", lambda: is_in_a_cut(store), 90)


def restored(folder: Path, store: Store, settings: dict[str, str]) -> Cluster:
    """Take the prefix over and format three nodes."""
    file = folder.parent / "restore.checkpoint"
    words = ("--take-over", "--force", "--brokers", "1,2,3", "-o", str(file))
    said = firn(store, "restore", "apply", "--from", store.url, *words)
    cluster_id = said.rpartition(" -t ")[2].split()[0]
    heir = Cluster(folder, settings={**SETTINGS, **settings}, environ=store.env)
    for member in heir.members.values():
        shutil.rmtree(member.data)
        order = ["-t", cluster_id, "-c", str(member.properties), "--restore", str(file)]
        firn(store, "format", *order, "--initial-controllers", heir.plan.initial_controllers)
    return heir


def lose_replicas(member: Member) -> None:
    for path in member.data.iterdir():
        if path.is_dir() and path.name != "__cluster_metadata-0":
            shutil.rmtree(path)


def loading(heir: Cluster) -> Member:
    """Return a node that loads."""
    found = [one for one in heir.members.values() if "loading offsets" in one.said()]
    return found[0] if found else next(iter(heir.members.values()))


def killed(heir: Cluster, who: str) -> None:
    """Kill the leader, or all, and start them again; of one replica's disk nothing is left."""
    leader = loading(heir)
    chosen = [leader] if who == "leader" else list(heir.members.values())
    for member in chosen:
        member.kill()
    if who == "all, and a disk":
        lose_replicas(leader)
    for member in chosen:
        member.launch()


@pytest.mark.thorough
@pytest.mark.parametrize("who", ["leader", "all", "all, and a disk"])
@pytest.mark.parametrize("moment", [*MOMENTS, "it is loaded"])
def test_a_restored_cluster_that_is_killed_while_it_loads_has_all_of_the_cut(
    who: str, moment: str, tmp_path: Path, moto_store: Store
) -> None:
    lost(tmp_path / "source", moto_store)
    with fault_proxy(moto_store.endpoint or "") as proxy:
        hold = Hold(proxy, nth(*MOMENTS.get(moment, ("no such key", 1))))
        heir = restored(tmp_path / "heir", moto_store, dict(moto_store.through(proxy.endpoint).node_settings))
        hold.is_wanted = True
        with heir:
            for member in heir.members.values():
                member.launch()
            is_there: Callable[[], bool] = hold.is_held.is_set
            if moment not in MOMENTS:
                is_there = lambda: any("its tail is loaded" in one.said() for one in heir.members.values())  # noqa: E731
            wait_until(moment, is_there, 90)
            killed(heir, who)
            hold.may_go.set()
            wait_until(
                "all nodes to serve", lambda: all(one.has_started() for one in heir.members.values()), 90
            )
            wait_until("all of it to be served", lambda: is_served(heir), 120)
            read(heir, TOPIC, RECORDS)
            consumer = Consumer({"bootstrap.servers": heir.bootstrap, "group.id": "g"})
            (place,) = consumer.committed([TopicPartition(TOPIC, 0)], 60)
            ends = [
                consumer.get_watermark_offsets(TopicPartition(TOPIC, one), 30) for one in range(PARTITIONS)
            ]
            consumer.close()
            assert place.offset == 17
            assert ends == [(0, RECORDS // PARTITIONS + GAP)] * PARTITIONS
            wait_in_sync(heir, TOPIC)
            check_equal(heir, TOPIC, range(PARTITIONS))
