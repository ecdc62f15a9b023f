"""`python -m bench.tls [NAME …] [--kafka] [--rounds N]`: what TLS costs.

One node with a listener of each kind, and a key of P-256. Columns: PLAINTEXT, SSL, and with `--kafka` the
same of Apache Kafka. Figures of a server are its own processor time, whatever its clients take:

- fetch, produce: seconds of user and system time for a GiB
- requests: microseconds of a produce request of one record, a hundred under way
- handshakes: microseconds of processor time for one, and how many a second there were; beside them the p99 of
  an innocent client on a plain listener, while `STORM` connections are made as fast as four threads can
- idle: MiB of resident memory for 10,000 connections that have asked for ApiVersions once
"""

from __future__ import annotations

import argparse
import contextlib
import resource
import socket
import ssl
import statistics
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from bench import load
from bench.innocent import Innocent
from bench.parts import parts_of
from bench.peers import Cpu, check_kafka, rss_mb
from tests.support.certificates import Authority
from tests.support.kafka_node import KafkaNode
from tests.support.processes import Node, free_port

NAMES = ("fetch", "produce", "requests", "handshakes", "idle")
MEGABYTES = 1000
REQUESTS = 50_000
STORM = 5000
STORM_THREADS = 4
IDLE = 10_000
GIB = 1 << 30
_VERSIONS = bytes.fromhex("0000000b001200000000000100016d")


class Server(NamedTuple):
    """A node that runs, with its addresses."""

    name: str
    pid: int
    plain: str
    secured: str


@contextlib.contextmanager
def firn(folder: Path, authority: Authority) -> Iterator[Server]:
    """Run a node of Firn."""
    folder.mkdir()
    node, port = Node(folder), free_port()
    node.settings |= {
        "listeners": f"PLAINTEXT://127.0.0.1:{node.port},SSL://127.0.0.1:{port}",
        "max.connections": str(2 * IDLE),
        "ssl.keystore.location": authority.issue().write(folder / "node.pem"),
    }
    node.start()
    try:
        yield Server("Firn", node.pid, node.bootstrap, f"127.0.0.1:{port}")
    finally:
        node.stop()


@contextlib.contextmanager
def kafka(folder: Path, authority: Authority) -> Iterator[Server]:
    """Run a node of Apache Kafka."""
    folder.mkdir()
    settings = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": authority.issue().write(folder / "node.pem"),
    }
    node = KafkaNode(folder / "data", settings, secured=("SSL",))
    try:
        yield Server("Apache Kafka", node.pid, node.bootstrap, node.addresses["SSL"])
    finally:
        node.stop()


def client_context(authority: Authority) -> ssl.SSLContext:
    """Return what a client trusts."""
    return ssl.create_default_context(cadata=authority.pem)


Figures = dict[str, float]


def fetch(server: Server, tls: ssl.SSLContext) -> Figures:
    """Measure reads of a topic that is in the page cache."""
    topic = _topic(server)
    size, number = load.fill(server.plain, topic, MEGABYTES)
    found = {}
    for column, address, context in _columns(server, tls):
        with Cpu(server.pid) as cpu:
            read = load.fetch_all(address, topic, size, number, tls=context)
        found[f"fetch, CPU s/GiB: {column}"] = cpu.all / read * GIB
    return found


def produce(server: Server, tls: ssl.SSLContext) -> Figures:
    """Measure writes of batches of 200 KB."""
    found = {}
    for column, address, context in _columns(server, tls):
        topic = _topic(server)
        with Cpu(server.pid) as cpu:
            size, number = load.fill(address, topic, MEGABYTES, tls=context)
        found[f"produce, CPU s/GiB: {column}"] = cpu.all / (size * number) * GIB
    return found


def requests(server: Server, tls: ssl.SSLContext) -> Figures:
    """Measure requests of one record."""
    found = {}
    for column, address, context in _columns(server, tls):
        topic = _topic(server)
        with Cpu(server.pid) as cpu:
            load.produce_single_records(address, topic, REQUESTS, chunk=1, tls=context)
        found[f"request, CPU µs: {column}"] = cpu.all / REQUESTS * 1e6
    return found


def handshakes(server: Server, tls: ssl.SSLContext) -> Figures:
    """Measure a storm of connections, each of which ends when it is there."""
    topic = _topic(server)
    host, _, port = server.secured.rpartition(":")

    def connect() -> None:
        for _ in range(STORM // STORM_THREADS):
            with (
                socket.create_connection((host, int(port)), 30) as plain,
                tls.wrap_socket(plain, server_hostname=host) as conn,
            ):
                conn.sendall(_VERSIONS)
                conn.recv(1)

    with Innocent(server.plain, topic, 100) as innocent, Cpu(server.pid) as cpu:
        innocent.begin()
        threads = [threading.Thread(target=connect) for _ in range(STORM_THREADS)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        felt = innocent.end()
    return {
        "handshake, CPU µs": cpu.all / STORM * 1e6,
        "handshakes a second": STORM / cpu.wall,
        "innocent p99 during them, ms": felt.p99 * 1e3,
    }


def idle(server: Server, tls: ssl.SSLContext) -> Figures:
    """Measure the memory of connections that do nothing."""
    found = {}
    for column, address, context in _columns(server, tls):
        host, _, port = address.rpartition(":")
        before, held = rss_mb(server.pid), []
        for _ in range(IDLE):
            conn = socket.create_connection((host, int(port)), 30)
            if context is not None:
                conn = context.wrap_socket(conn, server_hostname=host)
            conn.sendall(_VERSIONS)
            conn.recv(4096)
            held.append(conn)
        found[f"{IDLE} idle connections, MB: {column}"] = rss_mb(server.pid) - before
        for conn in held:
            conn.close()
    return found


def _columns(server: Server, tls: ssl.SSLContext) -> Iterator[tuple[str, str, ssl.SSLContext | None]]:
    yield "plain", server.plain, None
    yield "SSL", server.secured, tls


def _topic(server: Server) -> str:
    name = f"bench-{uuid.uuid4().hex[:8]}"
    load.create(server.plain, name)
    return name


MEASURES: dict[str, Callable[[Server, ssl.SSLContext], Figures]] = {
    "fetch": fetch,
    "produce": produce,
    "requests": requests,
    "handshakes": handshakes,
    "idle": idle,
}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.tls", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; default: all")
    parser.add_argument("--kafka", action="store_true", help="measure Apache Kafka beside it")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of which medians are taken")
    arguments = parser.parse_args()
    names = parts_of(parser, arguments.names, NAMES)
    check_kafka(parser, arguments)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    authority = Authority()
    tls = client_context(authority)
    peers = [firn, kafka] if arguments.kafka else [firn]
    with tempfile.TemporaryDirectory(prefix="firn-tls-") as folder, contextlib.ExitStack() as stack:
        servers = [stack.enter_context(one(Path(folder) / one.__name__, authority)) for one in peers]
        for name in names:
            for server in servers:
                rounds = [MEASURES[name](server, tls) for _ in range(arguments.rounds)]
                for what in rounds[0]:
                    print(
                        f"{server.name}: {what}: {statistics.median(one[what] for one in rounds):.2f}",
                        flush=True,
                    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
