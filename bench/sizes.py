"""`python -m bench.sizes [--kafka] [--rounds N]`: records a second of 100 B, 200 B and 1 KB.

In batches of about 64 KB, as producers under load make them, with five under way on one connection; one
record in each request, with a hundred under way; and read again by one librdkafka consumer.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bench import load
from bench.figures import Figures, add_json_option, write_asked
from bench.measures import Measured
from bench.peers import Cpu, Peer, by_turns, check_kafka, sides
from tests.support.batches import batch
from tests.support.wire import RawConnection, produce_request

SIZES: Final = (100, 200, 1000)
BATCH_BYTES: Final = 64_000
WINDOW: Final = 5


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.sizes", description=__doc__)
    parser.add_argument("--kafka", action="store_true", help="measure Apache Kafka beside it")
    parser.add_argument("--rounds", type=int, default=3, help="of which medians are taken (default: 3)")
    parser.add_argument("--records", type=int, default=2_000_000, help="in batches (default: 2000000)")
    parser.add_argument("--requests", type=int, default=100_000, help="of one record (default: 100000)")
    add_json_option(parser)
    arguments = parser.parse_args()
    check_kafka(parser, arguments)
    figures = Figures()
    with (
        tempfile.TemporaryDirectory(prefix="firn-sizes-") as name,
        sides(Path(name), arguments.kafka) as peers,
    ):
        for peer in peers:  # a JVM needs 100,000 requests and a gigabyte until its code is compiled
            for _ in measure(peer, 1000, 1_000_000, 100_000):
                pass
        for peer in by_turns(peers, arguments.rounds):
            for size in SIZES:
                figures.tell(
                    peer.name, measure(peer, size, arguments.records, arguments.requests), sys.stderr
                )
    figures.tell_medians()
    write_asked(arguments, figures)
    return 0


def measure(peer: Peer, size: int, records: int, requests: int) -> Iterator[Measured]:
    """Produce and read records of `size` bytes."""
    topic = f"sizes-{uuid.uuid4().hex[:8]}"
    load.create(peer.bootstrap, topic)
    count, took = _in_batches(peer.bootstrap, topic, size, records)
    yield Measured(f"batched, records of {size} B", "1000/s", None, count / took / 1e3)
    began = time.monotonic()
    load.consume_all(peer.bootstrap, topic, count)
    yield Measured(f"consumed, records of {size} B", "1000/s", None, count / (time.monotonic() - began) / 1e3)
    with Cpu(peer.pid) as cpu:
        load.produce_single_records(peer.bootstrap, topic, requests, size=size)
    yield Measured(f"one a request, records of {size} B", "1000/s", None, requests / cpu.wall / 1e3)


def _in_batches(bootstrap: str, topic: str, size: int, records: int) -> tuple[int, float]:
    """Return (records, seconds) of acks=1 requests with a batch each."""
    each = BATCH_BYTES // size
    frame = load.framed(produce_request(topic, 0, batch([bytes(size)] * each)))
    batches = records // each
    with RawConnection(bootstrap, 60) as connection:
        began = time.monotonic()
        for number in range(batches):
            connection.send(frame)
            if number >= WINDOW:
                connection.receive_frame()
        for _ in range(min(WINDOW, batches)):
            connection.receive_frame()
        return batches * each, time.monotonic() - began


if __name__ == "__main__":
    sys.exit(main())
