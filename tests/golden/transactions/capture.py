"""Writes ``kafka-data/`` and ``expected.json``: what Apache Kafka 4.3.1 writes and answers of transactions.

    python -m tests.golden.transactions.capture

Of a node with one partition of ``__transaction_state`` and of ``__consumer_offsets``, stopped cleanly while
transactions are open. ``flights-0`` has three segments: committed, aborted, interleaved, open and hanging
transactions of versions 0 and 2; the transaction log has values of versions 0 and 1. Times differ from run to
run; the tests compare with what lies beside.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from kio.schema.errors import ErrorCode

from service.client.admin import Cluster
from service.client.transaction_queries import describe_transaction
from tests.support.batches import batch
from tests.support.clients import Admin
from tests.support.isolation import COMMITTED, UNCOMMITTED, fetch, values
from tests.support.kafka_node import KafkaNode
from tests.support.kafka_tools import tool
from tests.support.processes import wait_until
from tests.support.transactional_client import GROUP, TransactionalClient, settled
from tests.support.wire import RawConnection, offsets, produce, schema

HERE = Path(__file__).parent
SETTINGS = {
    "transaction.partition.verification.enable": "false",
    "transaction.state.log.num.partitions": "1",
    "offsets.topic.num.partitions": "1",
    "log.cleaner.enable": "false",
}
HOUR_MS = 3_600_000
TOPIC, NONE = "flights", ErrorCode.none
GROUP_ID = "tourists"
COMMITTED_TOPICS = ("committed", "aborted", "pending")


class Story:
    """The producers, by their ids."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.clients: dict[str, TransactionalClient] = {}

    def producer(self, name: str, version: int) -> TransactionalClient:
        client = TransactionalClient(self.bootstrap, name, version=version, timeout_ms=900_000)
        assert settled(client, client.init) == NONE
        self.clients[name] = client
        return client

    def write(self, client: TransactionalClient, *written: bytes, known: bool = True) -> None:
        if known and not client.is_second:
            assert settled(client, lambda: client.add((TOPIC, 0))) == {(TOPIC, 0): NONE}
        answer = settled(client, lambda: client.produce(TOPIC, 0, written))
        assert answer.error_code == NONE, answer

    def commit_offset(self, client: TransactionalClient, topic: str, offset: int) -> None:
        if not client.is_second:
            assert settled(client, lambda: client.add_offsets(GROUP_ID)) == NONE
        place = (topic, 0)
        assert settled(client, lambda: client.commit_offsets(GROUP_ID, {place: offset})) == {place: NONE}

    def end(self, client: TransactionalClient, *, commit: bool) -> None:
        """End it, and wait for its markers."""
        assert settled(client, lambda: client.end(commit=commit)) == NONE
        wait_until("its markers are written", lambda: self.state(client)["state"].startswith("Complete"))

    def state(self, client: TransactionalClient) -> dict[str, Any]:
        with Cluster(self.bootstrap) as cluster:
            info = describe_transaction(cluster, lambda: False, client.transactional_id)
        return {**info._asdict(), "partitions": [list(one) for one in info.partitions]}

    def plain(self, *written: bytes) -> None:
        """Records of no transaction."""
        records = batch(written, base_timestamp=time.time_ns() // 1_000_000)
        with RawConnection(self.bootstrap) as connection:
            answer = produce(connection, TOPIC, 0, records)
        assert answer.error_code == NONE

    def roll(self, *written: bytes) -> None:
        """Records of no transaction, which begin a segment."""
        for segment_ms in (1, HOUR_MS):
            Admin(self.bootstrap).alter(TOPIC, segment_ms=str(segment_ms))
            if segment_ms == 1:
                time.sleep(1)
                self.plain(*written)


def tell(story: Story, bootstrap: str) -> None:
    old = story.producer("zero", 1)  # at transaction.version 0
    story.write(old, b"zero-1", b"zero-2")
    story.commit_offset(old, "committed", 10)
    story.end(old, commit=True)
    story.write(old, b"zero-aborted")
    story.end(old, commit=False)
    resting = story.producer("resting", 1)
    assert resting.epoch == 0
    tool("features", "--bootstrap-server", bootstrap, "upgrade", "--feature", "transaction.version=2")
    wait_until("transaction.version is 2", lambda: "FinalizedVersionLevel: 2" in features(bootstrap))
    time.sleep(1)

    new = story.producer("two", 2)
    story.write(new, b"two-1")
    story.plain(b"plain-1")
    story.commit_offset(new, "committed", 20)
    story.end(new, commit=True)
    story.write(new, b"two-aborted")
    story.commit_offset(new, "aborted", 30)
    story.end(new, commit=False)

    long = story.producer("long", 1)
    story.write(long, b"long-aborted-1")
    story.write(new, b"two-2")
    story.end(new, commit=True)
    story.write(new, b"two-aborted-again")
    story.end(new, commit=False)
    story.roll(b"plain-2")
    story.write(long, b"long-aborted-2")
    story.end(long, commit=False)
    story.write(long, b"long-1")
    story.end(long, commit=True)

    story.roll(b"plain-3")
    open_one = story.producer("open", 2)
    story.write(open_one, b"open-1")
    story.commit_offset(open_one, "pending", 40)
    story.plain(b"plain-4")
    story.write(new, b"two-hidden-aborted")
    story.end(new, commit=False)
    hanging = story.producer("hanging", 1)
    story.write(hanging, b"hanging-1", known=False)
    story.write(old, b"zero-open")
    story.write(new, b"two-3")
    story.end(new, commit=True)


def features(bootstrap: str) -> str:
    told = tool("features", "--bootstrap-server", bootstrap, "describe")
    return next(line for line in told.splitlines() if line.startswith("Feature: transaction.version"))


def expected(story: Story, bootstrap: str) -> dict[str, Any]:
    fetches = {}
    first = fetch(bootstrap, TOPIC, 0, COMMITTED)
    for offset in range(first.high_watermark):
        answer = fetch(bootstrap, TOPIC, offset, COMMITTED)
        fetches[offset] = sorted([one.producer_id, one.first_offset] for one in answer.aborted_transactions)
    with RawConnection(bootstrap) as connection:
        latest = offsets(connection, TOPIC, 0, -1).offset
    return {
        "high_watermark": first.high_watermark,
        "last_stable_offset": first.last_stable_offset,
        "latest": latest,
        "committed": [one.decode() for one in values(bootstrap, TOPIC)],
        "uncommitted": [one.decode() for one in values(bootstrap, TOPIC, UNCOMMITTED)],
        "aborted": fetches,
        "ids": {name: story.state(client) for name, client in story.clients.items()},
        "offsets": group_offsets(story),
    }


def group_offsets(story: Story) -> dict[str, Any]:
    """Offset and error of each topic, read stable and not."""
    client = next(iter(story.clients.values()))
    module = schema(9, 7)
    found = {}
    for stable in (False, True):
        topics = tuple(
            module.OffsetFetchRequestTopic(name=name, partition_indexes=(0,)) for name in COMMITTED_TOPICS
        )
        request = module.OffsetFetchRequest(group_id=GROUP_ID, topics=topics, require_stable=stable)
        with RawConnection(client.coordinator(GROUP_ID, GROUP)) as connection:
            answer = connection.call(request)
        found["stable" if stable else "any"] = {
            topic.name: [topic.partitions[0].committed_offset, topic.partitions[0].error_code.name]
            for topic in answer.topics
        }
    return found


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        kafka = KafkaNode(Path(folder) / "kafka", SETTINGS, heap="512m")
        try:
            bootstrap = kafka.bootstrap
            tool(
                "features", "--bootstrap-server", bootstrap, "downgrade", "--feature", "transaction.version=0"
            )
            Admin(bootstrap).create(TOPIC, 1, segment_ms=str(HOUR_MS))
            for name in COMMITTED_TOPICS:
                Admin(bootstrap).create(name)
            story = Story(bootstrap)
            tell(story, bootstrap)
            found = expected(story, bootstrap)
        finally:
            kafka.stop()
        target = HERE / "kafka-data"
        shutil.rmtree(target, ignore_errors=True)
        for name in (f"{TOPIC}-0", "__transaction_state-0", "__consumer_offsets-0"):
            shutil.copytree(kafka.data / name, target / name)
    (HERE / "expected.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
