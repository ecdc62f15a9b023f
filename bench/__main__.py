"""`python -m bench [idle] [produce] [fetch] [cold] [--kafka] [--rounds N]`"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench import load, measures
from bench.measures import Measured
from bench.parts import parts_of
from bench.peers import Peer, firn, kafka, kafka_is_here
from tests.support.stores import Store, moto_server, new_bucket, versitygw_binary, versitygw_server

NAMES = ("idle", "produce", "fetch", "cold")
Figures = dict[str, dict[str, list[Measured]]]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; default: all")
    parser.add_argument("--kafka", action="store_true", help="measure Apache Kafka beside it")
    parser.add_argument(
        "--rounds", type=int, default=3, help="rounds of which medians are taken (default: 3)"
    )
    parser.add_argument("--requests", type=int, default=100_000, help="produce requests a round")
    parser.add_argument("--megabytes", type=int, default=500, help="size of the topics that are read")
    arguments = parser.parse_args()
    names = parts_of(parser, arguments.names, NAMES)
    if arguments.kafka and not kafka_is_here():
        parser.error("Apache Kafka's jars are not here: make fetch-tools")
    figures: Figures = {}
    with tempfile.TemporaryDirectory(prefix="firn-bench-") as name:
        folder = Path(name)
        if "idle" in names:
            _idle(folder, arguments, figures)
        if "produce" in names or "fetch" in names:
            _load(folder, names, arguments, figures)
        if "cold" in names:
            _cold(folder, arguments, figures)
    _print(figures)
    return 0


def _note(figures: Figures, peer: str, measured: list[Measured]) -> None:
    for found in measured:
        figures.setdefault(found.what, {}).setdefault(peer, []).append(found)
        print(f"{peer}: {found.what}: {found.value:.2f} {found.unit}", file=sys.stderr)


@contextlib.contextmanager
def _peers(folder: Path, with_kafka: bool) -> Iterator[list[Peer]]:
    with contextlib.ExitStack() as stack:
        peers: list[Peer] = [stack.enter_context(firn(folder / "firn"))]
        if with_kafka:
            peers.append(stack.enter_context(kafka(folder / "kafka")))
        yield peers


def _idle(folder: Path, arguments: argparse.Namespace, figures: Figures) -> None:
    for number in range(arguments.rounds):
        with _peers(folder / f"idle-{number}", arguments.kafka and number == 0) as peers:
            for peer in peers:
                _note(figures, peer.name, measures.idle(peer))


def _load(folder: Path, names: list[str], arguments: argparse.Namespace, figures: Figures) -> None:
    with _peers(folder / "load", arguments.kafka) as peers:
        for peer in peers:
            load.create(peer.bootstrap, "warm")
            load.produce_single_records(peer.bootstrap, "warm", arguments.requests)
            if "fetch" in names:  # a JVM needs some gigabytes until its code is compiled
                for measure in (measures.fetch, measures.consume):
                    measure(peer, arguments.megabytes, 4)
        for number in range(arguments.rounds):
            # Sides alternate, and take turns in going first.
            for peer in peers[:: 1 if number % 2 == 0 else -1]:
                if "produce" in names:
                    _note(figures, peer.name, measures.produce(peer, arguments.requests))
                    _note(figures, peer.name, measures.produce_bulk(peer, arguments.megabytes))
                if "fetch" in names:
                    _note(figures, peer.name, measures.fetch(peer, arguments.megabytes, 4))
                    _note(figures, peer.name, measures.consume(peer, arguments.megabytes, 4))


def _cold(folder: Path, arguments: argparse.Namespace, figures: Figures) -> None:
    server = versitygw_server if versitygw_binary() else moto_server
    if not versitygw_binary():
        print("cold: versitygw is not here (make fetch-tools); moto is slow", file=sys.stderr)
    (folder / "cold").mkdir()
    with server(folder / "cold") as endpoint:
        for number in range(arguments.rounds):
            store: Store = new_bucket(endpoint, f"bench-{number}")
            _note(figures, "Firn", measures.cold(folder / f"cold-{number}", store, arguments.megabytes))


def _print(figures: Figures) -> None:
    peers = list(dict.fromkeys(peer for found in figures.values() for peer in found))
    widths = [max(14, len(peer)) for peer in peers]
    head = "".join(f"{peer:>{width + 2}}" for peer, width in zip(peers, widths, strict=True))
    ratio = f"{'ratio':>10}" if len(peers) == 2 else ""
    print(f"{'median':<55}{'target':>12}{head}{ratio}")
    for what, found in figures.items():
        one = next(iter(found.values()))[0]
        target = "" if one.target is None else f"≤ {one.target:g} {one.unit}"
        cells = ""
        medians = {peer: statistics.median(one.value for one in measured) for peer, measured in found.items()}
        for peer, width in zip(peers, widths, strict=True):
            if peer not in found:
                cells += f"{'':>{width + 2}}"
                continue
            value = medians[peer]
            over = peer == "Firn" and one.target is not None and value > one.target
            text = f"{'OVER ' if over else ''}{value:.{0 if value >= 100 else 2}f} {one.unit}"
            cells += f"{text:>{width + 2}}"
        if len(medians) == 2 and medians["Apache Kafka"]:
            cells += f"{medians['Firn'] / medians['Apache Kafka']:>8.2f} x"
        print(f"{what:<55}{target:>12}{cells}")


if __name__ == "__main__":
    sys.exit(main())
