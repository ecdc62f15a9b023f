"""Many partitions: `python -m bench.partitions [--kafka] [--partitions 10 1000 10000] [--step 1000]`

For each number of partitions: makes topics of `--step` partitions until there are so many, sends requests of
one record round robin over all of them, stops the node, starts it again, leaves it alone, ends it with
`kill -9`, and starts it once more.
"""

from __future__ import annotations

import argparse
import contextlib
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from bench.figures import FIRN, KAFKA, Figures, add_json_option, write_asked
from bench.measures import Measured
from bench.peers import Cpu, KafkaPeer, PeerEnded, check_kafka, rss_mb
from bench.wide_topics import WideTopics
from service.node.fd_budget import budget
from tests.support.processes import Node, wait_until

START_S: Final = 300.0
SETTLE_S: Final = 3.0
FILES_OF_A_NODE: Final = 20_000
FILES_OF_A_PARTITION: Final = 2
"""Open files by which a node takes so many partitions, with many to spare."""
_MANY_CONNECTIONS: Final = 2**31 - 1


class _Side(Protocol):
    """A node that can be stopped, killed, and started again."""

    @property
    def bootstrap(self) -> str: ...
    @property
    def pid(self) -> int: ...
    def start(self, seconds: float) -> object: ...
    def stop(self, seconds: float) -> None: ...
    def kill(self) -> None: ...


class Plan(NamedTuple):
    """Amounts of what is measured with each number of partitions."""

    requests: int
    idle_s: float
    kills: bool


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.partitions", description=__doc__)
    parser.add_argument("--partitions", type=int, nargs="+", default=[10_000], metavar="N")
    parser.add_argument("--step", type=int, default=1_000, help="partitions of each topic, at most")
    parser.add_argument("--requests", type=int, default=100_000, help="that are counted (default: 100,000)")
    parser.add_argument("--idle-s", type=float, default=20, help="time left alone (default: 20)")
    parser.add_argument("--without-kill", action="store_true", help="end before `kill -9`")
    parser.add_argument("--kafka", action="store_true", help="measure Apache Kafka beside it")
    parser.add_argument(
        "--kafka-most", type=int, default=10_000, help="partitions it is measured with (default: 10,000)"
    )
    add_json_option(parser)
    arguments = parser.parse_args()
    check_kafka(parser, arguments)
    figures = Figures()
    plan = Plan(arguments.requests, arguments.idle_s, not arguments.without_kill)
    for count in arguments.partitions:
        if not allow_open_files(count):
            print(f"{count:,} partitions are left out: too few files may be open", file=sys.stderr)
            continue
        topics = WideTopics(count, min(count, arguments.step))
        with tempfile.TemporaryDirectory(prefix="firn-partitions-") as name:
            node = Node(Path(name) / "firn").start()
            try:
                figures.tell(FIRN, measure(node, topics, plan))
            finally:
                node.close()
        if arguments.kafka and count <= arguments.kafka_most:
            with tempfile.TemporaryDirectory(prefix="firn-partitions-") as name:
                kafka = KafkaPeer(Path(name) / "kafka")
                try:
                    figures.tell(KAFKA, measure(kafka, topics, plan))
                except PeerEnded:  # as with 10,000 partitions in a gigabyte of heap
                    print(f"{KAFKA} has ended by itself with {count:,} partitions", file=sys.stderr)
                finally:
                    kafka.stop()
    write_asked(arguments, figures)
    return 0


def allow_open_files(partitions: int) -> bool:
    """Raise the limit of open files, which nodes inherit, for so many partitions; return whether a node takes
    them. Only root may raise the hard limit."""
    wanted = FILES_OF_A_NODE + FILES_OF_A_PARTITION * partitions
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(wanted, most), max(wanted, most)))
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    return budget(limit, max_connections=_MANY_CONNECTIONS).partitions >= partitions


def measure(node: _Side, topics: WideTopics, plan: Plan) -> Iterator[Measured]:
    """Measure an empty node with so many partitions."""

    def figure(what: str, unit: str, value: float, target: float | None = None) -> Measured:
        return Measured(f"{what}, {topics.count:,} partitions", unit, target, value)

    def starts() -> None:
        node.start(START_S)
        wait_until("all partitions to be led", lambda: topics.are_led(node.bootstrap), START_S)

    took = topics.create(node.bootstrap)
    yield figure(f"first {topics.step:,} made", "s", took[0])
    yield figure(f"last {topics.step:,} made", "s", took[-1], 2.0)
    # Each partition gets its files with its first record, and a JVM needs 100,000 requests until its code is
    # compiled.
    topics.produce(node.bootstrap, max(100_000, topics.count), contextlib.nullcontext())
    cpu = Cpu(node.pid)
    topics.produce(node.bootstrap, plan.requests, cpu)
    yield figure("requests of one record round robin", "1000/s", plan.requests / cpu.wall / 1e3)
    yield figure("CPU of one of them", "µs", cpu.all / plan.requests * 1e6)
    yield figure("open files then", "", _open_files(node))
    yield figure("clean stop", "s", _seconds(lambda: node.stop(START_S)))
    yield figure("start after a clean stop", "s", _seconds(starts), 6.0)
    time.sleep(SETTLE_S)
    with Cpu(node.pid) as cpu:
        time.sleep(plan.idle_s)
    yield figure("idle, of a core", "%", cpu.all / cpu.wall * 100, 2.0)
    yield figure("resident memory, idle", "MB", rss_mb(node.pid), 250)
    yield figure("open files, idle", "", _open_files(node))
    if plan.kills:
        node.kill()
        yield figure("start after kill -9", "s", _seconds(starts))


def _open_files(node: _Side) -> int:
    return sum(1 for _ in Path(f"/proc/{node.pid}/fd").iterdir())


def _seconds(work: Callable[[], object]) -> float:
    started = time.monotonic()
    work()
    return time.monotonic() - started


if __name__ == "__main__":
    sys.exit(main())
