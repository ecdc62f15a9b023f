"""`python -m bench.quotas [--entities N] [--requests N] [--rounds N] [--check]`: cost of quotas on Produce.

One node, and single-record requests of acks=1 on one connection: without any quota; with quotas of so many
users and clients that do not concern the client (it has no limit); and with one of its own that it never
reaches. In turns, so that the machine's moods hit all three; medians of the node's CPU time for a request.

`--check`: exit 1 where quotas cost more than `MOST_US` microseconds a request.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from bench import load
from bench.peers import Cpu, Peer, firn
from service.client.blocking_client import BlockingClient
from service.wire.api import ApiKey, request_module

MOST_US: Final = 2.0
WITHOUT, OTHERS, OWN = "no quotas", "quotas of others", "a quota of its own"
AT_A_TIME: Final = 1000
HUGE: Final = 1e9


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.quotas", description=__doc__)
    parser.add_argument("--entities", type=int, default=100_000, help="users and clients with a quota")
    parser.add_argument("--requests", type=int, default=50_000, help="requests a round")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of which medians are taken")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    took: dict[str, list[float]] = {WITHOUT: [], OTHERS: [], OWN: []}
    with tempfile.TemporaryDirectory(prefix="firn-bench-") as name, firn(Path(name)) as peer:
        load.create(peer.bootstrap, "t")
        load.produce_single_records(peer.bootstrap, "t", arguments.requests)
        for _ in range(arguments.rounds):
            _set(peer, _others(arguments.entities), remove=True)
            took[WITHOUT].append(_us_of_a_request(peer, arguments.requests))
            _set(peer, _others(arguments.entities))
            took[OTHERS].append(_us_of_a_request(peer, arguments.requests))
            _set(peer, [("user", "ANONYMOUS")])
            took[OWN].append(_us_of_a_request(peer, arguments.requests))
            _set(peer, [("user", "ANONYMOUS")], remove=True)
    medians = {what: statistics.median(values) for what, values in took.items()}
    for what, median in medians.items():
        more = median - medians[WITHOUT]
        print(f"{what:20} {median:7.2f} µs of CPU a request   {more:+6.2f} µs")
    return int(arguments.check and max(medians.values()) - medians[WITHOUT] > MOST_US)


def _others(count: int) -> list[tuple[str, str]]:
    return [("user" if n % 2 else "client-id", f"somebody-{n}") for n in range(count)]


def _set(peer: Peer, entities: list[tuple[str, str]], remove: bool = False) -> None:
    module = request_module(ApiKey.ALTER_CLIENT_QUOTAS)
    keys = ("producer_byte_rate", "request_percentage")
    ops = tuple(module.OpData(key=key, value=HUGE, remove=remove) for key in keys)
    host, _, port = peer.bootstrap.rpartition(":")
    with BlockingClient(host, int(port), "bench", timeout_s=60) as client:
        for at in range(0, len(entities), AT_A_TIME):
            entries: list[Any] = [
                module.EntryData(entity=(module.EntityData(entity_type=kind, entity_name=name),), ops=ops)
                for kind, name in entities[at : at + AT_A_TIME]
            ]
            message = module.AlterClientQuotasRequest(entries=tuple(entries), validate_only=False)
            answer = client.request(ApiKey.ALTER_CLIENT_QUOTAS, message)
            assert not any(one.error_code for one in answer.entries), answer.entries[0]


def _us_of_a_request(peer: Peer, requests: int) -> float:
    with Cpu(peer.pid) as cpu:
        load.produce_single_records(peer.bootstrap, "t", requests)
    return cpu.all / requests * 1e6


if __name__ == "__main__":
    sys.exit(main())
