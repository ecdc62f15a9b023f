"""Writes ``kafka-offsets/``: one partition of ``__consumer_offsets`` as Apache Kafka 4.3.1 wrote it.

    python tests/golden/groups/capture.py BOOTSTRAP LOG_DIR

BOOTSTRAP is one Kafka node, ``offsets.topic.num.partitions=1``, ``group.initial.rebalance.delay.ms=0``, and
LOG_DIR its ``log.dirs``. Besides the segment there is ``expected.json``: what the node answered for the
groups. Member ids, times and topic ids differ from run to run; the tests compare with what lies beside.
"""

import json
import shutil
import socket
import struct
import sys
import time
from datetime import timedelta
from io import BytesIO
from pathlib import Path
from typing import Any

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic
from kio.schema.offset_commit.v3 import request as commit_v3
from kio.serial import entity_writer

HERE = Path(__file__).parent


def consumer(bootstrap: str, group: str, name: str, **more: Any) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "client.id": name,
            "session.timeout.ms": 45000,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            **more,
        }
    )


def settle(*members: Consumer) -> None:
    """Polls until every member has partitions."""
    deadline = time.monotonic() + 60
    while not all(member.assignment() for member in members):
        for member in members:
            member.poll(0.2)
        if time.monotonic() > deadline:
            raise SystemExit("the group does not settle")


def commit_with_retention(bootstrap: str, group: str, topic: str) -> None:
    """OffsetCommit 3 of no member, which says how long the offset is to stay: a value of version 1."""
    message = commit_v3.OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        retention_time=timedelta(hours=1),
        topics=(
            commit_v3.OffsetCommitRequestTopic(
                name=topic,
                partitions=(
                    commit_v3.OffsetCommitRequestPartition(
                        partition_index=2, committed_offset=5, committed_metadata="kept for an hour"
                    ),
                ),
            ),
        ),
    )
    body = BytesIO()
    entity_writer(commit_v3.OffsetCommitRequest)(body, message)
    frame = struct.pack(">hhih", 8, 3, 1, 4) + b"gold" + body.getvalue()
    host, port = bootstrap.split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(struct.pack(">i", len(frame)) + frame)
        size = struct.unpack(">i", connection.recv(4))[0]
        connection.recv(size)


def main(bootstrap: str, log_dir: Path) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic("orders", 3, 1), NewTopic("bills", 1, 1)]).values():
        future.result()
    producer = Producer({"bootstrap.servers": bootstrap})
    for n in range(30):
        producer.produce("orders", f"order {n}", partition=n % 3)
    producer.flush()

    members = group_of_two(bootstrap)
    left_group(bootstrap)
    offsets_without_members(bootstrap, admin)
    open_transaction = offsets_of_transactions(bootstrap)
    expected = expected_answers(admin)

    out = HERE / "kafka-offsets"
    out.mkdir(exist_ok=True)
    shutil.copy(log_dir / "__consumer_offsets-0" / f"{0:020}.log", out / f"{0:020}.log")
    (out / "expected.json").write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n")
    open_transaction.abort_transaction(timedelta(seconds=10).seconds)
    for member in members:
        member.close()


def group_of_two(bootstrap: str) -> tuple[Consumer, Consumer]:
    """Make a group of a static and a dynamic member; both commit, and the static one rejoins."""
    first = consumer(bootstrap, "shop", "till-1", **{"group.instance.id": "till-one"})
    second = consumer(bootstrap, "shop", "till-2")
    first.subscribe(["orders"])
    settle(first)
    second.subscribe(["orders", "bills"])
    settle(first, second)
    for member in (first, second):
        offsets = [
            TopicPartition(p.topic, p.partition, 7 + p.partition, metadata=f"till of {p.partition}")
            for p in member.assignment()
        ]
        member.commit(offsets=offsets, asynchronous=False)
    # The static member comes back: one record, and no rebalance.
    first.close()
    first = consumer(bootstrap, "shop", "till-1", **{"group.instance.id": "till-one"})
    first.subscribe(["orders"])
    settle(first, second)
    return first, second


def left_group(bootstrap: str) -> None:
    """Make a group with an offset that its only member has left."""
    lone = consumer(bootstrap, "lone", "lone-1")
    lone.subscribe(["bills"])
    settle(lone)
    lone.commit(offsets=[TopicPartition("bills", 0, 0)], asynchronous=False)
    lone.close()


def offsets_without_members(bootstrap: str, admin: AdminClient) -> None:
    """Commit offsets of a simple group, one with a retention time, and those of a group that is deleted."""
    loner = consumer(bootstrap, "assigned", "assigned-1")
    loner.commit(offsets=[TopicPartition("orders", 0, 3), TopicPartition("orders", 1, 4)], asynchronous=False)
    commit_with_retention(bootstrap, "assigned", "orders")
    gone = consumer(bootstrap, "gone", "gone-1")
    gone.commit(offsets=[TopicPartition("orders", 0, 1)], asynchronous=False)
    gone.close()
    admin.delete_consumer_groups(["gone"])["gone"].result()


def offsets_of_transactions(bootstrap: str) -> Producer:
    """Commit one transaction with an offset, abort one, and return the producer of one that stays open."""
    for place, name in enumerate(("commit", "abort", "open")):
        sender = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"txn-{name}"})
        reader = consumer(bootstrap, "exact", f"reader-{name}")
        sender.init_transactions()
        sender.begin_transaction()
        sender.send_offsets_to_transaction(
            [TopicPartition("orders", place, 9)], reader.consumer_group_metadata()
        )
        if name == "commit":
            sender.commit_transaction()
        elif name == "abort":
            sender.abort_transaction()
        reader.close()
    return sender


def expected_answers(admin: AdminClient) -> dict[str, Any]:
    """Return the offsets, groups and topic ids that the node reports."""
    expected: dict[str, Any] = {"offsets": {}, "groups": {}}
    for group in ("shop", "lone", "assigned", "exact", "gone"):
        answer = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result()
        expected["offsets"][group] = sorted(
            [p.topic, p.partition, p.offset, p.metadata or ""]
            for p in answer.topic_partitions
            if p.offset >= 0
        )
        described = admin.describe_consumer_groups([group])[group]
        try:
            answer = described.result()
        except KafkaException as e:
            expected["groups"][group] = e.args[0].name()
            continue
        expected["groups"][group] = {
            "state": answer.state.name,
            "protocol": answer.partition_assignor,
            "members": sorted(
                [
                    *(m.member_id, m.client_id, m.group_instance_id or "", m.host),
                    *sorted(f"{p.topic}-{p.partition}" for p in m.assignment.topic_partitions),
                ]
                for m in answer.members
            ),
        }
    topics = admin.describe_topics(_topics("orders", "bills"))
    expected["topics"] = {name: _uuid(future.result().topic_id) for name, future in topics.items()}
    return expected


def _topics(*names: str) -> Any:
    return TopicCollection(list(names))


def _uuid(topic_id: Any) -> str:
    raw = struct.pack(">qq", topic_id.get_most_significant_bits(), topic_id.get_least_significant_bits())
    return raw.hex()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
