"""Three nodes that have replicas of each other: `python -m bench.replicas [PART …] [--kafka]`

throughput  acks=all, replication factor 3, min.insync.replicas 2, records of 1 KB in batches of 64 KB
acks-one    acks=1 at replication factor 3 beside 1, per byte that is written to a disk
latency     1,000 records a second, one in each request, acks=all and acks=1
idle        processor, memory and requests of 3 and of 3,000 partitions of which nobody speaks
create      1,000 partitions of three replicas, until all are led, and in sync
stall       how long no partition takes a record: kill -9 and SIGSTOP of a broker, of the active controller
takeover    the leader of 1,000 partitions is killed: until all of them are served again
catch-up    a follower that was away for `--megabytes`, and what others feel meanwhile
wiped       a broker that lost its disk, until it is in all ISRs, with `--tiered-gb` in object storage

With `--kafka` Apache Kafka does the same, but for the last, in turn with Firn where there are `--rounds`.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final
from urllib.request import urlopen

from kio.schema.errors import ErrorCode

from bench.figures import SIDES, Figures, add_json_option, write_asked
from bench.measures import Measured
from bench.parts import parts_of
from bench.peers import Cpu, check_kafka, have_pages, rss_mb, stolen_s
from bench.replica_load import RECORD_BYTES, Felt, LeaderMoved, Pace, pour
from bench.replica_wiped import wiped
from service.cli.dev_nodes import agree_on_ports
from tests.support.clients import Admin
from tests.support.processes import child, first_line, wait_until
from tests.support.quorums import Cluster, Member, Program
from tests.support.replicas import states, wait_in_sync
from tests.support.stores import versitygw_binary
from tests.support.storms import Writers, active_controller
from tests.support.tiers import LATEST
from tests.support.wire import RawConnection, schema

PARTITIONS: Final = range(6)
BATCH_RECORDS: Final = 64
WARM_BYTES: Final = 1_000_000_000
"""A JVM's code is compiled after that, or after `WARM_REQUESTS`."""
WARM_REQUESTS: Final = 100_000
SETTLE_S: Final = 5.0
IDLE_S: Final = 20.0
_COUNT = re.compile(r'^firn_request_handling_seconds_count\{api="\w+"\} (\d+)', re.MULTILINE)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.replicas", description=__doc__.partition("\n")[0])
    known: Mapping[str, Part] = {
        "throughput": _throughput,
        "acks-one": _acks_one,
        "latency": _latency,
        "idle": _idle,
        "create": _create,
        "stall": _stall,
        "takeover": _takeover,
        "catch-up": _catch_up,
    }
    names = [*known, "wiped"]
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(names))
    parser.add_argument("--kafka", action="store_true", help="Apache Kafka, too")
    parser.add_argument("--rounds", type=int, default=1, help="of each part, by turns (default: 1)")
    parser.add_argument("--kills", type=int, default=3, help="of each kind in `stall` (default: 3)")
    parser.add_argument(
        "--megabytes", type=int, default=2000, help="written by `throughput`; missed in `catch-up`"
    )
    parser.add_argument("--rate", type=int, default=1000, help="requests a second beside `catch-up`")
    parser.add_argument(
        "--tiered-gb",
        type=float,
        nargs="+",
        default=[1, 10],
        metavar="GB",
        help="in object storage in `wiped`, one after the other (default: 1 10)",
    )
    add_json_option(parser)
    arguments = parser.parse_args()
    check_kafka(parser, arguments)
    figures = Figures()
    parts = parts_of(parser, arguments.parts, names)
    if min(arguments.tiered_gb) <= 0:
        parser.error("--tiered-gb: more than nothing")
    if "wiped" in parts and versitygw_binary() is None:
        parser.error("versitygw is not here: make fetch-tools")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # nodes end and folders go
    programs = [Program.FIRN, *([Program.KAFKA] if arguments.kafka else [])]
    for part in parts:
        for _ in range(arguments.rounds):
            for program in programs[:1] if part == "wiped" else programs:
                if part == "wiped":
                    with tempfile.TemporaryDirectory(prefix="firn-replicas-") as name:
                        found = wiped(Path(name), arguments)
                else:
                    found = _with_cluster(program, known[part], arguments)
                figures.tell(SIDES[program], found)
    write_asked(arguments, figures)
    return 0


