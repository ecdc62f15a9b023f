"""Transactions: `python -m bench.transactions [ROW…] [--kafka] [--rounds N]`, each row by itself or all

rate-1 rate-3     eight producers, 100 records over four partitions and an offset in each transaction, by
                  version 1 (librdkafka) and 2 (Java), on one node and on three: rate, and CPU of one
latency           50 commits a second: EndTxn, and until a read_committed consumer has seen it
first             the first batch of a transaction (version 2) on four partitions of three brokers
fetch             MB/s at isolation 1, nothing and half of it aborted, by those at isolation 0; plain topics
ids               `--ids` transactional ids: `kill -9`, until all are served; bytes of one
open              as many, with open transactions: `kill -9`, until all are aborted, behind the timeout
failover          the longest pause of commits when the coordinator, and a data partition's leader, die
log               bytes of the transaction log of one transaction; frames between brokers (segments with data)
aborted           `--aborted` aborted transactions in one partition: a look-up in the middle

With `--kafka` Apache Kafka 4.3.1 does the same beside it, in turns. Medians of the rounds are told.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from bench import transaction_load as load
from bench.figures import SIDES, Figures, add_json_option, write_asked
from bench.measures import Measured
from bench.parts import parts_of
from bench.peers import kafka_is_here, rss_mb
from service.client.admin import Cluster as AdminCluster
from service.client.transaction_queries import list_transactions
from tests.support.clients import Admin
from tests.support.isolation import COMMITTED, UNCOMMITTED, fetch
from tests.support.kafka_tools import run_tool
from tests.support.processes import wait_until
from tests.support.quorums import Cluster, Program
from tests.support.transactional_client import TransactionalClient, settled

OPEN_TIMEOUT_MS = 60_000
TRANSACTION_TOPIC = "__transaction_state"


class Side(NamedTuple):
    """Running nodes of one program."""

    program: Program
    cluster: Cluster
    folder: Path

    @property
    def bootstrap(self) -> str:
        return self.cluster.bootstrap

    @property
    def pids(self) -> list[int]:
        return [one.process.pid for one in self.cluster.members.values() if one.process is not None]

    def topic(self, name: str, partitions: int = 1) -> str:
        own = f"{name}-{uuid4().hex[:6]}"
        Admin(self.bootstrap, len(self.cluster.members)).create(own, partitions)
        return own


@contextlib.contextmanager
def side(folder: Path, program: Program, nodes: int, **settings: str) -> Iterator[Side]:
    """Nodes on a fresh folder; three replicate all topics, two of them in sync."""
    folder.mkdir(parents=True)
    replicas = {
        "offsets.topic.replication.factor": str(nodes),
        "transaction.state.log.replication.factor": str(nodes),
        "transaction.state.log.min.isr": str(min(nodes, 2)),
        "default.replication.factor": str(nodes),
        "min.insync.replicas": str(min(nodes, 2)),
        **{key.replace("_", "."): value for key, value in settings.items()},
    }
    programs = dict.fromkeys(range(1, nodes + 1), program)
    with Cluster(folder, nodes, nodes, replicas, programs, {"KAFKA_HEAP": "1g"}) as cluster:
        for member in cluster.members.values():
            member.settings |= replicas
            member.launch()
        for member in cluster.members.values():
            wait_until("a node to serve", member.has_started, 120)
        run_tool(
            "features", "--bootstrap-server", cluster.bootstrap,
            "upgrade", "--feature", "transaction.version=2",
        )  # fmt: skip
        yield Side(program, cluster, folder)


Row = Callable[[Path, Program, argparse.Namespace], list[Measured]]


def rate(nodes: int) -> Row:
    def row(folder: Path, program: Program, arguments: argparse.Namespace) -> list[Measured]:
        found = []
        with side(folder, program, nodes) as one:
            kinds = (("TV1, librdkafka", load.confluent_rate), ("TV2, Java", load.java_rate))
            for name, measure in kinds:
                topic = one.topic("rate", load.PARTITIONS)
                rated = measure(one.bootstrap, topic, one.pids, arguments.seconds, folder)
                found += [
                    Measured(f"r{nodes}, {name}: transactions", "1/s", None, rated.per_second),
                    Measured(f"r{nodes}, {name}: CPU of one", "ms", None, rated.cpu_ms),
                ]
        return found

    return row


def latency(folder: Path, program: Program, arguments: argparse.Namespace) -> list[Measured]:
    with side(folder, program, 1) as one:
        topic = one.topic("paced")
        load.paced_commits(one.bootstrap, topic, 50, 500)  # a JVM compiles meanwhile
        commits = load.paced_commits(one.bootstrap, one.topic("paced"), 50, 50 * arguments.seconds)
    ends, seen = [one.end_ms for one in commits], [one.seen_ms for one in commits]
    return [
        Measured("EndTxn at 50/s, p50", "ms", None, at(ends, 0.5)),
        Measured("EndTxn at 50/s, p99", "ms", None, at(ends, 0.99)),
        Measured("EndTxn sent until the record is seen, p50", "ms", None, at(seen, 0.5)),
        Measured("EndTxn sent until the record is seen, p99", "ms", None, at(seen, 0.99)),
    ]


def first(folder: Path, program: Program, _: argparse.Namespace) -> list[Measured]:
    with side(folder, program, 3) as one:
        topic = one.topic("first", 4)
        places = [(topic, number) for number in range(4)]
        with TransactionalClient(one.bootstrap, "first") as client:
            load.check(settled(client, client.init))
            times = [load.first_batches(client, places) for _ in range(600)][100:]
    return [
        Measured("r3, first batch on four partitions, p50", "ms", None, at(times, 0.5)),
        Measured("r3, first batch on four partitions, p99", "ms", None, at(times, 0.99)),
    ]


def fetching(folder: Path, program: Program, arguments: argparse.Namespace) -> list[Measured]:
    found = []
    with side(folder, program, 1) as one:
        for name, aborted_in, is_plain in (
            ("plain", 0, True), ("0 % aborted", 0, False), ("50 % aborted", 2, False),
        ):  # fmt: skip
            topic = one.topic("fetch")
            load.fill(one.bootstrap, topic, arguments.megabytes, aborted_in=aborted_in, is_plain=is_plain)
            wait_until("it is stable", partial(is_stable, one.bootstrap, topic))
            end = fetch(one.bootstrap, topic, 0, COMMITTED).last_stable_offset
            rates: dict[int, list[float]] = {UNCOMMITTED: [], COMMITTED: []}
            for number in range(10):
                for isolation in (UNCOMMITTED, COMMITTED)[:: 1 if number % 2 else -1]:
                    rates[isolation].append(load.read_all(one.bootstrap, topic, isolation, end))
            committed, any_of = (
                statistics.median(rates[isolation]) for isolation in (COMMITTED, UNCOMMITTED)
            )
            found += [
                Measured(f"{name}: fetched at isolation 1", "MB/s", None, committed),
                Measured(f"{name}: by that of isolation 0", "x", None, committed / any_of),
            ]
    return found


def is_stable(bootstrap: str, topic: str) -> bool:
    answer = fetch(bootstrap, topic, 0, COMMITTED)
    return bool(answer.last_stable_offset == answer.high_watermark)


def ids(folder: Path, program: Program, arguments: argparse.Namespace) -> list[Measured]:
    with side(folder, program, 1) as one:
        load.make_ids(one.bootstrap, 100, OPEN_TIMEOUT_MS)
        before = rss_mb(one.pids[0])
        load.make_ids(one.bootstrap, arguments.ids, OPEN_TIMEOUT_MS)
        bytes_each = 1e6 * (rss_mb(one.pids[0]) - before) / arguments.ids
        served_s = restart_until(one, lambda: is_loaded(one, arguments.ids))
        assert len(listed(one)) >= arguments.ids
    return [
        Measured(f"{arguments.ids} ids: memory of one", "bytes", None, bytes_each),
        Measured(f"{arguments.ids} ids: ready until all are served", "s", None, served_s),
    ]


def opened(folder: Path, program: Program, arguments: argparse.Namespace) -> list[Measured]:
    with side(folder, program, 1) as one:
        topic = one.topic("open")
        load.make_ids(one.bootstrap, arguments.ids, OPEN_TIMEOUT_MS, topic=topic)
        made = time.monotonic()
        left_s = restart_until(one, lambda: is_loaded(one, arguments.ids))
        assert len(listed(one)) >= arguments.ids
        wait_until("all are aborted", lambda: not listed(one, ("Ongoing", "PrepareAbort")), 300, 0.5)
        late_s = time.monotonic() - made - OPEN_TIMEOUT_MS / 1000
        wait_until("it is stable", lambda: is_stable(one.bootstrap, topic), 60)
    return [
        Measured(f"{arguments.ids} open: ready until all are served", "s", None, left_s),
        Measured(f"{arguments.ids} open: the last is aborted behind its timeout", "s", None, late_s),
    ]


def is_loaded(one: Side, count: int) -> bool:
    """Return whether all coordinators serve: 1,000 ids are in all partitions. Raises while one loads."""
    return len(listed(one, pattern="id-0000.*")) >= min(count, 1000)


def listed(one: Side, states: Sequence[str] = (), pattern: str | None = None) -> list[str]:
    """The ids that are served. Raises while a coordinator loads."""
    with AdminCluster(one.bootstrap) as cluster:
        found = list_transactions(cluster, lambda: False, states=states, pattern=pattern, wait_s=120)
    return [row.transactional_id for row in found.rows]


def restart_until(one: Side, is_served: Callable[[], bool]) -> float:
    """`kill -9`, start, and return the seconds from ready until it is served."""
    member = one.cluster.members[1]
    member.kill()
    member.start(120)
    ready = time.monotonic()

    def quietly() -> bool:
        with contextlib.suppress(Exception):
            return is_served()
        return False

    wait_until("all ids to be served", quietly, 300, 0.05)
    return time.monotonic() - ready


def failover(folder: Path, program: Program, arguments: argparse.Namespace) -> list[Measured]:
    found = []
    with side(folder, program, 3) as one:
        for what in ("the coordinator", "a data partition's leader"):
            topic = one.topic("failover")
            pauses = []
            for _ in range(arguments.kills):
                with load.commits_in_a_row(one.bootstrap, topic) as longest:
                    time.sleep(3)
                    longest()
                    with TransactionalClient(one.bootstrap, f"row-{topic}") as client:
                        place = (topic, 0)
                        at_coordinator = what == "the coordinator"
                        address = (
                            client.coordinator(f"row-{topic}") if at_coordinator else client.leader(place)
                        )
                    member = next(m for m in one.cluster.members.values() if m.bootstrap == address)
                    member.kill()
                    time.sleep(15)
                    pauses.append(longest())
                    member.start(120)
                    time.sleep(5)
            found.append(Measured(f"r3, {what} dies: longest pause, median", "ms", None, at(pauses, 0.5)))
            found.append(Measured(f"r3, {what} dies: longest pause, worst", "ms", None, max(pauses)))
    return found


def log(folder: Path, program: Program, _: argparse.Namespace) -> list[Measured]:
    count = 500
    with side(folder, program, 3) as one:
        topic = one.topic("log", 4)
        places = [(topic, number) for number in range(4)]
        with TransactionalClient(one.bootstrap, "log") as client:
            load.check(settled(client, client.init))
            for _number in range(50):
                load.first_batches(client, places)
            time.sleep(3)
            idle = frames(one)
            time.sleep(5)
            before, quiet, bytes_before = frames(one), frames(one) - idle, log_bytes(one)
            began = time.monotonic()
            for _number in range(count):
                load.first_batches(client, places)
            time.sleep(1)
            took_s = time.monotonic() - began
            sent = frames(one) - before - quiet * took_s / 5
            size = log_bytes(one) - bytes_before
    return [
        Measured("r3, four partitions: bytes of the transaction log of one", "bytes", None, size / count / 3),
        Measured("r3, four partitions: frames between brokers of one", "", None, sent / count),
    ]


def log_bytes(one: Side) -> int:
    files = (
        path for m in one.cluster.members.values() for path in m.data.glob(f"{TRANSACTION_TOPIC}-*/*.log")
    )
    return sum(path.stat().st_size for path in files)


def frames(one: Side) -> int:
    """Segments with data that the brokers have sent each other so far, of connections that live (`ss`)."""
    told = subprocess.run(["ss", "-tinpO"], capture_output=True, text=True, check=True).stdout
    ports = {member.bootstrap.rpartition(":")[2] for member in one.cluster.members.values()}
    mine = {f"pid={pid}," for pid in one.pids}
    lines = [line for line in told.splitlines() if any(pid in line for pid in mine)]
    ends = [line.split()[3:5] for line in lines]
    ours = {local for local, _ in ends}
    total = 0
    for line, (local, peer) in zip(lines, ends, strict=True):
        is_between = peer in ours and {local.rpartition(":")[2], peer.rpartition(":")[2]} & ports
        if is_between and (sent := re.search(r"data_segs_out:(\d+)", line)):
            total += int(sent[1])
    return total


def aborted(folder: Path, program: Program, arguments: argparse.Namespace) -> list[Measured]:
    with side(folder, program, 1) as one:
        topic = one.topic("aborted")
        load.abort_many(one.bootstrap, topic, arguments.aborted)
        wait_until("it is stable", lambda: is_stable(one.bootstrap, topic))
        middle = fetch(one.bootstrap, topic, 0, COMMITTED).last_stable_offset // 2
        times = load.fetch_times(one.bootstrap, topic, middle, 300)
    return [Measured(f"{arguments.aborted} aborted: a fetch in the middle, p50", "ms", None, at(times, 0.5))]


def at(times: Sequence[float], share: float) -> float:
    return sorted(times)[min(int(len(times) * share), len(times) - 1)]


ROWS: dict[str, Row] = {
    "rate-1": rate(1), "rate-3": rate(3), "latency": latency, "first": first, "fetch": fetching,
    "ids": ids, "open": opened, "failover": failover, "log": log, "aborted": aborted,
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.transactions",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="ROW", help=f"of {', '.join(ROWS)}; default: all")
    parser.add_argument("--kafka", action="store_true", help="measure Apache Kafka beside it")
    parser.add_argument("--only-kafka", action="store_true", help="measure it alone")
    parser.add_argument("--rounds", type=int, default=1, help="of each row and side (default: 1)")
    parser.add_argument("--seconds", type=int, default=15, help="of a rate or latency (default: 15)")
    parser.add_argument("--megabytes", type=int, default=100, help="that are fetched (default: 100)")
    parser.add_argument("--ids", type=int, default=10_000, help="transactional ids (default: 10000)")
    parser.add_argument("--aborted", type=int, default=20_000, help="aborted transactions (default: 20000)")
    parser.add_argument("--kills", type=int, default=3, help="of each kind of failover (default: 3)")
    add_json_option(parser)
    arguments = parser.parse_args()
    if (arguments.kafka or arguments.only_kafka) and not kafka_is_here():
        parser.error("Apache Kafka's jars are not here: make fetch-tools")
    sides = [] if arguments.only_kafka else [Program.FIRN]
    if arguments.kafka or arguments.only_kafka:
        sides.append(Program.KAFKA)
    whole = Figures()
    for name in parts_of(parser, arguments.names, list(ROWS)):
        figures = Figures()
        for number in range(arguments.rounds):
            for program in sides[:: 1 if number % 2 == 0 else -1]:
                with tempfile.TemporaryDirectory(prefix="firn-transactions-") as folder:
                    figures.note(SIDES[program], ROWS[name](Path(folder) / "nodes", program, arguments))
        figures.tell_medians()
        whole.found.update(figures.found)
    write_asked(arguments, whole)
    return 0


if __name__ == "__main__":
    sys.exit(main())
