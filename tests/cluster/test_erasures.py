"""Keys that are erased on three real nodes with an S3 gateway: no object, tail or local file has their bytes
afterwards, everything else is there at its offset, and no restore brings one back. Nodes are killed and the
store fails in between."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from service.remote.format.cut_codec import decode_cuts, open_cut
from tests.cluster.test_frozen_sources import firn as firn_with
from tests.conftest import BRISK
from tests.support.clients import Admin
from tests.support.faults import Fault, FaultProxy, Seen, fault_proxy
from tests.support.firn_commands import run_here
from tests.support.fsck import fsck
from tests.support.processes import FIRN, wait_until
from tests.support.quorums import Cluster
from tests.support.replicas import wait_in_sync
from tests.support.stores import Store

TOPIC: Final = "people"
PARTITIONS: Final = 2
RECORDS: Final = 4_000
KEYS: Final = 400
ERASED: Final = ("secret-person-0007", "secret-person-0123")
GRACE_MS: Final = 4_000
SETTINGS: Final = {
    **BRISK,
    "firn.cut.interval.ms": "1000",
    "firn.cut.hold.max.ms": "1000",
    "firn.tail.wait.ms": "0",
    "firn.remote.object.grace.ms": str(GRACE_MS),
    "log.segment.delete.delay.ms": "3600000",  # an erasure does not wait for it
    "offsets.topic.num.partitions": "1",
}

pytestmark = pytest.mark.versitygw


@pytest.fixture
def proxy(versitygw_store: Store) -> Iterator[FaultProxy]:
    with fault_proxy(versitygw_store.endpoint or "") as made:
        yield made


@pytest.fixture
def cluster(tmp_path: Path, versitygw_store: Store, proxy: FaultProxy) -> Iterator[Cluster]:
    remote = versitygw_store.through(proxy.endpoint).node_settings
    with Cluster(tmp_path / "nodes", settings={**SETTINGS, **remote}, environ=versitygw_store.env) as made:
        made.start()
        Admin(made.bootstrap).replicate(
            TOPIC,
            PARTITIONS,
            3,
            min_insync_replicas="2",
            remote_storage_enable="true",
            internal_segment_bytes="65536",
            local_retention_bytes="1",
        )
        wait_in_sync(made, TOPIC)
        yield made


def key_of(number: int) -> str:
    return f"secret-person-{number % KEYS:04d}"


def write(cluster: Cluster, first: int, count: int) -> None:
    failed: list[object] = []
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "enable.idempotence": True,  # retries keep the order
            "linger.ms": 5,
            "batch.size": 8192,
        }
    )
    for number in range(first, first + count):
        producer.produce(
            TOPIC, b"%08d " % number + b"v" * 200, key=key_of(number), partition=number % PARTITIONS,
            on_delivery=lambda error, _: failed.append(error) if error is not None else None,
        )  # fmt: skip
    assert producer.flush(90) == 0
    assert not failed, failed[:3]


def read(bootstrap: str, ends: list[int]) -> list[dict[int, tuple[str, int]]]:
    """Key and number of each record by offset, of each partition, up to its end."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "enable.partition.eof": True})
    found: list[dict[int, tuple[str, int]]] = [{} for _ in ends]
    at_end: set[int] = set()
    try:
        consumer.assign([TopicPartition(TOPIC, one, 0) for one in range(len(ends))])

        def all_read() -> bool:
            for one in consumer.consume(1000, 0.5):
                if one.error() is not None:
                    at_end.add(one.partition())
                    continue
                found[one.partition()][one.offset()] = ((one.key() or b"").decode(), int(one.value()[:8]))
            return len(at_end) == len(ends)

        wait_until("all records", all_read, 90)
    finally:
        consumer.close()
    return found


def others(count: int) -> list[dict[int, tuple[str, int]]]:
    """What stays of the first `count` records, at their offsets."""
    found: list[dict[int, tuple[str, int]]] = [{} for _ in range(PARTITIONS)]
    for number in range(count):
        if key_of(number) not in ERASED:
            found[number % PARTITIONS][number // PARTITIONS] = (key_of(number), number)
    return found


def firn(cluster: Cluster, *words: str, keys: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [str(FIRN), "erase", *words, "--bootstrap-server", cluster.bootstrap, "--json"]
    text = "".join(f"{key}\n" for key in keys)
    return subprocess.run(command, capture_output=True, text=True, input=text, timeout=300, check=False)


def start(cluster: Cluster) -> str:
    done = firn(cluster, "start", "--topics", TOPIC, "--keys-file", "-", "--execute", keys=ERASED)
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout)["id"])


def status(cluster: Cluster, order: str) -> dict[str, Any] | None:
    """What is told of an order; None once it is gone."""
    done = run_here("erase", "status", order, "--bootstrap-server", cluster.bootstrap, "--json")
    if "it is gone" in done.stderr:
        return None
    found: dict[str, Any] = json.loads(done.stdout) if done.stdout else {"state": done.stderr}
    return found


def wait_for(cluster: Cluster, order: str, *, gone: bool, seconds: float = 240) -> None:
    seen: list[object] = []

    def is_there() -> bool:
        found = status(cluster, order)
        seen[:] = [found]
        return found is None or (not gone and found.get("state") == "done")

    try:
        wait_until(f"the order to be {'gone' if gone else 'done'}", is_there, seconds, 0.2)
    except AssertionError as e:
        raise AssertionError(f"{e}: {json.dumps(seen, indent=1)[:4000]}") from e


