"""One thing fails under a running node, or before a start: it is named, and nothing acknowledged is lost."""

from __future__ import annotations

import random
import resource
from pathlib import Path

import pytest

from tests.conftest import NodeFactory
from tests.support.batches import batch
from tests.support.clients import Admin, Confluent, digest, make_rows
from tests.support.processes import Node
from tests.support.stores import Store
from tests.support.tiers import LATEST, offset, settle
from tests.support.wire import RawConnection, produce

KAFKA_STORAGE_ERROR = 56
TIERED = {"remote_storage_enable": "true", "segment_bytes": "1048576", "local_retention_bytes": "1"}


class Acknowledged:
    """What a node said it has of one partition, batch by batch."""

    def __init__(self, node: Node, topic: str) -> None:
        self.node = node
        self.topic = topic
        self.values: dict[int, bytes] = {}
        self.refused = 0
        self._number = 0

    def produce(self, batches: int) -> None:
        """Each is acknowledged, or refused with KAFKA_STORAGE_ERROR."""
        with RawConnection(self.node.bootstrap) as connection:
            for _ in range(batches):
                values = [b"%08d" % n * 100 for n in range(self._number, self._number + 3)]
                self._number += 3
                answer = produce(connection, self.topic, 0, batch(values))
                if int(answer.error_code) == KAFKA_STORAGE_ERROR:
                    self.refused += 1
                    continue
                assert int(answer.error_code) == 0
                self.values.update((int(answer.base_offset) + at, value) for at, value in enumerate(values))

    def check(self) -> None:
        """They are there, at their offsets, and nothing else is."""
        end = offset(self.node.bootstrap, self.topic, 0, LATEST)
        found = Confluent().read(self.node.bootstrap, self.topic, 0, 0, end)
        assert {at: row.value for at, row in enumerate(found)} == self.values


def limit(node: Node, which: int, soft: int) -> None:
    """Of a process that runs; the hard limit stays, so that it can be taken back."""
    resource.prlimit(node.pid, which, (soft, resource.prlimit(node.pid, which)[1]))


def test_a_disk_that_takes_no_more_refuses_records_and_keeps_those_it_has(start_node: NodeFactory) -> None:
    """The limit on a file's size stands for a full disk: writes fail, and write a part before."""
    node = start_node()
    Admin(node.bootstrap).create("topic")
    said = Acknowledged(node, "topic")
    said.produce(20)
    (log,) = (node.data / "topic-0").glob("*.log")
    limit(node, resource.RLIMIT_FSIZE, log.stat().st_size + 5_000)
    said.produce(20)
    assert 0 < said.refused < 20
    said.check()
    limit(node, resource.RLIMIT_FSIZE, resource.RLIM_INFINITY)
    said.produce(20)
    said.check()
    node.kill()
    node.start()
    said.check()
    node.stop()


def test_a_node_without_descriptors_keeps_what_it_acknowledges(start_node: NodeFactory) -> None:
    node = start_node()
    Admin(node.bootstrap).create("topic", segment_bytes="1048576", index_interval_bytes="1")
    said = Acknowledged(node, "topic")
    said.produce(3)
    limit(node, resource.RLIMIT_NOFILE, max(map(int, _descriptors(node))) + 1)
    said.produce(900)  # over two borders of segments, each of which needs new files
    assert said.refused
    limit(node, resource.RLIMIT_NOFILE, resource.prlimit(node.pid, resource.RLIMIT_NOFILE)[1])
    said.produce(30)
    said.check()
    node.kill()
    node.start()
    said.check()
    node.stop()


def _descriptors(node: Node) -> list[str]:
    return [entry.name for entry in Path(f"/proc/{node.pid}/fd").iterdir()]


def test_a_start_without_the_bucket_is_refused_and_takes_nothing(
    start_node: NodeFactory, disk_store: Store
) -> None:
    node = start_node(disk_store)
    Admin(node.bootstrap).create("events", 1, **TIERED)
    rows = make_rows(5_000, 1)
    Confluent().produce(node.bootstrap, "events", rows)
    settle(node.bootstrap, "events", 0)
    node.stop()
    files = {path: path.read_bytes() for path in (node.data / "events-0").iterdir() if path.is_file()}
    url = node.settings.pop("firn.remote.url")
    with pytest.raises(AssertionError, match=r"(?s)events.*remote\.storage\.enable"):
        node.start()
    assert {p: p.read_bytes() for p in (node.data / "events-0").iterdir() if p.is_file()} == files
    node.settings["firn.remote.url"] = url
    node.start()
    assert digest(Confluent().read(node.bootstrap, "events", 0, 0, 5_000)) == digest(rows)
    node.stop()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_flipped_bit_of_the_metadata_log_is_named_and_nothing_is_changed(
    seed: int, start_node: NodeFactory
) -> None:
    node = start_node()
    for name in ("one", "two", "three"):
        Admin(node.bootstrap).create(name)
    node.kill()
    (log,) = (node.data / "__cluster_metadata-0").glob("*.log")
    whole = log.read_bytes()
    bit = random.Random(seed).randrange(8 * len(whole) // 2)
    damaged = bytearray(whole)
    damaged[bit // 8] ^= 1 << bit % 8
    log.write_bytes(damaged)
    with pytest.raises(AssertionError, match=log.name):
        node.start()
    assert log.read_bytes() == bytes(damaged)
    log.write_bytes(whole)
    node.start()
    assert {"one", "two", "three"} <= Admin(node.bootstrap).topics().keys()
    node.stop()
