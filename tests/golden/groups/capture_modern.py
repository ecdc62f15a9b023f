"""Captures `modern-records.json` from an Apache Kafka node.

    python tests/golden/groups/capture_modern.py BOOTSTRAP

BOOTSTRAP is a single fresh Kafka node. Ids and times differ from run to run.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

OFFSETS = "__consumer_offsets"
MODERN = {"group.protocol": "consumer"}
STATIC = {"group.instance.id": "static-1", "group.remote.assignor": "range", "client.rack": "rack-a"}
CLASSIC = {"partition.assignment.strategy": "range"}


def consume(
    bootstrap: str, topics: list[str], seconds: float, after: float, **settings: Any
) -> threading.Thread:
    """A consumer that joins after a while, reads for some seconds, and leaves."""

    def run() -> None:
        time.sleep(after)
        consumer = Consumer({"bootstrap.servers": bootstrap, **settings})
        consumer.subscribe(topics)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            consumer.poll(0.2)
        consumer.close()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def read(bootstrap: str) -> list[tuple[int, int, str, str | None]]:
    """Everything in the offsets topic: partition, offset, key, value."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    partitions = consumer.list_topics(OFFSETS).topics[OFFSETS].partitions
    consumer.assign([TopicPartition(OFFSETS, n, 0) for n in partitions])
    rows = []
    while (message := consumer.poll(5)) is not None:
        value = message.value()
        rows.append(
            (message.partition(), message.offset(), message.key().hex(), value.hex() if value else None)
        )
    consumer.close()
    return sorted(rows)


def main(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = [NewTopic("orders", 3), NewTopic("orders-eu", 2), NewTopic("payments", 1)]
    for made in admin.create_topics(topics).values():
        made.result()
    modern, mixed = {"group.id": "modern", **MODERN}, {"group.id": "mixed"}
    threads = [
        consume(bootstrap, ["orders", "payments"], 14, 0, **{"client.id": "c1", **modern}),
        consume(bootstrap, ["orders"], 10, 0, **{"client.id": "c2", **modern, **STATIC}),
        consume(bootstrap, ["^orders.*"], 10, 0, **{"client.id": "c3", "group.id": "regex", **MODERN}),
        consume(bootstrap, ["orders"], 14, 0, **{"client.id": "c4", **mixed, **MODERN}),
        consume(bootstrap, ["orders"], 9, 3, **{"client.id": "c5", **mixed, **CLASSIC}),
        consume(bootstrap, ["orders"], 6, 3, **{"client.id": "c6", **modern}),
    ]
    for thread in threads:
        thread.join()
    rows = [row for row in read(bootstrap) if int(row[2][:4], 16) > 2]
    text = "[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n"
    (Path(__file__).parent / "modern-records.json").write_text(text)


if __name__ == "__main__":
    main(sys.argv[1])
