"""`firn rewrite` merges from outside, and a broker merges by itself: real processes on one bucket."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.processes import FIRN, Node, wait_until
from tests.support.stores import Store, folder_store

TOPIC = "clicks"
RECORDS = 300


def node_with_small_objects(folder: Path, *, is_merged: bool) -> tuple[Node, Store]:
    store = folder_store(folder / "bucket")
    settings = {
        **store.node_settings,
        "firn.merge.min.age.ms": "0",
        "firn.cut.interval.ms": "-1",
        "remote.log.manager.task.interval.ms": "200",
    }
    node = Node(folder / "node", settings, dict(store.env)).start()
    config = {
        "remote.storage.enable": "true",
        "internal.segment.bytes": "10000",
        "firn.merge.enable": str(is_merged).lower(),
    }
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    for future in admin.create_topics([NewTopic(TOPIC, 1, 1, config=config)]).values():
        future.result(30)
    producer = Producer({"bootstrap.servers": node.bootstrap, "acks": "all", "batch.size": 4000})
    for number in range(RECORDS):
        producer.produce(TOPIC, bytes(1000), key=str(number))
    assert producer.flush(30) == 0
    return node, store


def segments(store: Store) -> list[str]:
    return sorted(key for key in store.objects() if key.endswith(".seg"))


def rewrite(node: Node, store: Store, *more: str) -> tuple[int, dict[str, Any]]:
    words = ["rewrite", "--url", store.url, "--bootstrap-server", node.bootstrap, "--json", *more]
    done = subprocess.run([str(FIRN), *words], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def keys_read(node: Node) -> list[str]:
    consumer = Consumer(
        {"bootstrap.servers": node.bootstrap, "group.id": "reader", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([TOPIC])
    found: list[str] = []
    try:
        while len(found) < RECORDS:
            message = consumer.poll(20)
            assert message is not None, f"only {len(found)} records came"
            assert message.error() is None
            found.append((message.key() or b"").decode())
    finally:
        consumer.close()
    return found


def test_the_command_merges_what_it_planned(tmp_path: Path) -> None:
    node, store = node_with_small_objects(tmp_path, is_merged=False)
    try:
        wait_until("twenty objects", lambda: len(segments(store)) >= 20, 30)
        assert rewrite(node, store)[1]["fewer"] == 0  # they are younger than a day
        code, plan = rewrite(node, store, "--min-age-hours", "0")
        assert code == 0
        assert not plan["executed"]
        assert plan["fewer"] >= 19
        assert len(plan["runs"]) == 1
        code, done = rewrite(node, store, "--min-age-hours", "0", "--execute")
        assert (code, done["merged"], done["failed"]) == (0, 1, [])
        assert rewrite(node, store, "--min-age-hours", "0")[1]["objects"] <= plan["objects"] - 19
        fsck = subprocess.run([str(FIRN), "fsck", store.url], capture_output=True, timeout=60, check=False)
        assert fsck.returncode == 0, fsck.stdout
        assert keys_read(node) == [str(number) for number in range(RECORDS)]
    finally:
        node.stop()


def test_a_node_alone_merges_by_itself(tmp_path: Path) -> None:
    node, store = node_with_small_objects(tmp_path, is_merged=True)
    try:
        wait_until("a merged object", lambda: any(_span(key) >= 8 * 8 for key in segments(store)), 60)
        assert keys_read(node) == [str(number) for number in range(RECORDS)]
    finally:
        node.stop()


def _span(key: str) -> int:
    first, last = key.rsplit("/", 1)[1].split("-")[:2]
    return int(last) - int(first) + 1
