"""`python -m bench.warm [--kafka] [--rounds N]`: reads right after a restart, and disk reads of a consumer.

The kernel's page cache outlives the process: a node that is started again serves from memory at once. Told
are the rate before and right after a restart, from the first request on, and the bytes that the process had
the kernel read from a device (`read_bytes` of /proc/PID/io), for that and while a consumer keeps up with a
producer.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from bench import load
from bench.figures import Figures, add_json_option, write_asked
from bench.measures import Measured
from bench.peers import Peer, by_turns, check_kafka, sides

TOPIC = "restarted"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.warm", description=__doc__)
    parser.add_argument("--kafka", action="store_true", help="measure Apache Kafka beside it")
    parser.add_argument("--rounds", type=int, default=3, help="of which medians are taken (default: 3)")
    parser.add_argument("--megabytes", type=int, default=1000, help="that are read (default: 1000)")
    add_json_option(parser)
    arguments = parser.parse_args()
    check_kafka(parser, arguments)
    figures = Figures()
    with (
        tempfile.TemporaryDirectory(prefix="firn-warm-") as name,
        sides(Path(name), arguments.kafka) as peers,
    ):
        filled = {}
        for peer in peers:
            load.create(peer.bootstrap, TOPIC)
            filled[peer.name] = load.fill(peer.bootstrap, TOPIC, arguments.megabytes)
        for peer in by_turns(peers, arguments.rounds):
            figures.tell(peer.name, _restarted(peer, *filled[peer.name]), sys.stderr)
            figures.tell(peer.name, _followed(peer, arguments.megabytes), sys.stderr)
    figures.tell_medians()
    write_asked(arguments, figures)
    return 0


def _restarted(peer: Peer, batch_bytes: int, batches: int) -> Iterator[Measured]:
    """Read all, twice before a restart and once right after it."""
    for _ in range(2):
        before = _rate(peer, batch_bytes, batches)
    peer.stop()
    peer.start()
    after = _rate(peer, batch_bytes, batches)
    yield Measured("fetched before a restart", "MB/s", None, before)
    yield Measured("fetched right after a restart", "MB/s", None, after)
    yield Measured("read from the device since the restart", "MB", None, device_mb(peer.pid))


def _rate(peer: Peer, batch_bytes: int, batches: int) -> float:
    began = time.monotonic()
    return load.fetch_all(peer.bootstrap, TOPIC, batch_bytes, batches) / 1e6 / (time.monotonic() - began)


def _followed(peer: Peer, megabytes: int) -> Iterator[Measured]:
    """Have a consumer follow a producer."""
    topic = f"followed-{time.monotonic_ns()}"
    load.create(peer.bootstrap, topic)
    before = device_mb(peer.pid)
    producer = threading.Thread(target=load.fill, args=(peer.bootstrap, topic, megabytes))
    producer.start()
    load.consume_all(peer.bootstrap, topic, load.batches_of(megabytes) * load.BATCH_RECORDS)
    producer.join()
    yield Measured("read from the device while a consumer keeps up", "MB", None, device_mb(peer.pid) - before)


def device_mb(pid: int) -> float:
    """Return the megabytes that a process has had the kernel read from devices."""
    said = Path(f"/proc/{pid}/io").read_text(encoding="ascii")
    return int(said.partition("read_bytes:")[2].split()[0]) / 1e6


if __name__ == "__main__":
    sys.exit(main())
