"""The demo, step by step. Everything it starts ends with it; what it leaves behind is a plot at most.

With STAY=1 in the environment it names what is up and waits for Ctrl-C before that.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from demo import delays
from demo.clients import (
    Checksums,
    Progress,
    alter_topic,
    create_topic,
    produce,
    read_with_aiokafka,
    read_with_confluent,
)
from demo.flights import load_flights
from demo.node import Dev, console, node_with_s3
from demo.screen import Screen, bar
from service.base.errors import FirnError
from service.cli.embedded_s3 import CREDENTIALS, FOREIGN, environment
from service.cli.tiers import PartitionTiers, TopicTiers, collect, human_bytes, table

YEAR_MS = 366 * 24 * 3600 * 1000
TOPIC = "flights"
PARTITIONS = 4
SETTINGS = {
    "segment.bytes": str(2 << 20),  # small, so that a hundred megabytes make fifty objects
    "segment.ms": str(10 * YEAR_MS),  # a year of records comes within seconds: seal by size alone
    "remote.storage.enable": "true",
    "retention.ms": "-1",  # the records are of 2013: by their timestamps they are long expired
    "firn.merge.enable": "false",  # and old enough to be merged at once, while their objects are counted
}
# Every segment is more than this, so what is copied goes at once; the active ones stay.
DROP_LOCAL = {"local.retention.bytes": "1"}
SETTLE_TIMEOUT_S = 60.0
LOOK_INTERVAL_S = 0.5


def main() -> int:
    signal.signal(signal.SIGTERM, _terminated)
    for name in FOREIGN:
        os.environ.pop(name, None)
    os.environ.update(environment())  # for looking into the embedded S3 from here
    screen = Screen()
    stays = os.environ.get("STAY", "") not in ("", "0")
    started = time.monotonic()
    screen.line("Starting a node, and an S3 server beside it")
    with node_with_s3() as dev:
        screen.line(f"  {dev.bootstrap}, cold tier {dev.bucket} at {dev.s3_endpoint}")
        demo = Demo(screen, dev)
        facts = demo.run()
        facts += ask_the_archive(screen, dev, demo.archived, keeps_node=stays)
        if stays:
            stay(screen, dev, facts)
            return 0
    for fact in facts:
        screen.line(fact)
    screen.line(f"Done in {time.monotonic() - started:.0f} s; nothing it started is left running.")
    return 0


def addresses(dev: Dev, console_url: str) -> list[str]:
    """What is up and where, a line each."""
    keys = " ".join(f"{name}={CREDENTIALS[name]}" for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"))
    return [
        f"console      {console_url}",
        f"node         {dev.bootstrap}, topic {TOPIC}: firn tiers {TOPIC} --bootstrap-server {dev.bootstrap}",
        f"metrics      {dev.http}/metrics: firn top --url {dev.http}",
        f"archive      {dev.bucket}: export AWS_ENDPOINT_URL={dev.s3_endpoint} {keys}",
    ]


def stay(screen: Screen, dev: Dev, facts: list[str]) -> None:
    """Leave the node running, with a console to look at it, until Ctrl-C.

    `SystemExit` where the node ends by itself.
    """
    with console(dev) as url:
        for line in (*facts, *addresses(dev, url), "Ctrl-C ends all of it."):
            screen.line(line)
        try:
            code = dev.process.wait()
        except KeyboardInterrupt:
            screen.line("Done; nothing it started is left running.")
            return
    raise SystemExit(f"the node has ended (exit code {code})")


def ask_the_archive(screen: Screen, dev: Dev, archived: int, *, keeps_node: bool) -> list[str]:
    """The node ends; what it archived is asked by Spark, where that is installed. Returns the summary.

    With `keeps_node` it does not end, and is not asked either. `SystemExit` where Spark does not find the
    `archived` records.
    """
    if not delays.is_possible():
        screen.line("Asking the archive with Spark is left out: `make spark` (the spark extra) adds it")
        return []
    question = "Spark asks it: average delay by carrier and month"
    if keeps_node:
        screen.line(f"The archive lies in S3, and {question}")
    else:
        screen.line(f"Stopping the node; the archive is still there, and {question}")
        dev.stop_node()
    started = time.monotonic()
    found = delays.ask(dev.bucket, dev.s3_endpoint, TOPIC)
    if found.flights != archived:
        raise SystemExit(f"Spark finds {found.flights:,} flights in S3, {archived:,} were archived")
    for line in delays.as_lines(found):
        screen.line("  " + line)
    delays.plot(found, delays.PLOT)
    seconds = time.monotonic() - started
    amount = f"the {found.flights:,} flights in S3"
    return [f"asked        {amount} with Spark in {seconds:.1f} s, plot in {delays.PLOT}"]


class Demo:
    """The steps against one running node."""

    def __init__(self, screen: Screen, dev: Dev) -> None:
        self._screen = screen
        self._bootstrap = dev.bootstrap
        self.archived = 0
        """Records in S3 when all has settled."""

    def run(self) -> list[str]:
        """Go through the steps; returns the summary. `SystemExit` where something read is not as written."""
        screen = self._screen
        screen.line("Reading the flights that left New York in 2013")
        flights = load_flights()
        create_topic(self._bootstrap, TOPIC, PARTITIONS, SETTINGS)
        screen.line(f"Producing them with confluent-kafka into {PARTITIONS} partitions, keyed by tail number")
        with self._step("acknowledged", len(flights)) as progress:
            started = time.monotonic()
            written = produce(self._bootstrap, TOPIC, PARTITIONS, flights, progress)
        facts = [_fact("produced", "confluent-kafka", written, started)]
        screen.line("Waiting until every sealed segment is an object in S3")
        self._wait_for(lambda tiers: all(_is_copied(p) for p in tiers.partitions))
        screen.line(
            f"Dropping local copies of what is in S3 ({', '.join(f'{k}={v}' for k, v in DROP_LOCAL.items())})"
        )
        alter_topic(self._bootstrap, TOPIC, DROP_LOCAL)
        tiers = self._wait_for(lambda tiers: all(p.hot_segments == 1 for p in tiers.partitions))
        for row in table(tiers):
            screen.line("  " + row)
        self.archived = sum(p.cold_end - p.cold_start for p in tiers.partitions)
        facts.append(settled(tiers))
        for client, read in (("confluent-kafka", read_with_confluent), ("aiokafka", read_with_aiokafka)):
            screen.line(f"Reading everything back with {client}")
            with self._step("read", written.total) as progress:
                started = time.monotonic()
                found = read(self._bootstrap, TOPIC, written.counts, progress)
            facts.append(_fact("read back", client, found, started))
            _check(client, written, found)
        same = "the same for every partition, written and read twice"
        facts.append(f"checksums    {same}: {' '.join(written.digests)}")
        return facts

    @contextmanager
    def _step(self, what: str, total: int) -> Iterator[Progress]:
        """A bar over the tiers as they are, for as long as the step takes."""
        started = time.monotonic()
        with Watcher(self._bootstrap) as watcher:

            def progress(done: int) -> None:
                head = bar(done, total, what, started)
                tiers = watcher.latest
                rows = [f"  {row}" for row in table(tiers)] if tiers else []
                self._screen.status([head, *rows], f"{head}  {_sizes(tiers)}" if tiers else head)

            self._screen.begin()
            yield progress
            self._screen.line(bar(total, total, what, started))

    def _wait_for(self, reached: Callable[[TopicTiers], bool]) -> TopicTiers:
        """Show the tiers until they are where they shall be; `SystemExit` when that takes too long."""
        self._screen.begin()
        deadline = time.monotonic() + SETTLE_TIMEOUT_S
        while True:
            tiers = collect(self._bootstrap, TOPIC)
            if reached(tiers):
                self._screen.line(f"  {_sizes(tiers)}")
                return tiers
            if time.monotonic() > deadline:
                raise SystemExit(f"the tiers do not settle: {_sizes(tiers)}")
            self._screen.status([f"  {row}" for row in table(tiers)], f"  {_sizes(tiers)}")
            time.sleep(LOOK_INTERVAL_S)


class Watcher:
    """Looks at the tiers now and then on a thread of its own, so that nobody waits for it."""

    def __init__(self, bootstrap: str) -> None:
        self.latest: TopicTiers | None = None
        self._bootstrap = bootstrap
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(LOOK_INTERVAL_S):
            try:
                self.latest = collect(self._bootstrap, TOPIC)
            except (FirnError, OSError):
                return  # the node has gone; whoever uses it says so


def _is_copied(partition: PartitionTiers) -> bool:
    """Return whether all but the active segment are objects: all are on disk still, or none is, as on a disk
    that is nearly full."""
    return partition.hot_segments == 1 or (
        partition.hot_segments is not None and partition.cold_objects == partition.hot_segments - 1
    )


def settled(tiers: TopicTiers) -> str:
    """Which records lie where, each counted once."""
    every = tiers.partitions
    cold = sum(min(p.hot_start, p.cold_end) - p.cold_start for p in every)
    hot = sum(p.hot_end - max(p.hot_start, p.cold_end) for p in every)
    both = sum(p.cold_end - p.hot_start for p in every if p.cold_end > p.hot_start)
    cold_bytes, hot_bytes = _sizes_of(tiers)
    parts = [f"{cold:,} records in S3 only ({cold_bytes})", f"the newest {hot:,} on disk only ({hot_bytes})"]
    return f"settled      {', '.join(parts)}" + (f", {both:,} in both" if both else "")


def _sizes(tiers: TopicTiers) -> str:
    cold, hot = _sizes_of(tiers)
    return f"hot {hot}, cold {cold}"


def _sizes_of(tiers: TopicTiers) -> tuple[str, str]:
    every = tiers.partitions
    cold = sum(p.cold_bytes or 0 for p in every), sum(p.cold_objects or 0 for p in every)
    hot = sum(p.hot_bytes or 0 for p in every), sum(p.hot_segments or 0 for p in every)
    return f"{human_bytes(cold[0])} in {cold[1]} objects", f"{human_bytes(hot[0])} in {hot[1]} segments"


def _fact(what: str, client: str, checksums: Checksums, started: float) -> str:
    seconds = time.monotonic() - started
    rate = f"{checksums.total / seconds:,.0f} records/s, {human_bytes(int(checksums.bytes / seconds))}/s"
    amount = f"{checksums.total:,} records, {human_bytes(checksums.bytes)}"
    return f"{what:<12} {amount} with {client} in {seconds:.1f} s ({rate})"


def _check(client: str, written: Checksums, found: Checksums) -> None:
    for partition, (expected, digest) in enumerate(zip(written.digests, found.digests, strict=True)):
        if expected != digest:
            raise SystemExit(f"{client}: partition {partition} reads {digest}, {expected} was written")


def _terminated(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
