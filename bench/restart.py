"""Time of a start after `kill -9`: `python -m bench.restart [near] [small]`

- near: gigabytes in one partition whose recovery point is near the end, a few MB of them above it.
- small: a segment of single-record batches, none of them below a recovery point, is read whole. A client
  would need minutes for so many requests, so the segment is written here, byte for byte as a node would.
"""

from __future__ import annotations

import argparse
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench import load
from bench.figures import FIRN, Figures, add_json_option, write_asked
from bench.measures import Measured
from bench.parts import parts_of
from tests.support.batches import batch
from tests.support.processes import Node, wait_until
from tests.support.wire import end_offset

NAMES = ("near", "small")
VALUE_BYTES = 100
_TOPIC = "restart"
_OFFSET = struct.Struct(">q")
_AT_ONCE = 50_000
"""batches written to the segment together"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.restart", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; default: both")
    parser.add_argument("--gigabytes", type=float, default=5, help="of near (default: 5)")
    parser.add_argument("--small-gigabytes", type=float, default=1, help="of small (default: 1)")
    add_json_option(parser)
    arguments = parser.parse_args()
    names = parts_of(parser, arguments.names, NAMES)
    figures = Figures()
    with tempfile.TemporaryDirectory(prefix="firn-restart-") as name:
        if "near" in names:
            figures.tell(FIRN, near(Path(name) / "near", arguments.gigabytes))
        if "small" in names:
            figures.tell(FIRN, small(Path(name) / "small", arguments.small_gigabytes))
    write_asked(arguments, figures)
    return 0


def near(folder: Path, gigabytes: float, tail_megabytes: int = 10) -> list[Measured]:
    """All is flushed and a checkpoint says so; then comes a tail that it does not speak of."""
    node = Node(folder, {"log.flush.offset.checkpoint.interval.ms": "1000"})
    try:
        node.start()
        load.create(node.bootstrap, _TOPIC, flush_ms="1000")
        load.fill(node.bootstrap, _TOPIC, int(gigabytes * 1000))
        end = end_offset(node.bootstrap, _TOPIC, 0)
        wait_until("a checkpoint of the end", lambda: _recovery_point(node) == end, 120)
        load.fill(node.bootstrap, _TOPIC, tail_megabytes)
        end = end_offset(node.bootstrap, _TOPIC, 0)
        what = f"start after kill -9, {gigabytes:g} GB, recovery point near the end"
        return _killed(node, what, 2, end)
    finally:
        node.close()


def small(folder: Path, gigabytes: float) -> list[Measured]:
    """Every batch has one record of `VALUE_BYTES`."""
    node = Node(folder)
    try:
        node.start()
        load.create(node.bootstrap, _TOPIC, segment_bytes=str(2**31 - 1))
        node.kill()
        end = write_single_records(node.data / f"{_TOPIC}-0" / f"{0:020}.log", int(gigabytes * 1e9))
        return [
            *_killed(node, f"start after kill -9, {gigabytes:g} GB of single records to recover", 6, end),
            Measured("batches of it", "million", None, end / 1e6),
        ]
    finally:
        node.close()


def write_single_records(log: Path, size: int) -> int:
    """Fill a segment that begins at 0 with batches of one record; returns the end offset."""
    one = batch([bytes(VALUE_BYTES)], leader_epoch=0)
    count = size // len(one)
    with log.open("wb") as file:
        for first in range(0, count, _AT_ONCE):
            number = min(_AT_ONCE, count - first)
            data = bytearray(one * number)
            for index in range(number):
                _OFFSET.pack_into(data, index * len(one), first + index)
            file.write(data)
    return count


def _killed(node: Node, what: str, target: float, end: int) -> list[Measured]:
    """Kill the node if it runs, start it, and see that nothing is missing."""
    if node.running:
        node.kill()
    seconds = _seconds(lambda: node.start(300))
    user, system = node.cpu_seconds()
    found = end_offset(node.bootstrap, _TOPIC, 0)
    assert found == end, f"the log ends at {found}, not at {end}"
    return [
        Measured(what, "s", target, seconds),
        Measured("CPU of that start", "s", None, user + system),
    ]


def _recovery_point(node: Node) -> int:
    path = node.data / "recovery-point-offset-checkpoint"
    if not path.exists():
        return -1
    for line in path.read_text().splitlines()[2:]:
        topic, partition, offset = line.split()[:3]
        if (topic, partition) == (_TOPIC, "0"):
            return int(offset)
    return -1


def _seconds(work: Callable[[], object]) -> float:
    started = time.monotonic()
    work()
    return time.monotonic() - started


if __name__ == "__main__":
    sys.exit(main())
