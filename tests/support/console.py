"""A `firn console` of its own process, and something for it to show."""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.support.clients import Admin, Confluent, Row
from tests.support.processes import FIRN, Node, child, first_line, free_port, wait_until
from tests.support.stores import Store
from tests.support.tiers import EARLIEST_LOCAL, LATEST_TIERED, offset

QUICK = {
    "remote.log.manager.task.interval.ms": "200",
    "log.retention.check.interval.ms": "200",
    "log.flush.offset.checkpoint.interval.ms": "1000",
}


@contextlib.contextmanager
def console_of(
    bootstrap: str, folder: Path, *options: str, env: Mapping[str, str] | None = None
) -> Iterator[str]:
    """`firn console` on a free port; yields its URL."""
    command = [str(FIRN), "console", "--bootstrap", bootstrap, "--port", "0", *options]
    with child(command, folder / "console.log", env) as process:
        line = first_line(process, 30)
        assert line.startswith("console: "), (folder / "console.log").read_text()
        yield line.removeprefix("console: ")


def console_node(folder: Path, store: Store | None, **settings: str) -> Node:
    """A node with an HTTP listener, which a console finds by itself."""
    remote = store.node_settings if store is not None else {}
    http = f"127.0.0.1:{free_port()}"
    return Node(
        folder,
        {**QUICK, **remote, "firn.http.listener": http, **settings},
        store.env if store is not None else {},
    )


CITIES = ("Oslo", "Lima", "Kyoto", "Accra", "Quito", "Turin", "Perth", "Cusco")


def readings(count: int, partitions: int, now_ms: int, span_ms: int, seed: int = 7) -> list[Row]:
    """Sensor readings as JSON, spread over the time until `now_ms`."""
    source = random.Random(seed)
    rows = []
    for number in range(count):
        city = source.choice(CITIES)
        sensor = f"{city.lower()}-{source.randrange(40):02d}"
        value = {
            "sensor": sensor,
            "city": city,
            "celsius": round(source.gauss(14, 9), 2),
            "sequence": number,
            "note": source.randbytes(600).hex(),
        }
        rows.append(
            Row(
                number % partitions,
                now_ms - span_ms + number * span_ms // count,
                sensor.encode(),
                json.dumps(value).encode(),
                (("schema", b"reading/2"), ("trace", source.randbytes(8).hex().encode())),
            )
        )
    return rows


@dataclass
class Scene:
    """A node with two topics: `readings`, which is in both tiers, and `audit`, on disk alone."""

    node: Node
    tiered: str
    hot: str
    partitions: int


def fill(node: Node, partitions: int = 4, count: int = 24_000) -> Scene:
    """Produce, let the older part settle in the bucket, and produce some more."""
    admin, now_ms = Admin(node.bootstrap), int(time.time() * 1000)
    admin.create(
        "readings", partitions, segment_bytes=str(1 << 20), remote_storage_enable="true",
        local_retention_bytes=str(3 << 20), retention_ms=str(90 * 86_400_000),
    )  # fmt: skip
    admin.create("audit", 2, segment_bytes=str(1 << 20))
    rows = readings(count, partitions, now_ms, 48 * 3_600_000)
    Confluent().produce(node.bootstrap, "readings", rows)
    for partition in range(partitions):
        wait_until("the log to settle", partial(settled, node, "readings", partition), 60)
    Confluent().produce(node.bootstrap, "audit", readings(3_000, 2, now_ms, 3_600_000, seed=9))
    return Scene(node, "readings", "audit", partitions)


def settled(node: Node, topic: str, partition: int) -> bool:
    """Return whether some records are in the bucket alone, and all sealed segments are in the bucket."""
    border = offset(node.bootstrap, topic, partition, EARLIEST_LOCAL)
    tiered = offset(node.bootstrap, topic, partition, LATEST_TIERED)
    return 0 < border <= tiered
