"""`firn pipeline erase` on a real node and an S3 gateway. The node may not read the objects that were there
before the order, so whatever is erased from the bucket was erased by the job."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import UUID

import pytest
from confluent_kafka import Producer

from service.cli.main import main
from service.remote.format.keys import HeadKey
from service.remote.reading.object_reader import open_published
from service.remote.stores.obstore_store import open_store
from tests.conftest import BRISK
from tests.spark.filling import consume
from tests.spark.killing import Job
from tests.support.clients import Admin
from tests.support.faults import Fault, FaultProxy, Seen, fault_proxy
from tests.support.firn_commands import run_here
from tests.support.fsck import fsck
from tests.support.processes import FIRN, Node, wait_until
from tests.support.stores import CREDENTIALS, Store
from tests.support.tiers import settle

TOPIC: Final = "people"
PARTITIONS: Final = 3
SEGMENTS: Final = 9
PER_SEGMENT: Final = 40
RECORDS: Final = SEGMENTS * PER_SEGMENT
"""Of each partition. Every second segment has records of erased keys; the last one, which is open, none."""
ERASED: Final = ("secret-person-0007", "secret-person-0123")
SETTINGS: Final = {
    **BRISK,
    "firn.cut.interval.ms": "1000",
    "firn.cut.hold.max.ms": "1000",
    "firn.tail.wait.ms": "0",
    "firn.remote.object.grace.ms": "2000",
    "log.segment.delete.delay.ms": "200",
}

pytestmark = [pytest.mark.versitygw, pytest.mark.timeout(600)]


def key_of(number: int) -> str:
    if number // PER_SEGMENT % 2 and number % PER_SEGMENT in (7, 23):
        return ERASED[number % 2]
    return f"person-{number % 11:04d}"


class Desk(NamedTuple):
    node: Node
    store: Store
    proxy: FaultProxy

    def fill(self) -> None:
        Admin(self.node.bootstrap).create(
            TOPIC, PARTITIONS, remote_storage_enable="true", internal_segment_bytes="40000",
            segment_bytes="1048576", local_retention_bytes="1",
        )  # fmt: skip
        producer = Producer(
            {"bootstrap.servers": self.node.bootstrap, "linger.ms": 1000, "batch.size": 1 << 20}
        )
        for first in range(0, RECORDS, PER_SEGMENT):
            for number in range(first, first + PER_SEGMENT):
                for partition in range(PARTITIONS):
                    producer.produce(TOPIC, b"v" * 900, key_of(number), partition)
            assert producer.flush(30) == 0  # one batch for each partition, and so a segment
        for partition in range(PARTITIONS):
            settle(self.node.bootstrap, TOPIC, partition)

    def hide(self) -> None:
        """Have the store deny the node all objects that there are now."""
        denied = [key for key in self.store.objects() if key.endswith(".seg")]

        def plan(seen: Seen) -> Fault:
            is_denied = seen.method == "GET" and any(seen.path.endswith(key) for key in denied)
            return Fault.DENIED if is_denied else Fault.PASS

        self.proxy.plan = plan

    def firn(self, *words: str, keys: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        command = [str(FIRN), "erase", *words, "--bootstrap-server", self.node.bootstrap, "--json"]
        text = "".join(f"{key}\n" for key in keys)
        return subprocess.run(command, capture_output=True, text=True, input=text, timeout=120, check=False)

    def start(self) -> str:
        done = self.firn("start", "--topics", TOPIC, "--keys-file", "-", "--execute", keys=ERASED)
        assert done.returncode == 0, done.stderr
        return str(json.loads(done.stdout)["id"])

    def job(self, order: str) -> list[str]:
        words = [
            "pipeline",
            "erase",
            self.store.url,
            order,
            "--bootstrap-server",
            self.node.bootstrap,
            "--json",
        ]
        return [*words, "--endpoint", self.store.endpoint or ""]

    def wait_until_gone(self, order: str) -> None:
        words = ("erase", "status", order, "--bootstrap-server", self.node.bootstrap)
        wait_until("the order to be gone", lambda: "it is gone" in run_here(*words).stderr, 120, 0.2)

    def with_keys(self) -> list[str]:
        """Objects and local files with the bytes of an erased key."""
        needles = [key.encode() for key in ERASED]
        objects, unread = [], []
        for key in self.store.objects():
            try:
                objects += [key] if any(one in self.store.read(key) for one in needles) else []
            except Exception:  # deleted since it was listed: boto3 has no class for it
                unread.append(key)
        assert not {*unread} & {*self.store.objects()}, "each object is read"
        files = [
            str(path)
            for path in self.node.data.rglob("*")
            if path.is_file() and any(one in path.read_bytes() for one in needles)
        ]
        return objects + files

    def rewritten(self) -> list[int]:
        """Number of objects of a later generation in each partition's chain."""
        from service.base.world import system_world

        store = open_store(
            self.store.url, world=system_world(), endpoint=self.store.endpoint,
            access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
            secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
        )  # fmt: skip
        (topic_id,) = {key.split("/")[1] for key in self.store.objects() if key.endswith("/HEAD")}
        found = []
        for partition in range(PARTITIONS):
            chain = open_published(store, HeadKey(UUID(topic_id), partition))
            assert chain is not None
            found.append(sum(one.generation > 0 for one in chain.manifest.entries))
        return found

    def check_the_others(self) -> None:
        rows = consume(self.node.bootstrap, TOPIC, dict.fromkeys(range(PARTITIONS), RECORDS))
        assert [(row.partition, row.offset, row.key) for row in rows] == [
            (partition, number, key_of(number).encode())
            for partition in range(PARTITIONS)
            for number in range(RECORDS)
            if key_of(number) not in ERASED
        ]