def _with_cluster(
    program: Program, part: Part, arguments: argparse.Namespace, tries: int = 3
) -> list[Measured]:
    """Measure a new cluster; another one, so many in all, where a leader moved meanwhile."""
    with (
        tempfile.TemporaryDirectory(prefix="firn-replicas-") as name,
        _cluster(Path(name), program) as cluster,
    ):
        cluster.start(seconds=120)
        try:
            return part(cluster, arguments)
        except LeaderMoved as e:
            if tries == 1:
                raise
            print(f"{SIDES[program]}: the leader of {e} has moved, once more", file=sys.stderr)
    return _with_cluster(program, part, arguments, tries - 1)


def _cluster(folder: Path, program: Program) -> Cluster:
    cluster = Cluster(folder, programs=dict.fromkeys((1, 2, 3), program))
    if program is Program.FIRN:
        ports, _ = agree_on_ports(0, 3, 0)
        for member, port in zip(cluster.members.values(), ports, strict=True):
            member.settings["firn.http.listener"] = f"127.0.0.1:{port}"
    return cluster


def _topic(cluster: Cluster, name: str, partitions: int, replicas: int = 3) -> None:
    least = "2" if replicas > 1 else "1"
    Admin(cluster.bootstrap).replicate(name, partitions, replicas, min_insync_replicas=least)
    wait_in_sync(cluster, name, 120)


class _Servers:
    """Processor time of all nodes, over a `with`."""

    def __init__(self, cluster: Cluster) -> None:
        self.pids = _pids(cluster)
        self._meters = [Cpu(pid) for pid in self.pids]

    def __enter__(self) -> _Servers:
        for meter in self._meters:
            meter.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        for meter in self._meters:
            meter.__exit__()

    @property
    def seconds(self) -> float:
        return sum(meter.all for meter in self._meters)

    @property
    def share(self) -> float:
        """Return the CPU time as a share of one core."""
        return self.seconds / self._meters[0].wall


def _pids(cluster: Cluster) -> list[int]:
    return [one.process.pid for one in cluster.members.values() if one.process is not None]


# -- what they bear


def _throughput(cluster: Cluster, arguments: argparse.Namespace) -> list[Measured]:
    _topic(cluster, "poured", len(PARTITIONS))
    pour(cluster.bootstrap, "poured", PARTITIONS, WARM_BYTES, BATCH_RECORDS, -1)
    asked = arguments.megabytes * 1_000_000
    have_pages(cluster.folder, 3 * asked)
    with _Servers(cluster) as servers:
        size, seconds = pour(cluster.bootstrap, "poured", PARTITIONS, asked, BATCH_RECORDS, -1)
    return [
        Measured("acks=all, three replicas, batches of 64 KB", "MB/s", None, size / seconds / 1e6),
        Measured("processor of all three, a GB", "s", None, servers.seconds / size * 1e9),
        *(Measured(f"memory of node {n}", "MB", None, rss_mb(pid)) for n, pid in enumerate(servers.pids, 1)),
    ]


