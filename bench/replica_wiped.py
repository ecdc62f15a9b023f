"""A broker that comes back with an empty disk, beside archives of several sizes: `wiped` of `bench.replicas`.

Three brokers that are nothing else, a controller, and S3 (versitygw). Disks hold equally much each time: each
partition has whole segments in the archive, and a part of one beyond them.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple
from urllib.request import urlopen

from bench.measures import Measured
from bench.replica_load import RECORD_BYTES, pour
from service.cli.dev_nodes import agree_on_ports
from tests.support.batches import batch
from tests.support.clients import Admin
from tests.support.processes import cpu_seconds, wait_until
from tests.support.quorums import Cluster, Member
from tests.support.replicas import states, wait_in_sync
from tests.support.stores import Store, new_bucket, versitygw_server
from tests.support.tiers import LATEST_TIERED, offset
from tests.support.wire import end_offset

TOPIC: Final = "kept"
PARTITIONS: Final = range(6)
CONTROLLER: Final = 1
BROKERS: Final = (11, 12, 13)
BATCH_RECORDS: Final = 1000
WINDOW: Final = 5
"""requests under way to each partition"""
SEGMENT_BYTES: Final = 40 << 20
LOCAL_BYTES: Final = 2 * SEGMENT_BYTES
"""that stay on each replica's disk; at most a segment more does"""
LEAST_SEGMENTS: Final = 4
"""of each partition in the archive: some are there alone"""
TAIL_BATCHES: Final = 30
"""of each partition, that the archive does not have: they lie in the segment that is written to"""
STEP_SEGMENTS: Final = 4
"""of each partition, that are uploaded while as many more are written"""
WIPES: Final = 3
"""with each archive; the median counts"""
PATIENCE_S: Final = 600.0


class Back(NamedTuple):
    """Times and bytes of a wiped broker's return."""

    ready_s: float
    in_sync_s: float
    cpu_s: float
    """CPU time of its process until then, which does not depend on other load of the machine"""
    records: float
    """bytes of records from the store"""
    received: float
    """bytes of all data from the store"""
    fetched: float
    """bytes of records from leaders"""


def wiped(folder: Path, arguments: argparse.Namespace) -> list[Measured]:
    sizes = sorted(arguments.tiered_gb)
    found, medians = [], []
    with (
        versitygw_server(folder) as endpoint,
        _cluster(folder / "nodes", new_bucket(endpoint, "wiped")) as cluster,
    ):
        cluster.start(seconds=120)
        archive = _Archive(cluster)
        for size in sizes:
            archive.grow(size)
            back = []
            for _ in range(WIPES):
                back.append(_wipe(cluster, cluster.members[BROKERS[-1]]))
                print(f"{archive.bytes / 1e9:.1f} GB: {back[-1]}", file=sys.stderr, flush=True)
            medians.append(statistics.median(one.in_sync_s for one in back))
            found += _told_of(archive, back)
    ratio = medians[-1] / medians[0]
    return [*found, Measured("as long as with the least archive, with the most", "x", None, ratio)]


def _told_of(archive: _Archive, back: list[Back]) -> list[Measured]:
    def median(value: Callable[[Back], float]) -> float:
        return statistics.median(map(value, back))

    what = f"{archive.bytes / 1e9:.1f} GB tiered"
    return [
        Measured(f"{what}: wiped, from its start to all ISRs", "s", None, median(lambda one: one.in_sync_s)),
        Measured("… the slowest of them", "s", None, max(one.in_sync_s for one in back)),
        Measured("… until it was ready", "s", None, median(lambda one: one.ready_s)),
        Measured("… its processor until it was in all ISRs", "s", None, median(lambda one: one.cpu_s)),
        Measured("… records from the store", "MB", None, max(one.records for one in back) / 1e6),
        Measured("… anything from the store", "MB", None, max(one.received for one in back) / 1e6),
        Measured("… records from leaders", "MB", None, median(lambda one: one.fetched) / 1e6),
        Measured("… records on the disk of each of the others", "MB", None, archive.local_bytes / 1e6),
    ]


def _cluster(folder: Path, store: Store) -> Cluster:
    brisk = {"remote.log.manager.task.interval.ms": "500", "log.retention.check.interval.ms": "500"}
    cluster = Cluster.apart(folder, (CONTROLLER,), BROKERS, {**brisk, **store.node_settings})
    ports, _ = agree_on_ports(0, len(BROKERS), 0)
    for broker_id, port in zip(BROKERS, ports, strict=True):
        cluster.members[broker_id].settings["firn.http.listener"] = f"127.0.0.1:{port}"
    for member in cluster.members.values():
        member.environ = store.env
    return cluster


