"""`python -m bench.cold [rate] [memory] [trips]`: cold reads beside raw ranged GETs of the same store.

- rate: one client that reads a partition cold, and eight together, as shares of what raw parallel ranged GETs
  by the same library bring from the same store in the same round, and of what they would bring if this
  machine's processors had the work of clients and store as well (`bench.left`); CPU per GB of each. With
  `--kafka` the same clients read from Apache Kafka's tiered storage, too, which is a folder of files
  (bench/tiered_kafka.py).
- memory: 64 clients that read, each at a place of its own, and 64 that ask and never read: resident memory
  beyond idle, bytes downloaded for each byte served, and the rate of one more.
- trips: requests until the first record is there, cold, warm, right after a commit, and in an archive of
  100,000 segments; and how long a manifest of 1,024 segments takes to decode.

Clients are processes of their own that do as little as can be. Everything runs on one machine, the store,
too: what the node takes the store does not have. So trust shares, and CPU per GB, which includes what a
node does anyhow.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import random
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from bench import load
from bench.cold_topics import ALONE, COUNT, ColdTopics
from bench.figures import FIRN, KAFKA, Figures, add_json_option, write_asked
from bench.left import Meter, Work, child, left
from bench.measures import Measured
from bench.parts import parts_of
from bench.peers import Cpu, FirnPeer, Peer, firn, rss_mb
from bench.tiered_kafka import WARM_UP_MB, TieredKafka, tiered_kafka, tiered_kafka_is_here
from service.base.world import system_world
from service.remote.stores.obstore_store import open_store
from tests.support.stores import ACCESS, SECRET, Store, new_bucket, versitygw_binary, versitygw_server

PARTS: Final = ("rate", "memory", "trips")
RANGE_BYTES: Final = 4 << 20
RAW_THREADS: Final = 10
READERS: Final = 64
CACHE_MB: Final = 128 * 1.048576

_fork = multiprocessing.get_context("fork")


class Bench(ColdTopics):
    """A store with cold topics in it, and figures by name."""

    def __init__(self, folder: Path, store: Store, store_pid: int, megabytes: int) -> None:
        super().__init__(megabytes)
        self.folder = folder
        self.store = store
        self.store_pid = store_pid
        self.figures = Figures()

    def note(self, what: str, value: float, unit: str = "", side: str = FIRN) -> None:
        self.figures.tell(side, [Measured(what, unit, None, value)], sys.stderr)

    def fill(self) -> None:
        with self.node() as peer:
            self.fill_in(peer.bootstrap)

    @contextlib.contextmanager
    def node(self, **settings: str) -> Iterator[FirnPeer]:
        """A node that has nothing in its caches."""
        with firn(self.folder / "node", self.store, **settings) as peer:
            time.sleep(1)
            yield peer

    def downloaded(self) -> int:
        """Bytes that the store has written so far: while nobody uploads, those that it has sent."""
        counted = Path(f"/proc/{self.store_pid}/io").read_text()
        return int(counted.partition("wchar:")[2].split()[0])

    def client(self) -> Any:
        assert self.store.endpoint is not None
        return open_store(
            self.store.url, world=system_world(), endpoint=self.store.endpoint, region="us-east-1",
            access_key_id=ACCESS, secret_access_key=SECRET,
        )  # fmt: skip


# Rates


def raw(bench: Bench) -> Work:
    """Get the logs of all segments by ranges, on threads."""
    client = bench.client()
    jobs = [
        (key, start, min(RANGE_BYTES, size - start))
        for key, size in sorted(bench.store.objects().items())
        if key.endswith(".seg")
        for start in range(0, size, RANGE_BYTES)
    ]
    with Meter(own=os.getpid(), store=bench.store_pid) as meter, ThreadPoolExecutor(RAW_THREADS) as pool:
        for _ in pool.map(lambda job: len(client.get_range(*job)), jobs):
            pass
    return meter.work(sum(job[2] for job in jobs))


def _read_topic(bootstrap: str, topic: str, batch_bytes: int, batches: int) -> None:
    load.fetch_all(bootstrap, topic, batch_bytes, batches)


def together(topics: ColdTopics, peer: Peer, names: list[str], store: int | None = None) -> Work:
    """Read `names` with one client each. `store`: the process of the store, if it has one of its own."""
    clients = [
        _fork.Process(
            target=_read_topic, args=(peer.bootstrap, name, topics.batch_bytes, topics.batches[name])
        )
        for name in names
    ]
    with Meter(own=peer.pid, store=store) as meter:
        for client in clients:
            client.start()
        for client in clients:
            client.join()
    assert all(client.exitcode == 0 for client in clients)
    return meter.work(sum(topics.batches[name] for name in names) * topics.batch_bytes)


def rate(bench: Bench, rounds: int, kafka: TieredKafka | None = None) -> None:
    theirs = ColdTopics(bench.megabytes)
    if kafka is not None:
        theirs.fill_in(kafka.bootstrap)
        for _ in range(-(-2 * WARM_UP_MB // bench.megabytes)):
            together(theirs, kafka, [ALONE])
    for _ in range(rounds):
        plain = raw(bench)
        bench.note("raw GETs", plain.rate, "MB/s")
        bench.note("raw GETs, CPU", plain.own, "s/GB")
        bench.note("raw GETs, CPU of the store", plain.store, "s/GB")
        for what, names in (("one client", [ALONE]), ("eight", bench.names)):
            with bench.node() as peer:
                found = together(bench, peer, names, bench.store_pid)
            bench.note(f"{what}, rate", found.rate, "MB/s")
            bench.note(f"{what}, share of raw", 100 * found.rate / plain.rate, "%")
            bench.note(f"{what}, share of what is left", 100 * found.rate / left(plain, found), "%")
            bench.note(f"{what}, CPU of the node", found.own, "s/GB")
            bench.note(f"{what}, CPU of the store", found.store, "s/GB")
            bench.note(f"{what}, CPU of the clients", found.clients, "s/GB")
            if kafka is not None:
                found = together(theirs, kafka, names)
                bench.note(f"{what}, rate", found.rate, "MB/s", KAFKA)
                bench.note(f"{what}, CPU of the node", found.own, "s/GB", KAFKA)


# Memory


class Reader:
    """One client that reads on from `position`, in batches; counts what it got."""

    def __init__(self, bench: Bench, bootstrap: str, topic: str, position: int) -> None:
        self.bench = bench
        self.topic = topic
        self.position = position
        self.got = 0
        self.longest_s = 0.0
        host, _, port = bootstrap.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), 60)

    def ask(self, max_bytes: int = 1 << 20) -> None:
        self.socket.sendall(load.fetch_frame(self.topic, self.position * load.BATCH_RECORDS, max_bytes))

    def take(self, sink: memoryview) -> None:
        (size,) = struct.unpack(">i", self._receive(4))
        left = size
        while left:
            count = self.socket.recv_into(sink[: min(left, len(sink))])
            if not count:
                raise ConnectionError("the node closed the connection")
            left -= count
        batches = size // self.bench.batch_bytes
        self.got += batches * self.bench.batch_bytes
        self.position += batches

    def _receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self.socket.recv(size - len(data))
            if not piece:
                raise ConnectionError("the node closed the connection")
            data += piece
        return data

    def read(self, until: Callable[[], bool]) -> None:
        sink = memoryview(bytearray(1 << 20))
        while not until() and self.position < self.bench.batches[self.topic]:
            began = time.monotonic()
            self.ask()
            self.take(sink)
            self.longest_s = max(self.longest_s, time.monotonic() - began)


def _spread(bench: Bench, bootstrap: str, count: int) -> list[Reader]:
    """Readers at places of their own, so far from each other that none reads what another has read."""
    each = count // COUNT
    return [
        Reader(bench, bootstrap, name, n * bench.batches[name] // each)
        for name in bench.names
        for n in range(each)
    ]


class _Peak:
    """The greatest resident memory of a node while it lives, in MB."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.mb = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> _Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.05):
            self.mb = max(self.mb, rss_mb(self.pid))


