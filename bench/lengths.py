"""`python -m bench.lengths [--kafka] [--rounds N]`: what the length of a log costs, and its segments.

Three logs of one partition: a gigabyte in one segment, `--gigabytes` in segments of a gigabyte, and
`--segments` of a megabyte. Of each: requests of one record that are appended, a fetch of one batch at some
offset of the last half gigabyte, and the processor time of the node for both. Sides run one after the other,
so that the disk holds one of them.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from bench import load
from bench.figures import Figures, add_json_option, write_asked
from bench.measures import Measured
from bench.peers import Cpu, Peer, check_kafka, firn, kafka
from tests.support.wire import RawConnection

GIGABYTE: Final = 1_000_000_000
NEAR_BYTES: Final = 500_000_000
FETCHES: Final = 2_000
WARM_REQUESTS: Final = 100_000


class Length(NamedTuple):
    """One log: its name on the page, and how it is made."""

    what: str
    topic: str
    megabytes: int
    segment_bytes: int


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.lengths", description=__doc__)
    parser.add_argument("--kafka", action="store_true", help="measure Apache Kafka, too")
    parser.add_argument("--rounds", type=int, default=3, help="of which medians are taken (default: 3)")
    parser.add_argument("--gigabytes", type=int, default=20, help="of the long log (default: 20)")
    parser.add_argument("--segments", type=int, default=10_000, help="of the other (default: 10000)")
    parser.add_argument("--requests", type=int, default=50_000, help="of a round (default: 50000)")
    add_json_option(parser)
    arguments = parser.parse_args()
    check_kafka(parser, arguments)
    lengths = [
        Length("log of 1 GB in 1 segment", "short", 1_000, 2_000_000_000),
        Length(f"log of {arguments.gigabytes} GB", "long", arguments.gigabytes * 1_000, GIGABYTE),
        Length(f"log of {arguments.segments:,} segments", "many", arguments.segments, 1 << 20),
    ]
    figures = Figures()
    with tempfile.TemporaryDirectory(prefix="firn-lengths-") as name:
        folder = Path(name)
        needed = sum(one.megabytes for one in lengths) * 1_000_000 + 5 * GIGABYTE
        if shutil.disk_usage(folder).free < needed:
            parser.error(f"{folder} has less than {needed / GIGABYTE:.0f} GB: fewer --gigabytes, or TMPDIR")
        sides: list[Callable[[Path], AbstractContextManager[Peer]]] = [firn]
        if arguments.kafka:
            sides.append(kafka)
        for number, side in enumerate(sides):
            own = folder / str(number)
            with side(own) as peer:
                _measure(peer, lengths, arguments, figures)
            shutil.rmtree(own)
    figures.tell_medians()
    write_asked(arguments, figures)
    return 0


def _measure(peer: Peer, lengths: list[Length], arguments: argparse.Namespace, figures: Figures) -> None:
    batches = {}
    for one in lengths:
        load.create(peer.bootstrap, one.topic, segment_bytes=str(one.segment_bytes))
        _, batches[one] = load.fill(peer.bootstrap, one.topic, one.megabytes)
        print(f"{peer.name}: {one.what} written", file=sys.stderr)
    load.create(peer.bootstrap, "warm")
    load.produce_single_records(peer.bootstrap, "warm", WARM_REQUESTS)
    rng = random.Random(1)
    for number in range(arguments.rounds):
        for one in lengths[:: 1 if number % 2 == 0 else -1]:
            with Cpu(peer.pid) as cpu:
                load.produce_single_records(peer.bootstrap, one.topic, arguments.requests)
            each, took = cpu.all / arguments.requests * 1e6, cpu.wall
            with Cpu(peer.pid) as cpu:
                waits = _random_fetches(peer.bootstrap, one.topic, batches[one], rng)
            found = [
                Measured(
                    f"requests of one record, {one.what}", "1000/s", None, arguments.requests / took / 1e3
                ),
                Measured(f"CPU of a request, {one.what}", "µs", None, each),
                Measured(f"fetch at some offset, p50, {one.what}", "ms", None, 1e3 * median(waits)),
                Measured(f"CPU of a fetch, {one.what}", "µs", None, cpu.all / FETCHES * 1e6),
            ]
            figures.tell(peer.name, found, sys.stderr)


def _random_fetches(bootstrap: str, topic: str, batches: int, rng: random.Random) -> list[float]:
    """Return the seconds of each fetch: of one batch of the newest, which the page cache has."""
    near = min(batches, NEAR_BYTES // (load.RECORD_BYTES * load.BATCH_RECORDS))
    waits = []
    with RawConnection(bootstrap, 60) as connection:
        for _ in range(FETCHES):
            number = rng.randrange(batches - near, batches)
            frame = load.fetch_frame(
                topic, number * load.BATCH_RECORDS + rng.randrange(load.BATCH_RECORDS), 1
            )
            began = time.perf_counter()
            connection.send(frame)
            answer = connection.receive_frame()
            waits.append(time.perf_counter() - began)
            assert len(answer) > load.RECORD_BYTES * load.BATCH_RECORDS, f"an answer of {len(answer)} bytes"
    return waits


if __name__ == "__main__":
    sys.exit(main())