def _acks_one(cluster: Cluster, arguments: argparse.Namespace) -> list[Measured]:
    found, rates = [], {}
    for replicas in (1, 3):
        name = f"of-{replicas}"
        _topic(cluster, name, len(PARTITIONS), replicas)
        pour(cluster.bootstrap, name, PARTITIONS, 200_000_000, BATCH_RECORDS, 1)
        asked = arguments.megabytes * 500_000
        have_pages(cluster.folder, replicas * asked)
        began = time.monotonic()
        size, seconds = pour(cluster.bootstrap, name, PARTITIONS, asked, BATCH_RECORDS, 1)
        found.append(Measured(f"acks=1, {replicas} replicas", "MB/s", None, size / seconds / 1e6))
        if replicas > 1:
            _wait_until_equal(cluster, name)  # what lags is written, too
        rates[replicas] = replicas * size / (time.monotonic() - began)
    ratio = rates[3] / rates[1]
    return [
        *found,
        Measured("written a second until all replicas have it, 3 in times of 1", "x", None, ratio),
    ]


def _wait_until_equal(cluster: Cluster, topic: str) -> None:
    """Wait until all three nodes have the same number of bytes of the topic."""
    folders = [one.data for one in cluster.members.values()]

    def is_equal() -> bool:
        sizes = [sum(path.stat().st_size for path in one.glob(f"{topic}-*/*.log")) for one in folders]
        return len(set(sizes)) == 1

    wait_until("replicas of one size", is_equal, 120, 0.02)


def _latency(cluster: Cluster, _: argparse.Namespace) -> list[Measured]:
    _topic(cluster, "paced", len(PARTITIONS))
    pour(cluster.bootstrap, "paced", PARTITIONS, WARM_REQUESTS * RECORD_BYTES, 1, -1)
    found = []
    for acks, what in ((-1, "all"), (1, "1")):
        with Pace(cluster.bootstrap, "paced", PARTITIONS, 1000, acks) as pace:
            time.sleep(10)
            felt = pace.felt(20)
        found += [
            Measured(f"acks={what}, 1,000 a second, p50", "ms", None, 1000 * felt.p50),
            Measured(f"acks={what}, 1,000 a second, p99", "ms", None, 1000 * felt.p99),
            Measured(f"acks={what}, 1,000 a second, worst", "ms", None, 1000 * felt.worst),
        ]
    return found


# -- what they cost, and how long they take


def _idle(cluster: Cluster, _: argparse.Namespace) -> list[Measured]:
    found = []
    for count in (3, 3000):
        _topic(cluster, f"idle-{count}", count if count == 3 else count - 3)
        time.sleep(SETTLE_S)
        asked = _requests(cluster)
        with _Servers(cluster) as servers:
            time.sleep(IDLE_S)
        what = f"{count} idle partitions"
        found.append(Measured(f"{what}: three nodes, of a core", "%", None, 100 * servers.share))
        found += [
            Measured(f"{what}: memory of node {n}", "MB", None, rss_mb(pid))
            for n, pid in enumerate(servers.pids, 1)
        ]
        if asked is not None:
            rate = ((_requests(cluster) or 0) - asked) / IDLE_S
            found.append(Measured(f"{what}: requests to brokers, all three", "1/s", None, rate))
    return found


def _requests(cluster: Cluster) -> int | None:
    """Return the number of requests to all brokers so far; None without their HTTP listeners."""
    total = 0
    for member in cluster.members.values():
        place = member.settings.get("firn.http.listener")
        if place is None:
            return None
        with urlopen(f"http://{place}/metrics", timeout=20) as answer:
            total += sum(map(int, _COUNT.findall(answer.read().decode())))
    return total


def _create(cluster: Cluster, _: argparse.Namespace) -> list[Measured]:
    began = time.monotonic()
    Admin(cluster.bootstrap).replicate("made", 1000, 3, min_insync_replicas="2")
    made_s = time.monotonic() - began

    def is_led() -> bool:
        return all(
            len(found := states(one, "made")) == 1000 and all(part.leader >= 0 for part in found.values())
            for one in cluster.members.values()
        )

    wait_until("leaders", is_led, 120, 0.05)
    led_s = time.monotonic() - began
    for member in cluster.members.values():
        _wait_served(member, cluster, "made")
    served_s = time.monotonic() - began
    wait_in_sync(cluster, "made", 120)
    return [
        Measured("1,000 partitions of three replicas, answered", "s", None, made_s),
        Measured("… all led, as every node tells", "s", None, led_s),
        Measured("… all served by their leaders", "s", None, served_s),
        Measured("… all replicas in sync", "s", None, time.monotonic() - began),
    ]


