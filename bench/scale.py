"""One and two nodes on this machine: `python -m bench.scale [small] [commits] [batches] [cold]`

A node is one event loop, so a machine serves as much as its nodes do together. Nodes share kernel, memory and
disk, and nothing else, so they are clusters of their own here. Printed are the rates of one node and of two,
their CPU for each unit (user and system), and what is reckoned for 8 and 16 nodes on as many cores: each
doubling costs what the first did.

- small: requests of one record of 100 B, acks=1
- commits: OffsetCommit of ten partitions, one under way on each of 50 connections
- batches: batches of 200 KB, acks=1
- cold: fetches of 1 MiB from object storage, a store for each node

Each node has a core, clients and stores have the others. On a machine of less than four cores each node
shares its core with its client and its store: one core with all of them is compared with two.

Beside `batches`, *bare* is a program that receives the same bytes and writes them to a file, and nothing
else: what the kernel does with one core, and with two.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import multiprocessing
import multiprocessing.queues
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from bench import groups, load
from bench.figures import FIRN, Figures, add_json_option, write_asked
from bench.measures import Measured
from bench.parts import parts_of
from bench.peers import Cpu, FirnPeer, have_pages
from tests.support.stores import Store, new_bucket, versitygw_binary, versitygw_server
from tests.support.tiers import settle

NAMES: Final = ("small", "commits", "batches", "cold")
RECKONED: Final = (8, 16)
GOAL: Final = 1.8
_CORES_ASIDE: Final = 4
"""Cores from which on two nodes and two clients have one each."""
_TOPIC: Final = "scale"
_PIECE: Final = 200_000
_SEGMENT_BYTES: Final = 32 << 20
_PATIENCE_S: Final = 300.0

_fork = multiprocessing.get_context("fork")


class Load(NamedTuple):
    """Work of one client at one server. `run` gets the server's address, and returns how many units it has
    done."""

    name: str
    unit: str
    units: float
    """how many are one printed unit"""
    run: Callable[[str], float]


class Served(NamedTuple):
    """A server under load, and where its client runs."""

    address: str
    pid: int
    client_cores: Sequence[int]


class Sample(NamedTuple):
    """Units in a second of all servers together, and their CPU seconds of one."""

    rate: float
    user: float
    system: float

    @property
    def cpu(self) -> float:
        return self.user + self.system


class Cores(NamedTuple):
    """Cores of each node, in their order, and those of what works for it."""

    nodes: tuple[int, int]
    others: tuple[tuple[int, ...], tuple[int, ...]]

    @property
    def are_apart(self) -> bool:
        return not set(self.nodes) & {core for cores in self.others for core in cores}


def split(cores: Sequence[int]) -> Cores:
    """Return which cores nodes have, and which their clients.

    >>> split([0, 1, 2, 3, 4])
    Cores(nodes=(0, 1), others=((2, 3, 4), (2, 3, 4)))
    >>> split([0, 1])
    Cores(nodes=(0, 1), others=((0,), (1,)))
    """
    first, second, *rest = cores
    if len(cores) < _CORES_ASIDE:
        return Cores((first, second), ((first,), (second,)))
    return Cores((first, second), (tuple(rest), tuple(rest)))


def reckoned(one: Sample, two: Sample, nodes: int) -> float:
    """Return the rate of `nodes` nodes on as many cores: each doubling costs a unit as much more CPU as the
    first one did, where it cost more.

    >>> round(reckoned(Sample(100.0, 0.006, 0.004), Sample(180.0, 0.006, 0.004), 8))
    800
    >>> round(reckoned(Sample(100.0, 0.006, 0.004), Sample(180.0, 0.006, 0.005), 8))
    601
    """
    dearer = max(1.0, two.cpu / one.cpu)
    return nodes / (one.cpu * math.pow(dearer, math.log2(nodes)))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; default: all")
    parser.add_argument("--requests", type=int, default=400_000, help="of small, for each node and round")
    parser.add_argument("--commits", type=int, default=40_000, help="likewise")
    parser.add_argument("--megabytes", type=int, default=400, help="of batches and cold, likewise")
    parser.add_argument("--rounds", type=int, default=5, help="of which medians are taken (default: 5)")
    add_json_option(parser)
    arguments = parser.parse_args()
    names = parts_of(parser, arguments.names, NAMES)
    every = sorted(os.sched_getaffinity(0))
    if len(every) < 2:
        parser.error("two cores are needed")
    cores = split(every)
    if not cores.are_apart:
        print(f"{len(every)} cores: each node shares one with its client and its store")
    figures = Figures()
    with tempfile.TemporaryDirectory(prefix="firn-scale-") as name:
        if "small" in names:
            _small(Path(name), arguments, cores, figures)
        if "commits" in names:
            _commits(Path(name), arguments, cores, figures)
        if "batches" in names:
            _batches(Path(name), arguments, cores, figures)
        if "cold" in names:
            _cold(Path(name), arguments, cores, figures)
    write_asked(arguments, figures)
    return 0


def _small(folder: Path, arguments: argparse.Namespace, cores: Cores, figures: Figures) -> None:
    requests = arguments.requests

    def small(bootstrap: str) -> float:
        load.produce_single_records(bootstrap, _TOPIC, requests)
        return float(requests)

    with _nodes(folder / "small", cores) as nodes:
        _measure(Load("small", "1000 requests", 1e3, small), nodes, arguments.rounds, figures)


def _commits(folder: Path, arguments: argparse.Namespace, cores: Cores, figures: Figures) -> None:
    count = arguments.commits

    def commits(bootstrap: str) -> float:
        groups.commit(bootstrap, count)
        return float(count)

    with _nodes(folder / "commits", cores) as nodes:
        for node in nodes:
            groups.prepare(node.address, [f"group-{number}" for number in range(groups.CONNECTIONS)])
        _measure(Load("commits", "1000 commits", 1e3, commits), nodes, arguments.rounds, figures)


def _batches(folder: Path, arguments: argparse.Namespace, cores: Cores, figures: Figures) -> None:
    megabytes = arguments.megabytes
    # What is written stays until the end, on a disk that writes it back meanwhile.
    have_pages(folder, megabytes * 1_000_000 * 3)

    def batches(bootstrap: str) -> float:
        size, count = load.fill(bootstrap, _TOPIC, megabytes)
        return size * count / 1e6

    def bare(address: str) -> float:
        return _send_pieces(address, megabytes)

    with _nodes(folder / "batches", cores) as nodes:
        _measure(Load("batches", "GB", 1e3, batches), nodes, arguments.rounds, figures)
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(_bare_server(folder, cores, number)) for number in range(2)]
        _measure(Load("bare", "GB", 1e3, bare), servers, arguments.rounds, figures)


def _cold(folder: Path, arguments: argparse.Namespace, cores: Cores, figures: Figures) -> None:
    if versitygw_binary() is None:
        print("cold: left out, versitygw is not here (make fetch-tools)")
        return
    with contextlib.ExitStack() as stack:
        stores: list[Store] = []
        for number in range(2):
            root = folder / f"store-{number}"
            root.mkdir()
            with _on(cores.others[number]):
                endpoint = stack.enter_context(versitygw_server(root))
            stores.append(new_bucket(endpoint, f"scale-{number}"))
        batch_bytes, ends = 0, []
        with _nodes(folder / "cold", cores, stores) as nodes:
            for node in nodes:
                config = {"segment_bytes": str(_SEGMENT_BYTES), "local_retention_bytes": "1"}
                load.create(node.address, f"{_TOPIC}-cold", remote_storage_enable="true", **config)
                batch_bytes, count = load.fill(node.address, f"{_TOPIC}-cold", arguments.megabytes)
                ends.append(_settled(node.address, count - 2 * _SEGMENT_BYTES // batch_bytes))
        fewest = min(ends)

        def cold(bootstrap: str) -> float:
            return load.fetch_all(bootstrap, f"{_TOPIC}-cold", batch_bytes, fewest) / 1e6

        with _nodes(folder / "cold", cores, stores) as nodes:
            _measure(Load("cold", "GB", 1e3, cold), nodes, arguments.rounds, figures)


def _settled(bootstrap: str, least: int) -> int:
    """Wait until only the archive has `least` batches of the topic; return how many it has. Where all share a
    core, an upload may take longer than `settle` waits for the next one."""
    until = time.monotonic() + _PATIENCE_S
    while (found := settle(bootstrap, f"{_TOPIC}-cold", 0, 120) // load.BATCH_RECORDS) < least:
        if time.monotonic() > until:
            raise SystemExit(f"after {_PATIENCE_S:g} s the archive has {found} of {least} batches")
    return found


@contextlib.contextmanager
def _on(cores: Iterable[int]) -> Iterator[None]:
    """Have processes that are started in the block run on these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def _nodes(folder: Path, cores: Cores, stores: Sequence[Store] | None = None) -> Iterator[list[Served]]:
    """Run two nodes, each on its core, with a topic each."""
    with contextlib.ExitStack() as stack:
        nodes = []
        for number, core in enumerate(cores.nodes):
            with _on([core]):
                node = FirnPeer(
                    folder.with_name(f"{folder.name}-{number}"), stores[number] if stores else None
                )
            stack.callback(node.stop)
            nodes.append(Served(node.bootstrap, node.pid, cores.others[number]))
            if stores is None:
                load.create(node.bootstrap, _TOPIC)
        yield nodes


