"""`python -m bench.rates [--kafka] [--rates N …]`: how long a produce request takes at rising rates.

Requests of one record of 1 KB with acks=all, over 16 partitions of one node, each sent when it is due: an
open loop, whose times count from then. A side is done with once it falls behind: half of its requests wait
for longer than `--breaks-ms`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Final

from kio.schema.errors import ErrorCode

from bench.figures import Figures, add_json_option, write_asked
from bench.measures import Measured
from bench.peers import check_kafka, sides
from bench.replica_load import Felt, Pace
from tests.support.clients import Admin
from tests.support.processes import wait_until
from tests.support.tiers import LATEST
from tests.support.wire import RawConnection, offsets

RATES: Final = (1_000, 2_000, 4_000, 6_000, 8_000, 10_000, 12_000, 16_000, 20_000, 25_000, 30_000)
PARTITIONS: Final = 16
TOPIC: Final = "paced"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.rates", description=__doc__)
    parser.add_argument("--kafka", action="store_true", help="measure Apache Kafka beside it")
    parser.add_argument("--rates", type=int, nargs="+", default=RATES, metavar="N", help="requests a second")
    parser.add_argument("--seconds", type=float, default=10, help="of each rate (default: 10)")
    parser.add_argument("--breaks-ms", type=float, default=100, help="median at which to stop (default: 100)")
    add_json_option(parser)
    arguments = parser.parse_args()
    check_kafka(parser, arguments)
    figures = Figures()
    with (
        tempfile.TemporaryDirectory(prefix="firn-rates-") as name,
        sides(Path(name), arguments.kafka) as peers,
    ):
        for peer in peers:
            Admin(peer.bootstrap).create(TOPIC, PARTITIONS)
            wait_until("leaders", partial(_all_are_led, peer.bootstrap), 60)
            _felt(peer.bootstrap, 5_000, 25)  # a JVM needs 100,000 requests until its code is compiled
        standing = list(peers)
        for rate in sorted(arguments.rates):
            for peer in tuple(standing):
                felt = _felt(peer.bootstrap, rate, arguments.seconds)
                what = f"produce at {rate:,}/s"
                figures.tell(
                    peer.name,
                    [
                        Measured(f"{what}, p50", "ms", None, 1e3 * felt.p50),
                        Measured(f"{what}, p99", "ms", None, 1e3 * felt.p99),
                        Measured(f"{what}, p99.9", "ms", None, 1e3 * felt.p999),
                    ],
                )
                if 1e3 * felt.p50 > arguments.breaks_ms:
                    standing.remove(peer)
    write_asked(arguments, figures)
    return 0


def _all_are_led(bootstrap: str) -> bool:
    with RawConnection(bootstrap) as connection:
        return all(
            offsets(connection, TOPIC, one, LATEST).error_code == ErrorCode.none for one in range(PARTITIONS)
        )


def _felt(bootstrap: str, rate: int, seconds: float) -> Felt:
    with Pace(bootstrap, TOPIC, range(PARTITIONS), rate, -1) as pace:
        return pace.felt(seconds)


if __name__ == "__main__":
    sys.exit(main())
