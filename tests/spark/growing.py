"""A node whose topics grow while Spark reads them."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from tests.spark.filling import BRISK, START_MS, TIERED, Row, consume
from tests.support.clients import Admin
from tests.support.processes import Node
from tests.support.stores import Store, folder_store
from tests.support.tiers import LATEST, offset, settle


@dataclass
class Growing:
    """Topics of two partitions. A segment holds five minutes, and records are a second apart."""

    node: Node
    store: Store
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def admin(self) -> Admin:
        return Admin(self.node.bootstrap)

    def topic(self, name: str, **config: str) -> None:
        self.admin.create(name, 2, **{**TIERED, **config})

    def append(self, topic: str, count: int, *, is_sealed: bool = True) -> dict[int, int]:
        """So many more records in each partition; returns where the sealed part ends then, by partition."""
        producer = Producer({"bootstrap.servers": self.node.bootstrap, "linger.ms": 5})
        for number in range(self.counts[topic], self.counts[topic] + count):
            headers: list[tuple[str, bytes | None]] | None = [
                ("n", b"%d" % number),
                ("none", None),
                ("", b""),
            ]
            for partition in (0, 1):
                producer.produce(
                    topic,
                    (b"v%d" % number * 9, b"", None)[number % 3],
                    (None, b"", b"k%d" % number)[number // 3 % 3],
                    partition,
                    timestamp=START_MS + 1000 * number,
                    headers=headers if number % 4 == 0 else None,
                )
            if number % 50 == 0:
                producer.flush()
        assert producer.flush(30) == 0
        self.counts[topic] += count
        return {p: settle(self.node.bootstrap, topic, p) for p in (0, 1)} if is_sealed else {}

    def ends(self, topic: str) -> dict[int, int]:
        return {p: offset(self.node.bootstrap, topic, p, LATEST) for p in (0, 1)}

    def rows(self, topic: str, ends: Mapping[int, int]) -> list[Row]:
        return consume(self.node.bootstrap, topic, dict(ends))

    def options(self, topic: str, **more: object) -> dict[str, str]:
        """Options of a read; `bootstrap=True` is the node's address."""
        with_tail = more.pop("bootstrap", False)
        given = {"url": self.store.url, "subscribe": topic, **{k: str(v) for k, v in more.items()}}
        if with_tail:
            given["bootstrap.servers"] = self.node.bootstrap
        if "subscribePattern" in given:
            del given["subscribe"]
        return given


@contextlib.contextmanager
def growing(folder: Path) -> Iterator[Growing]:
    store = folder_store(folder / "cold")
    node = Node(folder / "node", {**BRISK, **store.node_settings}, store.env).start()
    try:
        yield Growing(node, store)
    finally:
        node.close()


def each_once(found: Iterable[Any], ends: Mapping[int, int]) -> None:
    """Fails unless the (partition, offset) pairs are all below `ends`, each once."""
    counts = Counter((int(row[0]), int(row[1])) for row in found)
    wanted = {(partition, number) for partition, end in ends.items() for number in range(end)}
    twice = sorted(pair for pair, count in counts.items() if count > 1)
    assert not twice, f"{len(twice)} offsets twice: {twice[:5]}"
    assert counts.keys() == wanted, (
        f"missing: {sorted(wanted - counts.keys())[:5]}, too many: {sorted(counts.keys() - wanted)[:5]}"
    )