def _takeover(cluster: Cluster, _: argparse.Namespace) -> list[Measured]:
    _topic(cluster, "led", 3000)
    controller = active_controller(cluster)
    victim = next(one for one in cluster.members if one != controller)
    led = sum(one.leader == victim for one in states(cluster.members[controller], "led").values())
    time.sleep(SETTLE_S)
    began = time.monotonic()
    cluster.members[victim].kill()
    _wait_served(cluster.members[controller], cluster, "led")
    took = time.monotonic() - began
    return [Measured(f"the leader of {led} partitions was killed: all served again", "s", None, took)]


def _wait_served(member: Member, cluster: Cluster, topic: str) -> None:
    """Wait until each partition's leader, as `member` names it, answers for its end offset."""

    def is_served() -> bool:
        by_leader: dict[int, list[int]] = {}
        for index, state in states(member, topic).items():
            by_leader.setdefault(state.leader, []).append(index)
        if not by_leader or not all(
            leader in cluster.members and cluster.members[leader].is_running for leader in by_leader
        ):
            return False
        return all(
            _all_told(cluster.members[leader].bootstrap, topic, indexes)
            for leader, indexes in by_leader.items()
        )

    wait_until(f"all of {topic} to be served", is_served, 120, 0.02)


def _all_told(place: str, topic: str, indexes: list[int]) -> bool:
    module = schema(2, 9)
    parts = tuple(
        module.ListOffsetsPartition(partition_index=one, current_leader_epoch=-1, timestamp=LATEST)
        for one in indexes
    )
    request = module.ListOffsetsRequest(
        replica_id=-1, isolation_level=0, topics=(module.ListOffsetsTopic(name=topic, partitions=parts),)
    )
    try:
        with RawConnection(place) as connection:
            (answer,) = connection.call(request).topics
    except OSError:
        return False
    return all(one.error_code == ErrorCode.none for one in answer.partitions)


# -- what happens when one of them fails