def prompt(bench: Bench, count: int) -> None:
    """`count` clients that each read a stretch of its own to its end."""
    with bench.node() as peer:
        idle, before = rss_mb(peer.pid), bench.downloaded()
        readers = _spread(bench, peer.bootstrap, count)
        each = count // COUNT
        with _Peak(peer.pid) as peak, Cpu(peer.pid) as cpu:
            threads = []
            for reader in readers:
                end = reader.position + bench.batches[reader.topic] // each
                until = lambda reader=reader, end=end: reader.position >= end  # noqa: E731
                threads.append(threading.Thread(target=reader.read, args=(until,)))
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        served = sum(reader.got for reader in readers)
    bench.note(f"{count} prompt readers, over idle (goal: ≤ {CACHE_MB + 40:.0f})", peak.mb - idle, "MB")
    bench.note(
        f"{count} prompt readers, downloaded / served (goal: ≤ 1.3)", (bench.downloaded() - before) / served
    )
    bench.note(f"{count} prompt readers, together", served / 1e6 / cpu.wall, "MB/s")
    bench.note(f"{count} prompt readers, longest fetch", max(reader.longest_s for reader in readers), "s")


def _honest_rate(bench: Bench, bootstrap: str, seconds: float) -> float:
    reader = Reader(bench, bootstrap, bench.names[0], 0)
    began = time.monotonic()
    reader.read(lambda: time.monotonic() - began > seconds)
    return reader.got / 1e6 / (time.monotonic() - began)


