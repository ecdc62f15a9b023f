"""Apache Kafka with tiered storage over LocalTieredStorage, which copies segments into a folder.

The sides differ in more than the broker: Kafka's reads and writes files of the page cache by itself; Firn's
talks HTTP with an object store, whose processor time is not counted as the node's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bench.peers import KafkaPeer, kafka_is_here
from tests.support.requirements import KAFKA_TIERED

_STORAGE: Final = "org.apache.kafka.server.log.remote.storage.LocalTieredStorage"
WARM_UP_MB: Final = 1_000
"""A JVM's code is compiled after that."""


class TieredKafka(KafkaPeer):
    """One node; `tier` is the folder that its remote segments are copied to."""

    def __init__(self, folder: Path) -> None:
        self.tier = folder / "tier"
        settings = {
            "remote.log.storage.system.enable": "true",
            "remote.log.storage.manager.class.name": _STORAGE,
            "remote.log.storage.manager.class.path": f"{KAFKA_TIERED}/*",
            "remote.log.metadata.manager.listener.name": "PLAINTEXT",
            "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
            "rlmm.config.remote.log.metadata.topic.num.partitions": "4",
            "rsm.config.dir": str(self.tier),
            # As Firn's node has them here.
            "remote.log.manager.task.interval.ms": "500",
            "log.retention.check.interval.ms": "500",
            "log.initial.task.delay.ms": "500",
        }
        super().__init__(folder, settings)

    def segments(self, topics: str) -> list[int]:
        """Return the sizes of remote segments of topics whose names begin so."""
        return [
            path.stat().st_size for path in self.tier.rglob("*.log") if path.parent.name.startswith(topics)
        ]


def tiered_kafka_is_here() -> bool:
    return kafka_is_here() and any(KAFKA_TIERED.glob("kafka-storage-*-test.jar"))


@contextlib.contextmanager
def tiered_kafka(folder: Path) -> Iterator[TieredKafka]:
    peer = TieredKafka(folder)
    try:
        yield peer
    finally:
        peer.stop()
