"""Replicas that carry an order of erasure out late, again, or for the first time: none brings a key back."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from service.client.admin import ChangingCluster
from tests.cluster.test_erasures import (
    PARTITIONS,
    RECORDS,
    SETTINGS,
    TOPIC,
    data,
    others,
    read,
    start,
    status,
    wait_for,
    with_keys,
    write,
)
from tests.support.clients import Admin
from tests.support.processes import wait_until
from tests.support.quorums import Cluster
from tests.support.replicas import wait_in_sync
from tests.support.stores import Store

LONG_GRACE: Final = "600000"
"""The order stays in the metadata for so long after it is done."""

pytestmark = pytest.mark.versitygw


@pytest.fixture
def cluster(tmp_path: Path, versitygw_store: Store) -> Iterator[Cluster]:
    settings = {**SETTINGS, **versitygw_store.node_settings, "firn.remote.object.grace.ms": LONG_GRACE}
    with Cluster(tmp_path / "nodes", settings=settings, environ=versitygw_store.env) as made:
        made.start()
        yield made


def has_no_keys(store: Store, folder: Path) -> bool:
    return not [path for path in with_keys(store, [folder]) if path.startswith("/")]


def test_a_replica_that_was_away_erases_late_and_its_disk_from_before_once_more(
    cluster: Cluster, versitygw_store: Store, tmp_path: Path
) -> None:
    Admin(cluster.bootstrap).replicate(TOPIC, PARTITIONS, 3, internal_segment_bytes="65536")
    wait_in_sync(cluster, TOPIC)
    write(cluster, 0, RECORDS)
    wait_in_sync(cluster, TOPIC)
    away = cluster.members[3]
    away.stop()
    shutil.copytree(away.data, tmp_path / "backup")
    order = start(cluster)
    present = [one.data for one in cluster.members.values() if one is not away]
    for folder in present:
        wait_until(f"{folder} to be clean", partial(has_no_keys, versitygw_store, folder), 60)
    assert not has_no_keys(versitygw_store, away.data)
    found = status(cluster, order)
    assert found is not None
    assert found["state"] != "done"
    away.start()
    wait_for(cluster, order, gone=False)
    wait_until("the late replica to be clean", lambda: has_no_keys(versitygw_store, away.data), 60)
    away.stop()
    for path in (tmp_path / "backup").iterdir():
        if path.name in ("__cluster_metadata-0", "meta.properties", ".lock"):
            continue
        there = away.data / path.name
        shutil.rmtree(there, ignore_errors=True) if there.is_dir() else there.unlink(missing_ok=True)
        shutil.copytree(path, there) if path.is_dir() else shutil.copy2(path, there)
    assert not has_no_keys(versitygw_store, away.data), "its disk is that of before"
    away.start()
    wait_in_sync(cluster, TOPIC)
    wait_until("the disk to be clean again", lambda: has_no_keys(versitygw_store, away.data), 60)
    assert read(cluster.bootstrap, [RECORDS // PARTITIONS] * PARTITIONS) == others(RECORDS)
    assert all(has_no_keys(versitygw_store, folder) for folder in data(cluster))


def test_files_of_a_former_replica_that_is_assigned_again_do_not_bring_a_key_back(
    cluster: Cluster, versitygw_store: Store
) -> None:
    Admin(cluster.bootstrap).replicate(TOPIC, PARTITIONS, 2, internal_segment_bytes="65536")
    wait_in_sync(cluster, TOPIC)
    write(cluster, 0, RECORDS)
    wait_in_sync(cluster, TOPIC)
    with ChangingCluster(cluster.bootstrap) as changing:
        before = {
            (TOPIC, number): tuple(one.replicas)
            for number, one in enumerate(changing.partitions(TOPIC, 0, PARTITIONS).topic.partitions)
        }
    former = before[TOPIC, 0][1]
    away = cluster.members[former]
    others_of = tuple(node for node in cluster.members if node != former)
    moved = {place: replicas for place, replicas in before.items() if former in replicas}
    away.stop()
    alive = ",".join(cluster.members[node].bootstrap for node in others_of)

    def has_moved() -> bool:
        with ChangingCluster(alive) as changing:
            found = changing.partitions(TOPIC, 0, PARTITIONS).topic.partitions
            return all({*one.isr} == {*one.replicas} == {*others_of} for one in found)

    with ChangingCluster(alive) as changing:
        assert changing.reassign(dict.fromkeys(before, others_of)) == {}
    wait_until("the partitions to be elsewhere", has_moved, 60)
    start(cluster)
    for node in others_of:
        folder = cluster.members[node].data
        wait_until(f"{folder} to be clean", partial(has_no_keys, versitygw_store, folder), 60)
    assert not has_no_keys(versitygw_store, away.data), "its files are still there"
    with ChangingCluster(alive) as changing:
        assert changing.reassign(moved) == {}
    away.start()
    wait_in_sync(cluster, TOPIC)
    wait_until("the former replica to be clean", lambda: has_no_keys(versitygw_store, away.data), 60)
    assert read(cluster.bootstrap, [RECORDS // PARTITIONS] * PARTITIONS) == others(RECORDS)
