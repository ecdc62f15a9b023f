"""Price of a filter of keys: `python -m bench.filters`

Each row is one sealed segment, which is copied into a bucket in a folder with a filter and without, in turn.
It prints the CPU of the copy and of its part that verifies batches, for a GB of the log, and how many times
as much a filter makes of it. The goal is 1.15 times the copy; a store behind HTTP makes that cost more, and a
filter a smaller part of it.

`--times 5 --only with --rows plain-100` is one side of one row, for a tool that counts instructions:
what 5 cost beyond what 1 costs is 4 copies.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple
from unittest import mock
from uuid import UUID

from bench.parts import parts_of
from service.base.world import system_world
from service.records.batch import CompressionType, read_header, stamp
from service.records.builder import BatchBuilder
from service.records.validation import ValidatedBatch
from service.remote.format.segment_object import SegmentIdentity
from service.remote.reading.log_scan import ScannedLog, scan_log
from service.remote.stores.obstore_store import ObstoreStore, open_store
from service.tiering.copier import CallProgress, copy_segment
from service.tiering.planner import Copy
from service.tiering.ports import Sealed
from tests.unit.hot.logs import START_MS, TIP, open_log

GOAL: Final = 1.15
BLOCK_BYTES: Final = 1 << 20
SIDES: Final = ("without", "with")
WORDS: Final = 4_000
"""Different words of which values are made: text compresses to a third or so."""


class Row(NamedTuple):
    """Records of `size` bytes, `records` of them in a batch. `is_stamped`: with the time of the append."""

    size: int
    records: int
    codec: CompressionType = CompressionType.NONE
    has_keys: bool = True
    is_stamped: bool = False


ROWS: Final = {
    "no-keys-1000": Row(1000, 200, has_keys=False),
    "plain-100": Row(100, 150),
    "plain-1000": Row(1000, 16),
    "plain-10000": Row(10_000, 10),
    "lz4-100": Row(100, 150, CompressionType.LZ4),
    "lz4-1000": Row(1000, 64, CompressionType.LZ4),
    "lz4-1000-alone": Row(1000, 1, CompressionType.LZ4),
    "lz4-1000-stamped": Row(1000, 64, CompressionType.LZ4, is_stamped=True),
    "snappy-1000-alone": Row(1000, 1, CompressionType.SNAPPY),
    "gzip-1000-alone": Row(1000, 1, CompressionType.GZIP),
    "zstd-100": Row(100, 150, CompressionType.ZSTD),
    "zstd-1000": Row(1000, 64, CompressionType.ZSTD),
    "zstd-10000": Row(10_000, 10, CompressionType.ZSTD),
    "zstd-1000-alone": Row(1000, 1, CompressionType.ZSTD),
    "zstd-1000-stamped": Row(1000, 64, CompressionType.ZSTD, is_stamped=True),
}


def segment_of(folder: Path, row: Row, size: int) -> Sealed:
    """Return a sealed segment of about `size` bytes in which each key is another."""
    random = Random(1)
    words = [random.randbytes(3).hex().encode() for _ in range(WORDS)]
    pool = b" ".join(random.choice(words) for _ in range(200_000))
    log = open_log(folder, segment_bytes=size)
    while not (sealed := log.sealed.describe_all()):
        first = log.log_end_offset
        builder = BatchBuilder(codec=row.codec, log_append_time=START_MS if row.is_stamped else None)
        for number in range(first, first + row.records):
            at = random.randrange(len(pool) - row.size)
            key = b"customer-%08x" % (number * 2_654_435_761 % 2**32) if row.has_keys else None
            builder.add(START_MS + number // 10, key, pool[at : at + row.size])
        data = memoryview(builder.build())
        stamp(data, 0, first, 0)
        newest = START_MS + (0 if row.is_stamped else (first + row.records - 1) // 10)
        log.append(ValidatedBatch(data, read_header(data), newest, 0, row.records), 0, START_MS)
    return sealed[0]


def copy(store: ObstoreStore, segment: Sealed, side: str) -> None:
    """Copy a segment into the bucket, and delete it there."""

    def scanned(*arguments: Any, **options: Any) -> ScannedLog:
        return scan_log(*arguments, **{**options, "with_key_filter": side == "with"})

    identity = SegmentIdentity("bench", TIP.topic_id, TIP.topic, 0, 0, segment.last_offset, 0, UUID(int=1))
    with mock.patch("service.tiering.copier.scan_log", scanned):
        entry = copy_segment(store, Copy(segment, 0), identity, CallProgress(), BLOCK_BYTES)
    store.delete([entry.key])


def scan(segment: Sealed, side: str) -> ScannedLog:
    return scan_log(
        segment.log_file.read,
        0,
        segment.size,
        first_offset=0,
        last_offset=segment.last_offset,
        name="bench",
        block_bytes=BLOCK_BYTES,
        with_key_filter=side == "with",
    )


def cpu_of(work: Callable[[], object]) -> float:
    """Return the CPU seconds that the process takes for `work`."""
    began = time.process_time()
    work()
    return time.process_time() - began


def measure(store: ObstoreStore, segment: Sealed, rounds: int) -> dict[tuple[str, str], float]:
    """Return the median CPU seconds by what was done and side, sides in turn."""
    took: dict[tuple[str, str], list[float]] = {}
    for number in range(rounds + 1):
        for side in SIDES if number % 2 else SIDES[::-1]:
            found = cpu_of(lambda side=side: copy(store, segment, side))  # type: ignore[misc]
            scanned = cpu_of(lambda side=side: scan(segment, side))  # type: ignore[misc]
            if number:  # the first round warms up
                took.setdefault(("copy", side), []).append(found)
                took.setdefault(("scan", side), []).append(scanned)
    return {key: statistics.median(times) for key, times in took.items()}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.filters", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rows", nargs="+", default=[], metavar="ROW", help=f"of {', '.join(ROWS)}")
    parser.add_argument("--rounds", type=int, default=9, help="rounds, of which the median is taken (9)")
    parser.add_argument("--segment-mb", type=int, default=32, help="size of a segment (32)")
    parser.add_argument("--only", choices=SIDES, help="copy with or without a filter, and print nothing")
    parser.add_argument("--times", type=int, default=1, help="how often, with --only (1)")
    arguments = parser.parse_args()
    worst = 0.0
    for name in parts_of(parser, arguments.rows, tuple(ROWS)):
        with tempfile.TemporaryDirectory(prefix="firn-bench-") as folder:
            store = open_store(f"file://{folder}/bucket", world=system_world())
            segment = segment_of(Path(folder), ROWS[name], arguments.segment_mb << 20)
            if arguments.only:
                for _ in range(arguments.times):
                    copy(store, segment, arguments.only)
                continue
            took = measure(store, segment, arguments.rounds)
            found = scan(segment, "with")
            gigabytes = segment.size / 1e9
        ratios = {what: took[what, "with"] / took[what, "without"] for what in ("copy", "scan")}
        worst = max(worst, ratios["copy"])
        parts = [
            f"{what} {took[what, 'without'] / gigabytes:.2f} and {took[what, 'with'] / gigabytes:.2f} s/GB, "
            f"{ratio:.2f} x"
            for what, ratio in ratios.items()
        ]
        print(
            f"{name}: {'; '.join(parts)}; {found.record_count} records, "
            f"{len(found.key_filter)} bytes of filter; load {os.getloadavg()[0]:.1f}",
            flush=True,
        )
    if not arguments.only:
        print(f"copy with a filter, the worst row: {worst:.2f} x (goal: ≤ {GOAL})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
