"""Recovery of a lost cluster's bucket by `firn.remote.recover`, for `bench.disasters --compare`.

That is how a bucket was taken over before there were cuts: from what its archives have, so that each
partition loses what no sealed segment holds.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import confluent_kafka

from service.remote.stores.folder_store import LOCK_NAME
from tests.support.processes import Node, wait_until
from tests.support.stores import folder_store


def copied(bucket: Path, target: Path) -> Path:
    """Return a copy of a bucket of which nothing is copied: objects are replaced, and never written to."""
    shutil.copytree(bucket, target, copy_function=os.link, ignore=shutil.ignore_patterns(LOCK_NAME))
    return target


def recovered_ends(folder: Path, bucket: Path, cluster_id: str, topic: str, partitions: int) -> list[int]:
    """Take a bucket over with one node, and return where the partitions of a topic end there."""
    settings = {
        **folder_store(bucket).node_settings,
        "firn.cluster.id": cluster_id,
        "firn.remote.recover": "true",
        "firn.cut.interval.ms": "-1",
    }
    node = Node(folder, settings)
    try:
        node.start(120)
        consumer = confluent_kafka.Consumer({"bootstrap.servers": node.bootstrap, "group.id": "ends"})
        ends: list[int] = []

        def are_told() -> bool:
            try:
                while len(ends) < partitions:
                    place = confluent_kafka.TopicPartition(topic, len(ends))
                    ends.append(consumer.get_watermark_offsets(place, timeout=10)[1])
            except confluent_kafka.KafkaException:
                return False
            return True

        try:
            wait_until(f"all ends of {topic}", are_told, 120)
        finally:
            consumer.close()
        return ends
    finally:
        node.close()