@pytest.fixture
def desk(tmp_path: Path, versitygw_store: Store) -> Iterator[Desk]:
    with fault_proxy(versitygw_store.endpoint or "") as proxy:
        remote = versitygw_store.through(proxy.endpoint).node_settings
        node = Node(tmp_path / "node", {**SETTINGS, **remote}, versitygw_store.env).start()
        try:
            desk = Desk(node, versitygw_store, proxy)
            desk.fill()
            assert desk.with_keys(), "else this test shows nothing"
            desk.hide()
            yield desk
        finally:
            node.close()


def test_a_job_erases_from_the_bucket_and_the_rest_is_where_it_was(
    spark: Any, desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    order = desk.start()
    assert main([*desk.job(order), "--dry-run"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["partitions"], plan["objects_that_may_have_records"]) == (
        PARTITIONS,
        PARTITIONS * (SEGMENTS // 2),
    )
    assert desk.rewritten() == [0] * PARTITIONS
    assert main(desk.job(order)) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["clean"], found["remains"]) == (PARTITIONS, [])
    assert found["objects_before"] == found["objects_with_records"] == PARTITIONS * (SEGMENTS // 2)
    assert desk.rewritten() == [SEGMENTS // 2] * PARTITIONS
    assert main(desk.job(order)) == 0, "and again"
    assert json.loads(capsys.readouterr().out)["rewrites"] == 0
    desk.proxy.plan = None
    desk.wait_until_gone(order)
    assert desk.with_keys() == []
    desk.check_the_others()
    fsck(desk.store)
    assert main(desk.job(order)) == 1
    assert "it is gone, or never was" in capsys.readouterr().err


@pytest.mark.thorough
def test_a_job_killed_midway_is_finished_by_the_next(
    spark: Any, desk: Desk, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What it had begun ends with the leader epoch: the node is started anew."""
    order = desk.start()
    command = [sys.executable, "-m", "service.cli.main", *desk.job(order), "--master", "local[2]"]
    job = Job(command, tmp_path, tmp_path / "log", CREDENTIALS)
    try:
        job.begin().wait_for("an object is published", lambda: sum(desk.rewritten()) > 0)
    finally:
        job.kill()
    before = desk.rewritten()
    assert 0 < sum(before) < PARTITIONS * (SEGMENTS // 2), "it was not killed midway"
    desk.node.kill()
    desk.node.start()
    assert main(desk.job(order)) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["clean"], found["remains"]) == (PARTITIONS, [])
    assert found["objects_before"] == PARTITIONS * (SEGMENTS // 2) - sum(before)
    assert desk.rewritten() == [SEGMENTS // 2] * PARTITIONS
    desk.proxy.plan = None
    desk.wait_until_gone(order)
    assert desk.with_keys() == []
    desk.check_the_others()
    fsck(desk.store)