def _stall(cluster: Cluster, arguments: argparse.Namespace) -> list[Measured]:
    Admin(cluster.bootstrap).replicate("safe", len(PARTITIONS), 3, min_insync_replicas="2")
    wait_in_sync(cluster, "safe", 120)
    worst: dict[str, list[float]] = {}
    with Writers(cluster, [("safe", index) for index in PARTITIONS], 0.01) as writers:
        for number in range(arguments.kills):
            for what in ("kill -9 of a broker", "kill -9 of the active controller", "SIGSTOP of a broker"):
                wait_in_sync(cluster, "safe", 120)
                writers.wait_for_acks(60, "safe")
                # A session counts from a heartbeat, of which one comes every two seconds.
                time.sleep(random.uniform(3, 5))
                controller = active_controller(cluster)
                others = [one for one in cluster.members if one != controller]
                victim = controller if "controller" in what else others[number % len(others)]
                # A client gives up what it has asked a leader that sleeps after a minute of its own.
                leads = any(
                    one.leader == victim for one in states(cluster.members[controller], "safe").values()
                )
                told = what if "kill" in what else f"{what} that {'leads' if leads else 'follows'}"
                stalled = _harm(cluster, writers, victim, is_sleep="SIGSTOP" in what)
                worst.setdefault(told, []).append(stalled)
                print(f"{told} {victim}: {stalled:.2f} s", file=sys.stderr, flush=True)
        wait_in_sync(cluster, "safe", 120)
        writers.stop()
    return [
        Measured(
            f"{what}, worst of {len(PARTITIONS)} partitions, {len(found)} times: {which}", "s", None, one
        )
        for what, found in worst.items()
        for which, one in (("median", sorted(found)[len(found) // 2]), ("worst", max(found)))
    ]


def _harm(cluster: Cluster, writers: Writers, victim: int, *, is_sleep: bool) -> float:
    """The longest stall of any partition, in seconds."""
    member = cluster.members[victim]
    assert member.process is not None
    began = time.monotonic()
    if is_sleep:
        os.kill(member.process.pid, signal.SIGSTOP)
    else:
        member.kill()
    try:
        writers.wait_for_acks(120, "safe")
        until = time.monotonic() + 2
        time.sleep(2)
        found = writers.worst_since(began, until, "safe")[0].seconds
    finally:
        if is_sleep:
            os.kill(member.process.pid, signal.SIGCONT)
    if not is_sleep:
        member.start(120)
    return found


def _catch_up(cluster: Cluster, arguments: argparse.Namespace) -> list[Measured]:
    _topic(cluster, "missed", len(PARTITIONS))
    _topic(cluster, "paced", 1)
    controller = active_controller(cluster)
    paced = states(cluster.members[controller], "paced")[0].leader
    victim = next(one for one in cluster.members if one not in (controller, paced))
    cluster.members[victim].stop()
    running = cluster.members[controller]
    _wait_served(running, cluster, "missed")
    others = ",".join(one.bootstrap for node_id, one in cluster.members.items() if node_id != victim)
    size, _ = pour(others, "missed", PARTITIONS, arguments.megabytes * 1_000_000, BATCH_RECORDS, -1)
    with Pace(others, "paced", [0], arguments.rate, -1) as pace:
        _write_back()
        before = pace.felt(10)
        have_pages(cluster.folder, size)
        copied, copying = _copied(running, size, pace)
        _write_back()
        have_pages(cluster.folder, size)
        cluster.members[victim].start(120)
        began, stolen = time.monotonic(), stolen_s()
        with _Servers(cluster) as servers:
            wait_in_sync(cluster, "missed", 600)
        took = time.monotonic() - began
        felt = pace.felt_since(began)
        taken = (stolen_s() - stolen) / took
    return [
        Measured(f"a follower was away for {size / 1e9:.1f} GB: in sync, from ready", "s", None, took),
        Measured("… a second", "MB/s", None, size / took / 1e6),
        Measured("… of a bare copy over loopback into a file", "%", None, 100 * size / took / copied),
        Measured("… processor time of all nodes", "s/GB", None, servers.seconds / size * 1e9),
        Measured("acks=all of others, p99 before", "ms", None, 1000 * before.p99),
        Measured("… and beside it", "ms", None, 1000 * felt.p99),
        Measured("… in times", "x", None, felt.p99 / before.p99),
        Measured("… beside that bare copy", "ms", None, 1000 * copying.p99),
        Measured("… in times of that", "x", None, felt.p99 / copying.p99),
        Measured("… of a processor, taken by the host of this machine meanwhile", "%", None, 100 * taken),
    ]


def _write_back() -> None:
    """Have on disk what was written before, and its writing over, which is felt, too."""
    os.sync()
    time.sleep(5)


def _copied(member: Member, size: int, pace: Pace) -> tuple[float, Felt]:
    """Bytes a second that plain system calls copy of the same files, and what others feel beside them."""
    target = member.folder / "copied"
    files = sorted(map(str, member.data.glob("missed-*/*.log")))
    began = time.monotonic()
    with child([sys.executable, "-m", "bench.bare_copy", str(target), *files], member.folder / "copy") as one:
        copied, took = first_line(one, 600).split()
    felt = pace.felt_since(began)
    target.unlink()
    if int(copied) < size:
        raise AssertionError(f"{copied} bytes were copied of {size}")
    return int(copied) / float(took), felt


Part = Callable[[Cluster, argparse.Namespace], list[Measured]]

if __name__ == "__main__":
    sys.exit(main())
