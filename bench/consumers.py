"""`python -m bench.consumers [--kafka] [--rounds N]`: 1, 4 and 16 consumers of the same records.

The records are in the page cache once, and are sent from there to each consumer. Told are the processor time
of the node for a gigabyte that is sent, and what all consumers got together.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
from pathlib import Path
from typing import Final

from bench import load
from bench.figures import Figures, add_json_option, write_asked
from bench.measures import Measured
from bench.peers import Cpu, Peer, by_turns, check_kafka, sides

COUNTS: Final = (1, 4, 16)
TOPIC: Final = "shared"

_fork = multiprocessing.get_context("fork")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.consumers", description=__doc__)
    parser.add_argument("--kafka", action="store_true", help="measure Apache Kafka beside it")
    parser.add_argument("--rounds", type=int, default=3, help="of which medians are taken (default: 3)")
    parser.add_argument("--megabytes", type=int, default=500, help="size of the topic (default: 500)")
    add_json_option(parser)
    arguments = parser.parse_args()
    check_kafka(parser, arguments)
    figures = Figures()
    with (
        tempfile.TemporaryDirectory(prefix="firn-consumers-") as name,
        sides(Path(name), arguments.kafka) as peers,
    ):
        filled = {}
        for peer in peers:
            load.create(peer.bootstrap, TOPIC)
            filled[peer.name] = load.fill(peer.bootstrap, TOPIC, arguments.megabytes)
            for _ in range(4):  # a JVM needs a gigabyte until its code is compiled
                load.fetch_all(peer.bootstrap, TOPIC, *filled[peer.name])
        for peer in by_turns(peers, arguments.rounds):
            for count in COUNTS:
                figures.tell(peer.name, _measure(peer, count, *filled[peer.name]), sys.stderr)
    figures.tell_medians()
    write_asked(arguments, figures)
    return 0


def _measure(peer: Peer, count: int, batch_bytes: int, batches: int) -> list[Measured]:
    consumers = [
        _fork.Process(target=load.fetch_all, args=(peer.bootstrap, TOPIC, batch_bytes, batches))
        for _ in range(count)
    ]
    with Cpu(peer.pid) as cpu:
        for one in consumers:
            one.start()
        for one in consumers:
            one.join()
    assert all(one.exitcode == 0 for one in consumers), "a consumer failed"
    gigabytes = count * batch_bytes * batches / 1e9
    what = "1 consumer" if count == 1 else f"{count} consumers"
    return [
        Measured(f"CPU of the node, {what}", "s/GB", None, cpu.all / gigabytes),
        Measured(f"together, {what}", "MB/s", None, gigabytes * 1e3 / cpu.wall),
    ]


if __name__ == "__main__":
    sys.exit(main())
