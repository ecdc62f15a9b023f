"""A node whose topic `readings` has JSON values, and some that are none."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Producer

from tests.spark.filling import BRISK, START_MS, TIERED
from tests.support.clients import Admin
from tests.support.processes import Node
from tests.support.stores import Store, folder_store
from tests.support.tiers import settle


class Desk(NamedTuple):
    """A node that runs, with a topic `readings`; record i is in partition i modulo their number."""

    bootstrap: str
    store: Store
    partitions: int

    def write(self, begin: int, end: int) -> int:
        """JSON values, some of them none; returns how many records are in the archive when all is settled."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 5})
        for i in range(begin, end):
            value = json.dumps({"sensor": f"s{i % 5}", "reading": i, "at": {"x": i / 2}})
            odd = {7: None, 8: "[1, 2", 9: b"\xff\xfe"}.get(i % 500, value)
            key, headers = (f"k{i % 3}", [("n", str(i)), ("none", None)]) if i % 2 else (None, None)
            producer.produce(
                "readings",
                odd,
                key,
                partition=i % self.partitions,
                timestamp=START_MS + 20_000 * i,
                headers=headers,
            )
            if i % 50 == 0:
                producer.flush()
        assert producer.flush(30) == 0
        return sum(settle(self.bootstrap, "readings", partition) for partition in range(self.partitions))


@contextlib.contextmanager
def desk_with_readings(folder: Path, partitions: int = 2) -> Iterator[Desk]:
    store = folder_store(folder / "cold")
    node = Node(folder / "node", {**BRISK, **store.node_settings}, store.env).start()
    try:
        Admin(node.bootstrap).create("readings", partitions, **TIERED)
        yield Desk(node.bootstrap, store, partitions)
    finally:
        node.close()
