"""`python -m bench.committed [plain] [aborted] [--check]`: readers of committed transactions.

- plain: CPU time of a node for a fetch of one record, and for one of a megabyte, of a topic without
  transactions, at both isolation levels, in turns in one process.
- aborted: a log with a million aborted transactions, of one small record each and a hundred open at a time: a
  fetch of a megabyte in its middle, hot, from the look-up to the frame, at both levels: CPU time of its
  thread, which nothing beside it delays.

`--check`: exit 1 where committed reads of a plain topic cost 2 % more, or a fetch among the aborted takes
more than 2 ms.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Final
from uuid import UUID

from bench import load
from bench.parts import parts_of
from bench.peers import Cpu, firn, rss_mb
from service.base.types import TopicIdPartition
from service.base.world import system_world
from service.config.settings import LogConfig
from service.hot.log import LocalLog
from service.hot.markers import Marker
from service.hot.verification import VERIFICATION_OFF
from service.partition.unified_log import UnifiedLog
from service.records.batch import read_header
from service.records.builder import BatchBuilder
from service.records.validation import ValidatedBatch
from service.wire.fetch import FetchPartitionResult, encode_fetch_response
from tests.support.wire import RawConnection, schema

NAMES: Final = ("plain", "aborted")
MOST: Final = 1.02
MOST_MS: Final = 2.0
OPEN_AT_A_TIME: Final = 100
MIB: Final = 1 << 20


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.committed", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; default: all")
    parser.add_argument("--requests", type=int, default=4_000, help="fetches of one record in a round")
    parser.add_argument("--rounds", type=int, default=25, help="rounds of which medians are taken")
    parser.add_argument("--aborted", type=int, default=1_000_000, help="aborted transactions")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    names = parts_of(parser, arguments.names, NAMES)
    failed = False
    if "plain" in names:
        failed |= _plain(arguments.requests, arguments.rounds) > MOST
    if "aborted" in names:
        failed |= _aborted(arguments.aborted) > MOST_MS
    return int(arguments.check and failed)


def _plain(requests: int, rounds: int) -> float:
    """Return how much more a committed fetch of one record costs."""
    kinds = {"one record": (1, requests), "a megabyte": (MIB, max(requests // 20, 1))}
    took: dict[tuple[str, int], list[float]] = {(kind, level): [] for kind in kinds for level in (0, 1)}
    with tempfile.TemporaryDirectory(prefix="firn-bench-") as name, firn(Path(name) / "node") as peer:
        load.create(peer.bootstrap, "t")
        load.fill(peer.bootstrap, "t", 64)
        with RawConnection(peer.bootstrap) as connection:
            for number in range(rounds + 1):
                for kind, (size, count) in kinds.items():
                    for level in (0, 1) if number % 2 else (1, 0):
                        with Cpu(peer.pid) as cpu:
                            _fetch(connection, size, count, level)
                        if number:  # the first one warms up
                            took[kind, level].append(cpu.all / count * 1e6)
    ratios = {}
    for kind in kinds:
        plain, committed = (statistics.median(took[kind, level]) for level in (0, 1))
        pairs = zip(took[kind, 0], took[kind, 1], strict=True)
        ratios[kind] = statistics.median(one / other for other, one in pairs)
        print(
            f"fetch of {kind}: {plain:.2f} µs of CPU uncommitted, {committed:.2f} committed:"
            f" {ratios[kind]:.3f} of it"
        )
    return ratios["one record"]


def _fetch(connection: RawConnection, max_bytes: int, count: int, level: int) -> None:
    """Fetch the topic's first records so often, some requests under way at a time."""
    module = schema(1, 12)
    part = module.FetchPartition(
        partition=0, fetch_offset=0, partition_max_bytes=max_bytes, current_leader_epoch=-1,
        log_start_offset=-1, last_fetched_epoch=-1,
    )  # fmt: skip
    request = module.FetchRequest(
        replica_id=-1, max_wait=timedelta(0), min_bytes=1, max_bytes=max_bytes, isolation_level=level,
        session_id=0, session_epoch=-1, forgotten_topics_data=(), rack_id="",
        topics=(module.FetchTopic(topic="t", partitions=(part,)),),
    )  # fmt: skip
    frame, under_way = load.framed(request), min(count, 50 if max_bytes < MIB else 2)
    for _ in range(under_way):
        connection.send(frame)
    for number in range(count):
        assert len(connection.receive_frame()) > 100, "no record came"
        if number + under_way < count:
            connection.send(frame)


def _aborted(count: int) -> float:
    """Return how many ms a committed fetch takes."""
    with tempfile.TemporaryDirectory(prefix="firn-bench-") as name:
        began = time.perf_counter()
        log = LocalLog.open(
            Path(name) / "t-0", TopicIdPartition(UUID(int=7), "t", 0), LogConfig(), world=system_world()
        )
        for first in range(0, count, OPEN_AT_A_TIME):
            _abort_some(log, first)
        wrote_s, memory = time.perf_counter() - began, rss_mb(os.getpid())
        log.high_watermark_moved(log.log_end_offset)
        print(
            f"{count} aborted transactions: {log.size / 1e6:.0f} MB, written in {wrote_s:.0f} s,"
            f" {memory:.0f} MB of memory"
        )
        unified, ends = UnifiedLog(log, None), log.log_end_offset
        medians = []
        for level in (0, 1):
            took, rows = _timed(unified, ends, is_committed=bool(level))
            medians.append(statistics.median(took))
            print(
                f"fetch of a megabyte in the middle at level {level}: median {medians[-1]:.2f} ms,"
                f" p99 {sorted(took)[len(took) * 99 // 100]:.2f} ms, {rows} transactions"
            )
        log.close(clean=False)
    return medians[1]


def _abort_some(log: LocalLog, first: int) -> None:
    now_ms = 1_700_000_000_000 + first
    for producer_id in range(first, first + OPEN_AT_A_TIME):
        builder = BatchBuilder(
            producer_id=producer_id, producer_epoch=0, base_sequence=0, is_transactional=True
        )
        builder.add(now_ms, None, b"x" * 100)
        data = memoryview(builder.build())
        log.append(ValidatedBatch(data, read_header(data), now_ms, 0, 1), 0, now_ms, VERIFICATION_OFF)
    markers = [Marker(one, 0, 0, False, 1) for one in range(first, first + OPEN_AT_A_TIME)]
    log.append_markers(markers, 0, now_ms)


def _timed(unified: UnifiedLog, end: int, *, is_committed: bool) -> tuple[list[float], int]:
    """Return how long fetches take in ms, and how many aborted transactions one has."""
    took, rows = [], 0
    for number in range(200):
        began = time.thread_time()
        read = unified.read(end // 2 + 7 * number, MIB, end, min_one=True, is_committed=is_committed)
        aborted = read.aborted if is_committed else None
        result = FetchPartitionResult(0, 0, end, end, 0, read.parts, aborted)
        encode_fetch_response(12, 1, [("t", [result])])
        took.append((time.thread_time() - began) * 1e3)
        rows = len(read.aborted)
    return took, rows


if __name__ == "__main__":
    sys.exit(main())
