"""A log with transactions that Apache Kafka wrote is served to readers as Apache Kafka serves it, byte for
byte."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from service.base.world import system_world
from tests.node.conftest import NodeThread, Talk
from tests.node.conftest import start as start
from tests.support.wire import RawConnection
from tests.support.world import ShiftedClock

GOLDEN = Path(__file__).parent / "kafka-transactions"
WRITTEN_MS = 1_795_899_473_000  # later, the node would have forgotten the producers
EXCHANGES = json.loads((GOLDEN / "exchanges.json").read_text())


@pytest.fixture
def node(start: Callable[..., NodeThread], tmp_path: Path) -> NodeThread:
    """A node whose partition has Kafka's files."""
    node = start(system_world(ShiftedClock(WRITTEN_MS)))
    with node.client() as client:
        talk = Talk(client)
        talk.create("golden", internal_segment_bytes="2500", index_interval_bytes="300")
    node.stop()
    (directory,) = tmp_path.rglob("golden-0")
    kept = {name: (directory / name).read_bytes() for name in ("partition.metadata",)}
    shutil.rmtree(directory)
    shutil.copytree(GOLDEN / "golden-0", directory)
    for name, data in kept.items():
        (directory / name).write_bytes(data)
    return start(system_world(ShiftedClock(WRITTEN_MS)))


def test_readers_get_kafkas_answers(node: NodeThread) -> None:
    log = b"".join(path.read_bytes() for path in sorted((GOLDEN / "golden-0").glob("*.log")))
    differing = []
    with RawConnection(f"{node.host}:{node.port}") as connection:
        for asked, expected, at, size in EXCHANGES:
            connection.send_frame(bytes.fromhex(asked))
            frame = connection.receive_frame()
            rest, records = frame[:at] + frame[at + size :], frame[at : at + size]
            if rest.hex() != expected or (records and records not in log):
                differing.append((asked, rest.hex(), expected))
    assert not differing
