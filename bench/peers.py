"""The nodes that are measured: Firn, and Apache Kafka on the same machine."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from tests.support.kafka_node import KafkaNode
from tests.support.processes import Node, cpu_seconds
from tests.support.requirements import KAFKA_LIBS
from tests.support.stores import Store


class Peer(Protocol):
    """A running node."""

    name: str
    bootstrap: str
    pid: int
    seconds_to_ready: float

    def start(self) -> None: ...

    def stop(self) -> None: ...


class FirnPeer:
    name = "Firn"

    def __init__(self, folder: Path, store: Store | None = None, **settings: str) -> None:
        brisk = {"remote.log.manager.task.interval.ms": "500", "log.retention.check.interval.ms": "500"}
        remote = store.node_settings if store is not None else {}
        self._node = Node(
            folder, {**(brisk if store else {}), **remote, **settings}, store.env if store else {}
        )
        self.bootstrap = self._node.bootstrap
        self.start()

    def start(self) -> None:
        """Start again, after `stop()`: on the same folder and port."""
        started = time.monotonic()
        self._node.start()
        self.seconds_to_ready = time.monotonic() - started
        self.pid = self._node.pid

    def stop(self) -> None:
        self._node.stop()


class KafkaPeer(KafkaNode):
    """Apache Kafka 4.3.1, one KRaft node of both roles, 1 GiB of heap."""

    name = "Apache Kafka"


def have_pages(folder: Path, size: int) -> None:
    """Have so many bytes of memory ready for the page cache.

    The host of a virtual machine may have taken back what it did not use, and the first write to such a page
    costs several times as much, whoever writes: 0.4 GB/s instead of 5 were seen. Ask right before a measure.
    """
    path, chunk = folder / "pages", bytes(1 << 20)
    with path.open("wb", buffering=0) as file:
        for _ in range(0, size, len(chunk)):
            file.write(chunk)
    path.unlink()


def stolen_s() -> float:
    """Seconds, of all processors together, that the host of this virtual machine gave to others so far."""
    ticks = Path("/proc/stat").read_text(encoding="ascii").split(maxsplit=9)[1:9]
    return int(ticks[7]) / os.sysconf("SC_CLK_TCK")


def check_kafka(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """End the program with a message where `--kafka` is given and Apache Kafka is not here."""
    if arguments.kafka and not kafka_is_here():
        parser.error("Apache Kafka's jars are not here: make fetch-tools")


def kafka_is_here() -> bool:
    return shutil.which("java") is not None and any(KAFKA_LIBS.glob("kafka-tools-*.jar"))


@contextlib.contextmanager
def firn(folder: Path, store: Store | None = None, **settings: str) -> Iterator[FirnPeer]:
    peer = FirnPeer(folder, store, **settings)
    try:
        yield peer
    finally:
        peer.stop()


@contextlib.contextmanager
def kafka(folder: Path) -> Iterator[KafkaPeer]:
    peer = KafkaPeer(folder)
    try:
        yield peer
    finally:
        peer.stop()


@contextlib.contextmanager
def sides(folder: Path, with_kafka: bool) -> Iterator[list[Peer]]:
    """Run Firn, and Apache Kafka beside it if asked for, as one node each."""
    with contextlib.ExitStack() as stack:
        peers: list[Peer] = [stack.enter_context(firn(folder / "firn"))]
        if with_kafka:
            peers.append(stack.enter_context(kafka(folder / "kafka")))
        yield peers


def by_turns(peers: Sequence[Peer], rounds: int) -> Iterator[Peer]:
    """Yield each peer once a round; they take turns in going first."""
    for number in range(rounds):
        yield from peers[:: 1 if number % 2 == 0 else -1]


class PeerEnded(Exception):
    """A measured process has ended by itself."""


def rss_mb(pid: int) -> float:
    """Return the resident memory of a process, in MB. Raises `PeerEnded`."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1000
    raise PeerEnded(f"process {pid} has no memory")


class Cpu:
    """CPU seconds of a process over a `with`: `user`, `system`, `all`; and `wall`."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.user = self.system = self.wall = 0.0

    def __enter__(self) -> Cpu:
        self._from, self._started = cpu_seconds(self._pid), time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        user, system = cpu_seconds(self._pid)
        self.user, self.system = user - self._from[0], system - self._from[1]
        self.wall = time.monotonic() - self._started

    @property
    def all(self) -> float:
        return self.user + self.system


class Meters:
    """CPU of several processes."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._meters = [Cpu(pid) for pid in pids]

    def begin(self) -> None:
        for one in self._meters:
            one.__enter__()

    def end(self) -> float:
        """Return the seconds of all since `begin`."""
        for one in self._meters:
            one.__exit__()
        return sum(one.all for one in self._meters)
