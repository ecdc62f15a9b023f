"""Price of being ready: `python -m bench.readiness [PART …]`, each part by itself (four minutes) or all

batched        1 KB records in batches of 64 KB, acks=all, as fast as they are answered
single         the same, one record in each request
fetch          hot fetches of one connection while something is written beside
paced          1,000 requests a second of one record each, acks=all
end-to-end     1,000 records a second, from when one is due until a consumer has it (librdkafka)
bytes-1 bytes-10 bytes-100
               so many MB/s: CPU, and bytes that go up, of a GB that is produced; segments of 1 GiB
puts           PUTs of an hour, of an idle cluster and of one that is written to, beside what was reckoned

Three nodes, three replicas, two in sync, and a bucket. Cuts are switched on and off by turns, by the setting
of the running nodes (`firn.cut.interval.ms`). Medians of the rounds are told; exit code 1 where one is over
its bar. A round with cuts begins right behind one, so that at least one falls into it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple
from uuid import uuid4

from bench import load
from bench.end_to_end import EndToEnd
from bench.parts import parts_of
from bench.peers import Meters, stolen_s
from bench.readiness_rows import (
    MOST_VOID,
    Bar,
    Kind,
    Line,
    an_hour,
    lines_of,
    reckoned_puts,
    void_share,
)
from bench.replica_load import Felt, Pace, pour
from bench.tiered_cluster import alter_all_brokers, summed_figures, tiered_cluster
from bench.transaction_load import fetch_times
from service.console.figures import Between, Figures
from service.remote.format.keys import CLUSTER_KEY
from service.remote.format.manifest_codec import decode_cluster
from service.tiering.keeper_election import RENEW_MS
from tests.support.clients import Admin
from tests.support.processes import wait_until
from tests.support.quorums import Cluster
from tests.support.replicas import wait_in_sync
from tests.support.stores import Store, folder_store, new_bucket, versitygw_binary, versitygw_server
from tests.support.wire import leader_of

PARTITIONS: Final = range(6)
BATCH_RECORDS: Final = 64
RATE: Final = 1000
BESIDE: Final = 100
WARM_S: Final = 2.0
HOT: Final = "hot"
HOT_MB: Final = 300
FETCHES: Final = 200
MIB: Final = 1 << 20
_OFF: Final = -1
_PUTS: Final = ("put", "put_stream", "put_if_absent", "put_if_match")

Found = Mapping[Kind, float]


class Part(NamedTuple):
    """One part: what is measured of a fresh topic, and how large its segments are."""

    measure: Callable[[Ready, str, argparse.Namespace], Found]
    segment_mb: int = 64


class Ready:
    """Running nodes, whose cuts are switched."""

    def __init__(self, cluster: Cluster, store: Store, interval_ms: int, segment_mb: int) -> None:
        self.cluster, self.store, self.bootstrap = cluster, store, cluster.bootstrap
        self._interval_ms, self._segment_mb = interval_ms, segment_mb
        self._admin = Admin(self.bootstrap, 3)
        self._topic: str | None = None
        self.hot: tuple[int, int] | None = None
        """bytes of a batch of what is fetched, and how many of them; None before it is written"""
        self.pids = [one.process.pid for one in cluster.members.values() if one.process is not None]

    def figures(self) -> Figures:
        return summed_figures(self.cluster)

    def puts(self) -> tuple[Figures, float, int]:
        """Return the metrics, and how many PUTs there were: of anything but `cluster.json`, which the keeper
        of a prefix writes every ten seconds whether there are cuts or not, and of that."""
        while True:
            before, figures = self._renewals(), self.figures()
            if before == self._renewals():
                calls = "firn_store_call_seconds_count"
                return figures, sum(figures.total(calls, call=call) for call in _PUTS) - before, before

    def _renewals(self) -> int:
        return decode_cluster(self.store.read(CLUSTER_KEY)).renewals

    def prepare(self, *, is_on: bool) -> str:
        """Switch cuts on or off, and return a topic of which nothing is written yet; the one before goes."""
        alter_all_brokers(self.cluster, "firn.cut.interval.ms", str(self._interval_ms if is_on else _OFF))
        if self._topic is not None:
            self._admin.delete(self._topic)
        name = self._topic = f"ready-{uuid4().hex[:6]}"
        self.make(name, len(PARTITIONS))
        os.sync()  # what the round before has written is felt no more
        before = written(self.figures())
        pour(self.bootstrap, name, PARTITIONS, 1, 1, -1)  # news, for a cut
        if is_on:
            wait_until("a cut of the topic", lambda: written(self.figures()) > before, 90, 0.1)
        else:
            wait_until("no cuts", lambda: "firn_cut_age_seconds" not in self.figures().samples, 60, 0.1)
        return name

    def make(self, topic: str, partitions: int) -> None:
        segment = str(self._segment_mb * MIB)
        self._admin.create(topic, partitions, remote_storage_enable="true", segment_bytes=segment)
        wait_in_sync(self.cluster, topic, 120)


@contextlib.contextmanager
def ready(arguments: argparse.Namespace, segment_mb: int) -> Iterator[Ready]:
    """Have three nodes with cuts, for a `with`."""
    settings = {
        "firn.cut.hold.max.ms": str(arguments.hold_ms),
        "log.segment.delete.delay.ms": "1000",
    }
    with tempfile.TemporaryDirectory(prefix="firn-readiness-") as name, ExitStack() as stack:
        folder = Path(name)
        store: Store = folder_store(folder / "bucket")
        if arguments.store == "versitygw":
            (folder / "s3").mkdir()
            store = new_bucket(stack.enter_context(versitygw_server(folder / "s3")), "readiness")
        cluster = stack.enter_context(tiered_cluster(folder / "nodes", store, settings))
        cluster.start(seconds=120)
        yield Ready(cluster, store, arguments.interval_ms, arguments.segment_mb or segment_mb)


def written(figures: Figures) -> float:
    """Return how many cuts were written since the start."""
    return figures.total("firn_cut_written_total")


# -- what is measured


def _batched(one: Ready, topic: str, arguments: argparse.Namespace) -> Found:
    return _poured(one, topic, arguments, BATCH_RECORDS, 5, "batches of 64 KB, acks=all")


def _single(one: Ready, topic: str, arguments: argparse.Namespace) -> Found:
    return _poured(one, topic, arguments, 1, 20, "one record of 1 KB in each request")


def _poured(
    one: Ready, topic: str, arguments: argparse.Namespace, records: int, window: int, what: str
) -> Found:
    pour(one.bootstrap, topic, PARTITIONS, float("inf"), records, -1, window, seconds=WARM_S)
    with _Spent(one) as spent:
        size, seconds = pour(
            one.bootstrap, topic, PARTITIONS, float("inf"), records, -1, window, seconds=arguments.seconds
        )
    return {
        Kind(what, "MB/s", Bar.RATE): size / seconds / 1e6,
        Kind("processor of all three, a GB", "s"): spent.cpu_s / size * 1e9,
    }


def _paced(one: Ready, topic: str, arguments: argparse.Namespace) -> Found:
    with Pace(one.bootstrap, topic, PARTITIONS, RATE, -1) as pace:
        time.sleep(WARM_S)
        felt = pace.felt(arguments.seconds)
    return _times("acks=all, 1,000 a second", felt)


def _end_to_end(one: Ready, topic: str, arguments: argparse.Namespace) -> Found:
    with EndToEnd(one.bootstrap, topic, len(PARTITIONS), RATE) as way:
        time.sleep(WARM_S)
        felt = way.felt(arguments.seconds)
    return _times("end to end, 1,000 a second", felt)


def _times(what: str, felt: Felt) -> Found:
    return {
        Kind(f"{what}, p50", "ms"): 1000 * felt.p50,
        Kind(f"{what}, p99", "ms", Bar.TIMES): 1000 * felt.p99,
        Kind(f"{what}, p99.9", "ms", Bar.MORE): 1000 * felt.p999,
        Kind(f"{what}, worst", "ms"): 1000 * felt.worst,
    }


def _fetch(one: Ready, topic: str, arguments: argparse.Namespace) -> Found:
    size, number = one.hot or _fill(one)
    leader = leader_of(one.bootstrap, HOT, 0)
    read, took, times = 0, 0.0, list[float]()
    with Pace(one.bootstrap, topic, PARTITIONS, BESIDE, -1):  # without news there are no cuts
        until = time.monotonic() + arguments.seconds
        while time.monotonic() < until:
            began = time.monotonic()
            read += load.fetch_all(leader, HOT, size, number)
            took += time.monotonic() - began
            times += fetch_times(leader, HOT, number * load.BATCH_RECORDS // 2, FETCHES)
    times.sort()
    return {
        Kind("fetched hot, one connection", "MB/s", Bar.RATE): read / took / 1e6,
        Kind("a fetch of 64 KiB, p99", "ms", Bar.TIMES): times[len(times) * 99 // 100],
        Kind("a fetch of 64 KiB, p99.9", "ms", Bar.MORE): times[len(times) * 999 // 1000],
    }


def _fill(one: Ready) -> tuple[int, int]:
    """Write what is read in all rounds; return (bytes of a batch, batches)."""
    one.make(HOT, 1)
    leader = leader_of(one.bootstrap, HOT, 0)
    one.hot = load.fill(leader, HOT, HOT_MB)
    load.fetch_all(leader, HOT, *one.hot)
    _wait_quiet(one, 3)
    return one.hot


def _bytes(megabytes: int) -> Callable[[Ready, str, argparse.Namespace], Found]:
    def measure(one: Ready, topic: str, arguments: argparse.Namespace) -> Found:
        with _Spent(one) as spent:
            size, seconds = pour(
                one.bootstrap, topic, PARTITIONS, megabytes * 1e6 * arguments.seconds, BATCH_RECORDS, -1,
                seconds=arguments.seconds, rate=megabytes * 1e6,
            )  # fmt: skip
            time.sleep(arguments.interval_ms / 1000 + 2)  # all goes up; without cuts, the same idling
        sent, tails = spent.grown("firn_store_sent_bytes_total"), spent.grown("firn_tail_written_bytes_total")
        return {
            Kind(f"{megabytes} MB/s: reached", "MB/s"): size / seconds / 1e6,
            Kind(f"{megabytes} MB/s: processor of all three, a GB", "s"): spent.cpu_s / size * 1e9,
            Kind(f"{megabytes} MB/s: bytes that go up, a GB", "GB"): sent / size,
            Kind(f"{megabytes} MB/s: of these tails", "GB"): tails / size,
        }

    return measure


class _Spent:
    """CPU time of all nodes over a `with`, and how their metrics have grown."""

    def __init__(self, one: Ready) -> None:
        self._ready, self._meters = one, Meters(one.pids)
        self.cpu_s = 0.0

    def __enter__(self) -> _Spent:
        self.before = self._ready.figures()
        self._meters.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self.cpu_s = self._meters.end()
        self.after = self._ready.figures()

    def grown(self, name: str, **labels: str) -> float:
        return self.after.total(name, **labels) - self.before.total(name, **labels)


PARTS: Final[Mapping[str, Part]] = {
    "batched": Part(_batched),
    "single": Part(_single),
    "fetch": Part(_fetch),
    "paced": Part(_paced),
    "end-to-end": Part(_end_to_end),
    "bytes-1": Part(_bytes(1), 1024),
    "bytes-10": Part(_bytes(10), 1024),
    "bytes-100": Part(_bytes(100), 1024),
}
PUTS: Final = "puts"


def alternate(part: Part, arguments: argparse.Namespace) -> list[Line]:
    """Measure a part with and without cuts by turns, and say what cuts did meanwhile."""
    found: dict[bool, list[Found]] = {False: [], True: []}
    made = void = 0.0
    holds = list[Between]()
    with ready(arguments, part.segment_mb) as one:
        for number in range(arguments.rounds):
            for is_on in (False, True) if number % 2 == 0 else (True, False):
                topic = one.prepare(is_on=is_on)
                before = one.figures()
                found[is_on].append(part.measure(one, topic, arguments))
                after = one.figures()
                if is_on:
                    made += written(after) - written(before)
                    void += after.total("firn_cut_void_total") - before.total("firn_cut_void_total")
                    holds.append(Between(before, after))
    told = [
        f"≤ {1000 * max(one.quantile('firn_cut_hold_seconds', at) for one in holds):g} ms"
        for at in (0.5, 0.99)
    ]
    share = void_share(made, void)
    over = "  OVER" if share > MOST_VOID else ""
    print(
        f"  cuts: {made:.0f} written, {void:.0f} attempts void: {share:.1%} (bar {MOST_VOID:.0%}){over};"
        f" held p50 {told[0]}, p99 {told[1]}, of the worst round",
        flush=True,
    )
    return lines_of(found)


def puts(arguments: argparse.Namespace) -> bool:
    """Count PUTs of an idle cluster, and of one that is written to; return whether the idle one has any."""
    seconds, interval_ms = arguments.puts_seconds, arguments.interval_ms
    with ready(arguments, 1024) as one:
        topic = one.prepare(is_on=True)
        pour(one.bootstrap, topic, PARTITIONS, 1e6, BATCH_RECORDS, -1)
        _wait_quiet(one, interval_ms / 1000 + 3)
        before = one.puts()
        time.sleep(seconds)
        idle = one.puts()
        pour(one.bootstrap, topic, PARTITIONS, 1e6 * seconds, BATCH_RECORDS, -1, rate=1e6, seconds=seconds)
        loaded = one.puts()

    def grown(name: str) -> float:
        return loaded[0].total(name) - idle[0].total(name)

    tails, documents = reckoned_puts(3, interval_ms)
    rows = (
        ("idle", idle[1] - before[1], 0.0),
        ("1 MB/s", loaded[1] - idle[1], tails + documents),
        ("  of these tails, but for the metadata's", grown("firn_tails_written_total"), tails),
        ("  of these cuts, two PUTs each", 2 * grown("firn_cut_written_total"), documents),
        ("besides, idle or not: cluster.json (ADR 26)", idle[2] - before[2], an_hour(1, RENEW_MS / 1000)),
    )
    for what, count, reckoned in rows:
        told = an_hour(count, seconds)
        print(f"PUTs an hour, {what:<46}{told:>8.0f}   reckoned {reckoned:>6.0f}", flush=True)
    return idle[1] > before[1]


def _wait_quiet(one: Ready, seconds: float) -> None:
    """Wait until nothing has gone up for so long."""
    last, since = -1.0, time.monotonic()

    def is_quiet() -> bool:
        nonlocal last, since
        _, now, _ = one.puts()
        if now != last:
            last, since = now, time.monotonic()
        return time.monotonic() - since > seconds

    wait_until("nothing to go up any more", is_quiet, 180, 0.5)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.readiness",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [*PARTS, PUTS]
    parser.add_argument("names", nargs="*", metavar="PART", help=f"of {', '.join(names)}; default: all")
    parser.add_argument("--rounds", type=int, default=3, help="of each side (default: 3)")
    parser.add_argument("--seconds", type=float, default=12, help="of a round (default: 12)")
    parser.add_argument("--puts-seconds", type=float, default=60, help="of each half of puts (default: 60)")
    parser.add_argument("--interval-ms", type=int, default=10_000, help="between cuts (default: 10000)")
    parser.add_argument("--hold-ms", type=int, default=20, help="firn.cut.hold.max.ms (default: 20)")
    parser.add_argument(
        "--segment-mb", type=int, help="segment.bytes, in MiB (default: 64; of bytes-…: 1024)"
    )
    parser.add_argument(
        "--store", choices=("folder", "versitygw"), default="folder", help="of the bucket (default: folder)"
    )
    arguments = parser.parse_args()
    if arguments.store == "versitygw" and versitygw_binary() is None:
        parser.error("versitygw is not here: make fetch-tools")
    if arguments.seconds * 1000 <= arguments.interval_ms:
        print("a round is shorter than the time between two cuts: some have none", file=sys.stderr)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # nodes end and folders go
    print(
        f"three nodes, bucket: {arguments.store}; a cut each {arguments.interval_ms / 1000:g} s, held for"
        f" {arguments.hold_ms} ms at most; {arguments.rounds} rounds of {arguments.seconds:g} s",
        flush=True,
    )
    is_over = False
    for name in parts_of(parser, arguments.names, names):
        began, stolen = time.monotonic(), stolen_s()
        if name == PUTS:
            is_over |= puts(arguments)
        else:
            for line in alternate(PARTS[name], arguments):
                print(line, flush=True)
                is_over |= line.is_over
        took = time.monotonic() - began
        share = (stolen_s() - stolen) / took
        print(f"  {name} took {took:.0f} s; the host of this machine took {share:.1%} of a core", flush=True)
    return int(is_over)


if __name__ == "__main__":
    sys.exit(main())