class _Archive:
    """A tiered topic: equal batches in all its partitions."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._batch_bytes = len(batch([bytes(RECORD_BYTES)] * BATCH_RECORDS))
        self._in_a_segment = SEGMENT_BYTES // self._batch_bytes
        self._segments = 0
        """of each partition"""
        Admin(cluster.bootstrap).replicate(
            TOPIC,
            len(PARTITIONS),
            3,
            min_insync_replicas="2",
            remote_storage_enable="true",
            segment_bytes=str(SEGMENT_BYTES),
            local_retention_bytes=str(LOCAL_BYTES),
        )
        wait_in_sync(cluster, TOPIC, 120)
        self._write(0)

    @property
    def bytes(self) -> int:
        return self._bytes_of(self._segments)

    @property
    def local_bytes(self) -> int:
        """Return the size of the local logs on the broker that has most."""
        return max(
            sum(_log_bytes(self._cluster.members[one], index) for index in PARTITIONS) for one in BROKERS
        )

    def grow(self, gigabytes: float) -> None:
        """Grow the archive to about `gigabytes`, and wait until local retention has deleted the rest."""
        wanted = max(round(gigabytes * 1e9 / self._bytes_of(1)), self._segments, LEAST_SEGMENTS)
        while self._segments < wanted:
            step = min(STEP_SEGMENTS, wanted - self._segments)
            self._write(self._segments + step)
            self._wait_for_store(self._segments)
            self._segments += step
        self._wait_for_store(wanted)
        wait_until("local copies to go", self._is_local_least, PATIENCE_S)

    def _bytes_of(self, segments: int) -> int:
        return segments * self._in_a_segment * self._batch_bytes * len(PARTITIONS)

    def _write(self, segments: int) -> None:
        """Write until each partition has `segments` segments and a tail, each at its own speed."""
        end = (segments * self._in_a_segment + TAIL_BATCHES) * BATCH_RECORDS
        until = time.monotonic() + PATIENCE_S
        with ThreadPoolExecutor(len(PARTITIONS)) as pool:
            list(pool.map(lambda index: self._write_one(index, end, until), PARTITIONS))

    def _write_one(self, index: int, end: int, until: float) -> None:
        """Others may lead meanwhile where a node is starved: that is told, and the rest is for them."""
        place = self._cluster.bootstrap
        while True:
            try:
                batches = (end - end_offset(place, TOPIC, index)) // BATCH_RECORDS
                assert batches >= 0, f"{TOPIC}-{index} has more than it was given"
                if not batches:
                    return
                size = batches * self._batch_bytes
                pour(place, TOPIC, [index], size, BATCH_RECORDS, -1, min(WINDOW, batches))
            except (AssertionError, OSError) as e:
                print(f"{TOPIC}-{index}: {e}", file=sys.stderr, flush=True)
                if time.monotonic() > until:
                    raise
                time.sleep(1)

    def _wait_for_store(self, segments: int) -> None:
        wanted = segments * self._in_a_segment * BATCH_RECORDS

        def is_there() -> bool:
            place = self._cluster.bootstrap
            return all(offset(place, TOPIC, index, LATEST_TIERED) + 1 >= wanted for index in PARTITIONS)

        wait_until(f"{segments} segments of each partition in the store", is_there, PATIENCE_S)

    def _is_local_least(self) -> bool:
        return all(
            _log_bytes(self._cluster.members[one], index) < LOCAL_BYTES + SEGMENT_BYTES
            for one in BROKERS
            for index in PARTITIONS
        )


def _log_bytes(member: Member, index: int) -> int:
    total = 0
    for path in (member.data / f"{TOPIC}-{index}").glob("*.log"):
        with contextlib.suppress(FileNotFoundError):  # it went meanwhile
            total += path.stat().st_size
    return total


def _wipe(cluster: Cluster, victim: Member) -> Back:
    """Stop the broker in order, delete its data, and measure its return."""
    victim.leave()
    shutil.rmtree(victim.data)
    running = next(cluster.members[one] for one in BROKERS if cluster.members[one].is_running)
    wait_until(
        "others to lead",
        lambda: all(victim.node_id not in (one.leader, *one.isr) for one in states(running, TOPIC).values()),
        60,
    )
    os.sync()  # earlier writes must not slow down the measured part
    began = time.monotonic()
    victim.start(120)
    ready_s = time.monotonic() - began
    wait_in_sync(cluster, TOPIC, PATIENCE_S)
    in_sync_s = time.monotonic() - began
    assert victim.process is not None
    cpu_s = sum(cpu_seconds(victim.process.pid))
    with urlopen(f"http://{victim.settings['firn.http.listener']}/metrics", timeout=20) as answer:
        lines = answer.read().decode().splitlines()
    return Back(
        ready_s,
        in_sync_s,
        cpu_s,
        _sum(lines, "firn_cache_downloaded_bytes_total"),
        _sum(lines, "firn_store_received_bytes_total"),
        _sum(lines, "firn_replication_received_bytes_total"),
    )


def _sum(lines: list[str], metric: str) -> float:
    """Sum a metric over all its labels."""
    return sum(
        float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{metric} ", metric + "{"))
    )