def with_keys(store: Store, folders: list[Path]) -> list[str]:
    """Objects and local files that have the bytes of an erased key."""
    needles = [key.encode() for key in ERASED]
    found, unread = [], []
    for key in store.objects():
        try:
            found += [key] if any(one in store.read(key) for one in needles) else []
        except Exception:  # deleted since it was listed: boto3 has no class for it
            unread.append(key)
    assert not {*unread} & {*store.objects()}, "each object is read"
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file() and any(one in path.read_bytes() for one in needles):
                found.append(str(path))
    return found


def data(cluster: Cluster) -> list[Path]:
    return [member.data for member in cluster.members.values()]


def is_archived(store: Store) -> bool:
    return sum(key.endswith(".seg") for key in store.objects()) >= 2 * PARTITIONS


def test_no_bytes_of_an_erased_key_are_left_and_everything_else_is_where_it_was(
    cluster: Cluster, versitygw_store: Store
) -> None:
    write(cluster, 0, RECORDS)
    wait_until("segments in the bucket", lambda: is_archived(versitygw_store), 60)
    assert with_keys(versitygw_store, data(cluster)), "else this test shows nothing"
    order = start(cluster)
    wait_for(cluster, order, gone=False)
    report = firn(cluster, "verify", order)
    assert report.returncode == 0, report.stdout + report.stderr
    assert json.loads(report.stdout)["records_of_the_keys"] == 0
    wait_for(cluster, order, gone=True)
    assert with_keys(versitygw_store, data(cluster)) == []
    assert read(cluster.bootstrap, [RECORDS // PARTITIONS] * PARTITIONS) == others(RECORDS)
    fsck(versitygw_store)
    for member in cluster.members.values():
        member.stop()
    assert with_keys(versitygw_store, data(cluster)) == []


def flaky(seen: Seen) -> Fault:
    return Fault.FAIL if seen.number % 4 == 0 else Fault.PASS


def test_an_order_goes_on_when_nodes_die_and_the_store_fails(
    cluster: Cluster, versitygw_store: Store, proxy: FaultProxy
) -> None:
    write(cluster, 0, RECORDS)
    wait_until("segments in the bucket", lambda: is_archived(versitygw_store), 60)
    order = start(cluster)
    for member in cluster.members.values():
        proxy.plan = flaky
        member.kill()
        member.start()
        proxy.plan = None
    wait_in_sync(cluster, TOPIC)
    wait_for(cluster, order, gone=True)
    assert with_keys(versitygw_store, data(cluster)) == []
    assert read(cluster.bootstrap, [RECORDS // PARTITIONS] * PARTITIONS) == others(RECORDS)
    fsck(versitygw_store)


def cut_with_all(store: Store) -> int:
    """The number of the newest complete and exact cut, 0 unless it has all records."""
    if "CUT" not in store.objects():
        return 0
    ref = decode_cuts(store.read("CUT")).exact
    topics = () if ref is None else open_cut(store.read(ref.key), ref).topics.values()
    is_all = any(sum(row.end for row in rows) == RECORDS for rows in topics)
    return ref.cut if ref is not None and is_all else 0


def test_a_restore_from_a_cut_of_before_does_not_bring_a_key_back(
    cluster: Cluster, versitygw_store: Store, tmp_path: Path
) -> None:
    write(cluster, 0, RECORDS)
    wait_until("segments in the bucket", lambda: is_archived(versitygw_store), 60)
    wait_until("a cut of all that", lambda: cut_with_all(versitygw_store) > 0, 60)
    cut = cut_with_all(versitygw_store)
    order = start(cluster)
    for member in cluster.members.values():
        member.kill()
    heir = restored(tmp_path / "heir", versitygw_store, cut)
    with heir:
        for member in heir.members.values():
            member.launch()
        wait_until("all nodes to serve", lambda: all(one.has_started() for one in heir.members.values()), 90)
        shown = read(heir.bootstrap, [0] * PARTITIONS)
        assert not [one for part in shown for one, _ in part.values() if one in ERASED]
        wait_for(heir, order, gone=True)
        assert with_keys(versitygw_store, data(heir)) == []
        assert read(heir.bootstrap, [0] * PARTITIONS) == others(RECORDS)


def restored(folder: Path, store: Store, cut: int) -> Cluster:
    """Take the prefix over from a cut, and format three nodes."""
    file = folder.parent / "restore.checkpoint"
    words = ("--take-over", "--force", "--cut", str(cut), "--brokers", "1,2,3", "-o", str(file))
    said = firn_with(store, "restore", "apply", "--from", store.url, *words)
    cluster_id = said.rpartition(" -t ")[2].split()[0]
    heir = Cluster(folder, settings={**SETTINGS, **store.node_settings}, environ=store.env)
    for member in heir.members.values():
        shutil.rmtree(member.data)
        options = ["-t", cluster_id, "-c", str(member.properties), "--restore", str(file)]
        firn_with(store, "format", *options, "--initial-controllers", heir.plan.initial_controllers)
    return heir