@contextlib.contextmanager
def _bare_server(folder: Path, cores: Cores, number: int) -> Iterator[Served]:
    """Run a process that writes what it receives to a file and answers each piece with a byte."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        place = folder / f"bare-{number}"

        def serve() -> None:
            os.sched_setaffinity(0, [cores.nodes[number]])
            buffer = memoryview(bytearray(_PIECE))
            with place.open("wb", buffering=0) as file:
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        while _receive_piece(connection, buffer):
                            file.write(buffer)
                            connection.sendall(b".")

        server = _fork.Process(target=serve, daemon=True)
        server.start()
        assert server.pid is not None
        try:
            yield Served(f"127.0.0.1:{listener.getsockname()[1]}", server.pid, cores.others[number])
        finally:
            server.terminate()
            server.join()


def _receive_piece(connection: socket.socket, buffer: memoryview) -> bool:
    """Fill the buffer. Returns False where the connection has ended."""
    got = 0
    while got < len(buffer):
        if not (count := connection.recv_into(buffer[got:])):
            return False
        got += count
    return True


def _send_pieces(address: str, megabytes: int) -> float:
    """Send so many MB, as `load.fill` does; returns how many they were."""
    host, _, port = address.rpartition(":")
    piece, count, under_way = bytes(_PIECE), megabytes * 1_000_000 // _PIECE, 0
    with socket.create_connection((host, int(port)), 60) as connection:
        for _ in range(count):
            connection.sendall(piece)
            under_way += 1
            if under_way == 5:
                under_way -= len(connection.recv(1))
        while under_way:
            under_way -= len(connection.recv(under_way))
    return count * _PIECE / 1e6


def _measure(task: Load, servers: Sequence[Served], rounds: int, figures: Figures) -> None:
    _together(servers, task)  # warm
    samples: dict[int, list[Sample]] = {1: [], 2: []}
    for _ in range(rounds):
        for count, found in samples.items():
            found.append(_together(servers[:count], task))
        one, two = (found[-1] for found in samples.values())
        figures.note(FIRN, measured(task, one, two))
    for line in rows(task, *(median(found) for found in samples.values())):
        print(line, flush=True)


def measured(task: Load, one: Sample, two: Sample) -> Iterator[Measured]:
    """Yield the figures of a round."""
    yield Measured(f"two nodes by one, {task.name}", "x", None, two.rate / one.rate)
    yield Measured(f"one node, {task.name}", f"{task.unit}/s", None, one.rate / task.units)
    yield Measured(f"two nodes, {task.name}", f"{task.unit}/s", None, two.rate / task.units)
    for nodes in RECKONED:
        rate = reckoned(one, two, nodes) / task.units
        yield Measured(f"reckoned for {nodes} nodes, {task.name}", f"{task.unit}/s", None, rate)


def median(samples: Sequence[Sample]) -> Sample:
    return Sample(*(statistics.median(column) for column in zip(*samples, strict=True)))


def rows(task: Load, one: Sample, two: Sample) -> Iterator[str]:
    """Yield the lines of a load."""
    name, unit, ratio = task.name, task.unit, two.rate / one.rate
    for count, sample in ((1, one), (2, two)):
        user, system = (seconds * task.units * 1e3 for seconds in (sample.user, sample.system))
        yield (
            f"{name}, {count} on {'a core' if count == 1 else f'{count} cores'}: "
            f"{sample.rate / task.units:.3f} {unit}/s; CPU for {unit}: "
            f"{user + system:.1f} ms, user {user:.1f}, system {system:.1f}"
        )
    yield f"{name}: two do {ratio:.2f} x what one does (goal: {GOAL} x{', UNDER' * (ratio < GOAL)})"
    yield f"{name}: with two a unit costs {two.cpu / one.cpu:.2f} x the CPU"
    for nodes in RECKONED:
        rate = reckoned(one, two, nodes) / task.units
        yield f"{name}: reckoned for {nodes} on {nodes} cores, clients elsewhere: {rate:.2f} {unit}/s"


def _together(servers: Sequence[Served], task: Load) -> Sample:
    """Have a client for each server do the task, all at once, each in a process of its own."""
    done: multiprocessing.queues.SimpleQueue[float] = _fork.SimpleQueue()

    def work(server: Served) -> None:
        os.sched_setaffinity(0, server.client_cores)
        done.put(task.run(server.address))

    clients = [_fork.Process(target=work, args=(server,), daemon=True) for server in servers]
    with contextlib.ExitStack() as stack:
        meters = [stack.enter_context(Cpu(server.pid)) for server in servers]
        begun = time.monotonic()
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        wall = time.monotonic() - begun
    if any(client.exitcode for client in clients):
        raise SystemExit("a client failed")
    units = sum(done.get() for _ in clients)
    return Sample(
        units / wall, *(sum(getattr(m, kind) for m in meters) / units for kind in ("user", "system"))
    )


if __name__ == "__main__":
    sys.exit(main())
