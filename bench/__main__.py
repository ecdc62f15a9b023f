"""`python -m bench [idle] [produce] [fetch] [cold] [--kafka] [--rounds N]`"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from bench import load, measures
from bench.figures import FIRN, Figures, add_json_option, write_asked
from bench.parts import parts_of
from bench.peers import by_turns, check_kafka, sides
from tests.support.stores import Store, moto_server, new_bucket, versitygw_binary, versitygw_server

NAMES = ("idle", "produce", "fetch", "cold")
WARM_REQUESTS, WARM_MEGABYTES = 100_000, 1_000
"""Work of a JVM until its code is compiled."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; default: all")
    parser.add_argument("--kafka", action="store_true", help="measure Apache Kafka beside it")
    parser.add_argument(
        "--rounds", type=int, default=3, help="rounds of which medians are taken (default: 3)"
    )
    parser.add_argument("--requests", type=int, default=100_000, help="produce requests a round")
    parser.add_argument("--megabytes", type=int, default=500, help="size of the topics that are read")
    add_json_option(parser)
    arguments = parser.parse_args()
    names = parts_of(parser, arguments.names, NAMES)
    check_kafka(parser, arguments)
    figures = Figures()
    with tempfile.TemporaryDirectory(prefix="firn-bench-") as name:
        folder = Path(name)
        if "idle" in names:
            _idle(folder, arguments, figures)
        if "produce" in names or "fetch" in names:
            _load(folder, names, arguments, figures)
        if "cold" in names:
            _cold(folder, arguments, figures)
    figures.tell_medians()
    write_asked(arguments, figures)
    return 0


def _idle(folder: Path, arguments: argparse.Namespace, figures: Figures) -> None:
    for number in range(arguments.rounds):
        with sides(folder / f"idle-{number}", arguments.kafka and number == 0) as peers:
            for peer in peers:
                figures.tell(peer.name, measures.idle(peer), sys.stderr)


def _load(folder: Path, names: list[str], arguments: argparse.Namespace, figures: Figures) -> None:
    with sides(folder / "load", arguments.kafka) as peers:
        for peer in peers:
            load.create(peer.bootstrap, "warm")
            load.produce_single_records(peer.bootstrap, "warm", WARM_REQUESTS)
            filled = load.fill(peer.bootstrap, "warm", WARM_MEGABYTES)
            if "fetch" in names:
                load.fetch_all(peer.bootstrap, "warm", *filled)
                measures.consume(peer, arguments.megabytes, 4)
        for peer in by_turns(peers, arguments.rounds):
            if "produce" in names:
                figures.tell(peer.name, measures.produce(peer, arguments.requests), sys.stderr)
                figures.tell(peer.name, measures.produce_singly(peer, arguments.requests // 4), sys.stderr)
                figures.tell(peer.name, measures.produce_bulk(peer, arguments.megabytes), sys.stderr)
            if "fetch" in names:
                figures.tell(peer.name, measures.fetch(peer, arguments.megabytes, 4), sys.stderr)
                figures.tell(peer.name, measures.consume(peer, arguments.megabytes, 4), sys.stderr)


def _cold(folder: Path, arguments: argparse.Namespace, figures: Figures) -> None:
    server = versitygw_server if versitygw_binary() else moto_server
    if not versitygw_binary():
        print("cold: versitygw is not here (make fetch-tools); moto is slow", file=sys.stderr)
    (folder / "cold").mkdir()
    with server(folder / "cold") as endpoint:
        for number in range(arguments.rounds):
            store: Store = new_bucket(endpoint, f"bench-{number}")
            found = measures.cold(folder / f"cold-{number}", store, arguments.megabytes)
            figures.tell(FIRN, found, sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
