"""Consumers killed and restarted at random, the node now and then, a producer writing all the while."""

from __future__ import annotations

import os
import random
import subprocess
import threading
import time
from pathlib import Path

import confluent_kafka
import pytest

from tests.conftest import NodeFactory
from tests.support.clients import Admin
from tests.support.processes import PYTHON, Node, wait_until

PARTITIONS = 6
MEMBERS = 3
SECONDS = int(os.environ.get("SOAK_SECONDS", "600"))
NODE_DEATHS = 5


class Writer:
    """Writes numbers one after the other until it is stopped; `written` are those that were acknowledged."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.written: set[int] = set()
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "message.timeout.ms": 120_000,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )
        self._topic = topic
        self._stopping = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stopping:
            for _ in range(20):
                self._producer.produce(
                    self._topic, b"%d" % number, partition=number % PARTITIONS, on_delivery=self._delivered
                )
                number += 1
            self._producer.poll(0.05)
        assert not self._producer.flush(120)

    def _delivered(self, error: object, message: confluent_kafka.Message) -> None:
        if error is None:
            self.written.add(int(message.value()))

    def stop(self) -> None:
        self._stopping = True
        self._thread.join()


class Group:
    """Some processes; what each has read lies in a file."""

    def __init__(self, bootstrap: str, name: str, protocol: str, folder: Path) -> None:
        self._arguments = (bootstrap, name, "t", protocol)
        self._folder = folder / name
        self._folder.mkdir()
        self.name = name
        self.members: list[subprocess.Popen[bytes]] = []
        self._count = 0

    def add(self) -> None:
        self._count += 1
        with (
            (self._folder / f"{self._count}.read").open("wb") as out,
            (self._folder / f"{self._count}.log").open("wb") as log,
        ):
            command = [str(PYTHON), "-m", "tests.support.group_member", *self._arguments]
            self.members.append(subprocess.Popen(command, stdout=out, stderr=log))

    def remove(self, draw: random.Random) -> None:
        """One is killed, or told to leave."""
        member = self.members.pop(draw.randrange(len(self.members)))
        if draw.random() < 0.7:
            member.kill()
        else:
            member.terminate()
        member.wait(60)

    def read(self) -> set[int]:
        found: set[int] = set()
        for path in self._folder.glob("*.read"):
            lines = path.read_bytes().split(b"\n")
            found.update(int(line) for line in lines[:-1])  # a line that was being written is not said
        return found

    def settle(self, written: set[int], node: Node) -> None:
        """All that was written comes to be read, and all that was read committed."""
        wait_until(f"{self.name} has read everything", lambda: written <= self.read(), 120, 1)

        def is_done() -> bool:
            committed, ends = positions(node, self.name)
            return committed == ends

        wait_until(f"{self.name} has committed everything", is_done, 60, 1)

    def end(self) -> None:
        for member in self.members:
            member.kill()
            member.wait()


def positions(node: Node, group: str) -> tuple[list[int], list[int]]:
    """What is committed, and where the partitions end."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": node.bootstrap, "group.id": group})
    try:
        asked = [confluent_kafka.TopicPartition("t", n) for n in range(PARTITIONS)]
        committed = [one.offset for one in consumer.committed(asked, timeout=20)]
        return committed, [consumer.get_watermark_offsets(one, timeout=20)[1] for one in asked]
    finally:
        consumer.close()


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 400)
def test_consumers_skip_no_record_when_members_or_nodes_die(start_node: NodeFactory, tmp_path: Path) -> None:
    seed = int(os.environ.get("SEED", random.randrange(1 << 30)))
    print("seed", seed)
    draw = random.Random(seed)
    session = {f"group.consumer.{bound}session.timeout.ms": "6000" for bound in ("", "min.")} | {
        f"group.consumer.{bound}heartbeat.interval.ms": "1000" for bound in ("", "min.")
    }
    node = start_node(**session)
    Admin(node.bootstrap).create("t", PARTITIONS)
    groups = [Group(node.bootstrap, protocol, protocol, tmp_path) for protocol in ("classic", "consumer")]
    writer = Writer(node.bootstrap, "t")
    try:
        for group in groups:
            for _ in range(MEMBERS):
                group.add()
        began = time.monotonic()
        deaths = sorted(draw.uniform(0.1, 0.9) * SECONDS for _ in range(NODE_DEATHS))
        while (now := time.monotonic() - began) < SECONDS:
            time.sleep(draw.uniform(0.5, 4))
            group = draw.choice(groups)
            group.remove(draw)
            time.sleep(draw.uniform(0, 2))
            group.add()
            if deaths and now > deaths[0]:
                del deaths[0]
                node.kill()
                time.sleep(draw.uniform(0, 3))
                node.start()
        writer.stop()
        for group in groups:
            group.settle(writer.written, node)
        print(len(writer.written), "records")
    finally:
        writer.stop()
        for group in groups:
            group.end()
