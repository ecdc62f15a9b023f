"""`python -m bench.planning`: planning a read of 100,000 segments (10 TB), and what its tasks would ask for.

The bucket holds manifests and pages as ten years leave them, and no records. A process of its own plans as
the driver's does, and is measured: time, and memory beyond what its imports take. What tasks do is reckoned
from their splits by the rules of `read/downloads.py`: for each piece a footer and ranges of `fetchBytes`.
"""

from __future__ import annotations

import argparse
import json
import pickle
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from service.base.world import system_world
from service.remote.format.keys import TOPICS_KEY, SegmentKey, head_key, segment_key
from service.remote.format.manifest import Manifest, SegmentEntry
from service.remote.format.manifest_codec import (
    TopicsFileRow,
    encode_head,
    encode_manifest,
    encode_page,
    encode_topics,
    head_of,
)
from service.remote.stores.obstore_store import open_store
from service.spark.options import parse_options
from service.spark.plan.archive import ArchiveReader
from service.spark.plan.ranges import plan_ranges, resolve_ranges
from service.spark.plan.splits import Split
from service.spark.read.downloads import SMALL_OBJECT_BYTES

PARTITIONS: Final = 16
SEGMENT_BYTES: Final = 100 << 20
RECORDS: Final = 400_000
START_MS: Final = 1_400_000_000_000
YEARS_MS: Final = 10 * 365 * 86_400_000
SECONDS_TARGET, MB_TARGET = 5.0, 300.0
CORES: Final = 800
MB_PER_CORE_SECOND: Final = 150.0
"""What a core makes rows of, all columns (`make bench-spark`: half of what two cores read)."""
GET_USD: Final = 0.0004 / 1000
"""A GET of S3 Standard in us-east-1; bytes to machines of the same region cost nothing."""
MONTH_USD_PER_GB: Final = 0.023


def fill(folder: Path, segments: int) -> None:
    """A topic `years` of so many segments, its manifests as offloads would have left them."""
    store = open_store(f"file://{folder}", world=system_world())
    rng = random.Random(11)

    def new_uuid() -> UUID:
        return UUID(int=rng.getrandbits(128))

    topic_id = new_uuid()
    for partition in range(PARTITIONS):
        count = segments // PARTITIONS
        manifest = Manifest("c-1", topic_id, "years", partition)
        for number in range(count):
            base = number * RECORDS
            identity = SegmentKey(topic_id, partition, base, base + RECORDS - 1, 3, new_uuid())
            time_ms = START_MS + YEARS_MS * number // count
            entry = SegmentEntry(
                base,
                base + RECORDS - 1,
                SEGMENT_BYTES + 40_000,
                SEGMENT_BYTES,
                time_ms + YEARS_MS // count,
                base + RECORDS - 1,
                ((3, 0),),
                segment_key(identity),
                SEGMENT_BYTES + 30_000,
                rng.getrandbits(32),
                time_ms,
            )
            change = manifest.append([entry], leader_epoch=3, new_uuid=new_uuid, encode_page=encode_page)
            for _, ref, data in change.pages:
                store.put(ref.key, data)
            manifest = change.manifest
        key, data = manifest.key(new_uuid()), encode_manifest(manifest)
        store.put(key, data)
        store.put(head_key(topic_id, partition), encode_head(head_of(manifest, key, data)))
    store.put(TOPICS_KEY, encode_topics("c-1", 1, [TopicsFileRow("years", topic_id, PARTITIONS, {})]))


def plan(folder: Path, **options: str) -> dict[str, Any]:
    """Plans a read in this process, which did nothing else before, and says what that took."""
    read = parse_options({"url": f"file://{folder}", "subscribe": "years", **options})
    before = _peak_mb()
    started = time.monotonic()
    with ArchiveReader(open_store(read.url, world=system_world())) as archive:
        splits = plan_ranges(archive, resolve_ranges(archive, read), read, parallelism=CORES)
    planned = time.monotonic() - started
    sent = sum(len(pickle.dumps(split)) for split in splits)
    return {
        "seconds": planned,
        "seconds with pickling": time.monotonic() - started,
        "MB": _peak_mb() - before,
        "tasks": len(splits),
        "MB of tasks": sent / 1e6,
        "segments": len({piece.entry.key for split in splits for piece in split.pieces}),
        "bytes": sum(piece.end_byte - piece.first_byte for split in splits for piece in split.pieces),
        "requests": sum(_requests(split, read.fetch_bytes) for split in splits),
    }


def _requests(split: Split, fetch_bytes: int) -> int:
    """GETs of one task: objects up to 1 MiB come whole, of others the footer first."""
    return sum(
        1
        if piece.entry.size <= SMALL_OBJECT_BYTES
        else 1 + -(-(piece.end_byte - piece.first_byte) // fetch_bytes)
        for piece in split.pieces
    )


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.planning", description=__doc__)
    parser.add_argument("--segments", type=int, default=100_000)
    parser.add_argument("--plan", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--options", type=json.loads, default={}, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.plan is not None:
        print(json.dumps(plan(arguments.plan, **arguments.options)))
        return 0
    with tempfile.TemporaryDirectory(prefix="firn-bench-") as name:
        folder = Path(name)
        print(f"writing the manifests of {arguments.segments:,} segments", file=sys.stderr)
        fill(folder, arguments.segments)
        for title, options in (
            ("everything", {}),
            ("everything, maxRecordsPerPartition=1000000", {"maxRecordsPerPartition": "1000000"}),
        ):
            _show(title, _planned(folder, options))
    return 0


def _planned(folder: Path, options: dict[str, str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.planning", "--plan", str(folder)]
    command += ["--options", json.dumps(options)]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return found


def _show(title: str, found: dict[str, Any]) -> None:
    read_s = found["bytes"] / 1e6 / MB_PER_CORE_SECOND / CORES
    print(f"\n{title}: {found['segments']:,} segments, {found['bytes'] / 1e12:.2f} TB")
    for what, value, target in (
        ("planning, s", found["seconds"], SECONDS_TARGET),
        ("planning and pickling of tasks, s", found["seconds with pickling"], None),
        ("memory of it, MB", found["MB"], MB_TARGET),
    ):
        verdict = "" if target is None else f"≤ {target:g} {'reached' if value <= target else 'MISSED'}"
        print(f"  {what:<44}{value:>14.1f}  {verdict}")
    print(f"  {'tasks':<44}{found['tasks']:>14,}")
    print(f"  {'sent to executors, MB':<44}{found['MB of tasks']:>14.1f}")
    print(f"  {'GETs':<44}{found['requests']:>14,}")
    print(f"  {f'at {CORES} cores of {MB_PER_CORE_SECOND:g} MB/s: seconds':<44}{read_s:>14,.0f}")
    print(f"  {'  GETs a second':<44}{found['requests'] / max(read_s, 1e-9):>14,.0f}")
    print(f"  {'  GETs, US$':<44}{found['requests'] * GET_USD:>14.2f}")
    print(f"  {'  a month of storing it, US$':<44}{found['bytes'] / 1e9 * MONTH_USD_PER_GB:>14,.0f}")


if __name__ == "__main__":
    sys.exit(main())