def dead(bench: Bench) -> None:
    """64 clients that ask for much and never read, then one that does."""
    with bench.node() as peer:
        alone = _honest_rate(bench, peer.bootstrap, 5)
    with bench.node() as peer:
        idle = rss_mb(peer.pid)
        with _Peak(peer.pid) as peak:
            readers = _spread(bench, peer.bootstrap, READERS)
            for reader in readers:
                reader.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                reader.ask(32 << 20)
            time.sleep(5)
            beside = _honest_rate(bench, peer.bootstrap, 5)
        for reader in readers:
            reader.socket.close()
    bench.note(f"64 that never read, over idle (goal: ≤ {CACHE_MB + 40:.0f})", peak.mb - idle, "MB")
    bench.note("one alone", alone, "MB/s")
    bench.note(f"one beside 64 that never read (goal: ≥ {alone / 65:.1f})", beside, "MB/s")


def memory(bench: Bench) -> None:
    for count in (32, READERS):
        prompt(bench, count)
    dead(bench)


# Round trips


def trips(bench: Bench) -> None:
    from bench.cold_trips import aborted_rows, first_record, manifest_decode

    first_record(bench.note)
    manifest_decode(bench.note)
    aborted_rows(bench.note)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.cold", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of rates (default: 3)")
    parser.add_argument("--megabytes", type=int, default=1024, help="size of the archive (default: 1024)")
    parser.add_argument("--kafka", action="store_true", help="rates of Apache Kafka's tiered storage beside")
    add_json_option(parser)
    arguments = parser.parse_args()
    parts = parts_of(parser, arguments.parts, PARTS)
    if arguments.kafka and not tiered_kafka_is_here():
        parser.error("Apache Kafka's jars and LocalTieredStorage are not here: make fetch-tools")
    if versitygw_binary() is None and set(parts) != {"trips"}:
        parser.error("versitygw is not here: make fetch-tools")
    with tempfile.TemporaryDirectory(prefix="firn-bench-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        bench = Bench(folder, Store(""), 0, arguments.megabytes)
        if set(parts) != {"trips"}:
            endpoint = stack.enter_context(versitygw_server(folder))
            bench.store_pid = child("versitygw")
            bench.store = new_bucket(endpoint, f"bench-{random.randrange(1 << 30)}")
            bench.fill()
        if "rate" in parts:
            kafka = stack.enter_context(tiered_kafka(folder / "kafka")) if arguments.kafka else None
            rate(bench, arguments.rounds, kafka)
        if "memory" in parts:
            memory(bench)
        if "trips" in parts:
            trips(bench)
    bench.figures.tell_medians()
    write_asked(arguments, bench.figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
