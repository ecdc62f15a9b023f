"""Minutes of producers, kills and a store that comes and goes: `make soak SOAK_SECONDS=600`."""

from __future__ import annotations

import os
import random
import threading
import time

import pytest

from tests.conftest import NodeFactory
from tests.support.batches import NONE, ZSTD, batch
from tests.support.clients import Admin, Confluent
from tests.support.faults import Fault, fault_proxy
from tests.support.fsck import fsck
from tests.support.processes import Node
from tests.support.stores import Store
from tests.support.tiers import EARLIEST_LOCAL, LATEST, offset, settle
from tests.support.wire import ConnectionLost, RawConnection, produce

TOPICS = ("one", "two", "three")


class Producer(threading.Thread):
    """Produces numbered records to one topic through kills, and remembers what was acknowledged where."""

    def __init__(self, node: Node, topic: str, seed: int) -> None:
        super().__init__(daemon=True)
        self.acked: dict[int, bytes] = {}
        self.over = threading.Event()
        self._node, self._topic, self._source = node, topic, random.Random(seed)

    def run(self) -> None:
        number = 0
        while not self.over.is_set():
            try:
                with RawConnection(self._node.bootstrap) as connection:
                    while not self.over.is_set():
                        count = self._source.choice((1, 10, 200))
                        values = [
                            b"%d:" % n + self._source.randbytes(400) for n in range(number, number + count)
                        ]
                        number += count
                        data = batch(values, codec=self._source.choice((NONE, ZSTD)))
                        answer = produce(connection, self._topic, 0, data)
                        assert int(answer.error_code) == 0, answer
                        for delta, value in enumerate(values):
                            self.acked[int(answer.base_offset) + delta] = value
                        time.sleep(self._source.uniform(0, 0.05))
            except (ConnectionLost, OSError):
                time.sleep(0.05)


@pytest.mark.soak
def test_nothing_is_lost_in_minutes_of_kills_and_outages(start_node: NodeFactory, moto_store: Store) -> None:
    seconds = float(os.environ.get("SOAK_SECONDS", "300"))
    seed = int(os.environ.get("SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"SEED={seed} SOAK_SECONDS={seconds:g}", flush=True)
    source = random.Random(seed)
    with fault_proxy(moto_store.endpoint or "") as proxy:
        node = start_node(moto_store.through(proxy.endpoint))
        for topic in TOPICS:
            Admin(node.bootstrap).create(
                topic, remote_storage_enable="true", segment_bytes="1048576", local_retention_bytes="1"
            )
        producers = [Producer(node, topic, seed + number) for number, topic in enumerate(TOPICS)]
        for producer in producers:
            producer.start()
        deadline = time.monotonic() + seconds
        turns = 0
        while time.monotonic() < deadline:
            turns += 1
            proxy.mode = source.choice(list(Fault)) if source.random() < 0.5 else Fault.PASS
            time.sleep(source.uniform(0.1, 8))
            if source.random() < 0.5:
                node.kill()
                node.start()
            if source.random() < 0.2:
                proxy.mode = Fault.PASS
                node.restart()
            topic = source.choice(TOPICS)
            end = offset(node.bootstrap, topic, 0, LATEST)
            border = offset(node.bootstrap, topic, 0, EARLIEST_LOCAL)
            memory = node.rss_bytes() // 1_000_000
            print(f"{turns}: {proxy.mode.value}: {topic} is local in {border}-{end}, {memory} MB", flush=True)
            assert memory < 500
        proxy.mode = Fault.PASS
        for producer in producers:
            producer.over.set()
            producer.join(30)
        for topic, producer in zip(TOPICS, producers, strict=True):
            settle(node.bootstrap, topic, 0, 180)
            end = offset(node.bootstrap, topic, 0, LATEST)
            found = Confluent().read(node.bootstrap, topic, 0, 0, end)
            lost = [where for where, value in producer.acked.items() if found[where].value != value]
            assert not lost, f"{topic}: {len(lost)} of {len(producer.acked)} lost, from {min(lost)}"
            print(f"{topic}: {end} records, {len(producer.acked)} acknowledged, all there", flush=True)
        node.stop()
    fsck(moto_store)
