"""`python -m bench.rights [--entries N] [--requests N] [--rounds N] [--check]`: cost of ACLs.

A node without an authorizer, and one whose ACLs have so many entries, three of which let the client in. Each
has single-record requests of acks=1 and fetches of one record, a hundred under way on one connection. Both
start anew for each round, in turns, as two processes of one program differ by several percent; medians of the
node's CPU time for a request. A connection asks each right once and remembers the answer.

`--check`: exit 1 where a request costs more than 1 / `LEAST` of what it costs without.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from bench import load
from bench.peers import Cpu, FirnPeer, firn
from service.client.blocking_client import BlockingClient
from service.wire.api import ApiKey, request_module
from tests.support.wire import RawConnection, schema

LEAST: Final = 0.97
AT_A_TIME: Final = 1000
AUTHORIZER: Final = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
TOPIC, LITERAL, PREFIXED, ALLOW = 2, 3, 4, 3
READ, WRITE, DESCRIBE = 3, 4, 8
BOTH: Final = (False, True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.rights", description=__doc__)
    parser.add_argument("--entries", type=int, default=10_000, help="ACL entries of one node")
    parser.add_argument("--requests", type=int, default=50_000, help="requests of each kind in a round")
    parser.add_argument("--rounds", type=int, default=7, help="rounds of which medians are taken")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    works: dict[str, Callable[[str, str, int], None]] = {
        "produce": load.produce_single_records, "fetch": fetch_single_records,
    }  # fmt: skip
    took: dict[tuple[str, bool], list[float]] = {
        (what, closed): [] for what in works for closed in (False, True)
    }
    for number in range(arguments.rounds):
        for closed in reversed(BOTH) if number % 2 else BOTH:
            with tempfile.TemporaryDirectory(prefix="firn-bench-") as name, _node(Path(name), closed) as peer:
                load.create(peer.bootstrap, "t")
                if closed:
                    _give(peer, _entries(arguments.entries))
                load.produce_single_records(peer.bootstrap, "t", arguments.requests)
                for what, work in works.items():
                    took[what, closed].append(_us_of_a_request(peer, work, arguments.requests))
    shares = []
    for what in works:
        without, secured = (statistics.median(took[what, closed]) for closed in BOTH)
        shares.append(without / secured)
        print(
            f"{what:8} {without:6.2f} µs of CPU a request without, {secured:6.2f} with:"
            f" {without / secured:.3f} of the rate"
        )
    return int(arguments.check and min(shares) < LEAST)


def _node(folder: Path, closed: bool) -> contextlib.AbstractContextManager[FirnPeer]:
    return firn(folder / "node", None, **(AUTHORIZER if closed else {}))


def fetch_single_records(bootstrap: str, topic: str, count: int) -> None:
    """`count` fetches of the first record, a hundred under way on one connection."""
    module = schema(1, 12)
    part = module.FetchPartition(
        partition=0, fetch_offset=0, partition_max_bytes=1, current_leader_epoch=-1,
        log_start_offset=-1, last_fetched_epoch=-1,
    )  # fmt: skip
    request = module.FetchRequest(
        replica_id=-1, max_wait=timedelta(0), min_bytes=1, max_bytes=1, isolation_level=0, session_id=0,
        session_epoch=-1, forgotten_topics_data=(), rack_id="",
        topics=(module.FetchTopic(topic=topic, partitions=(part,)),),
    )  # fmt: skip
    frame = load.framed(request)
    with RawConnection(bootstrap) as connection:
        for _ in range(100):
            connection.send(frame)
        for number in range(count):
            assert len(connection.receive_frame()) > 100, "no record came"
            if number + 100 < count:
                connection.send(frame)


def _entries(count: int) -> list[tuple[str, int, str, int]]:
    """Return name, pattern, principal, operation of each: half literal, half prefixed, of other topics."""
    others = [
        (f"topic-{n}", LITERAL if n % 2 else PREFIXED, f"User:somebody-{n % 100}", READ)
        for n in range(count - 3)
    ]
    return [*others, *(("t", LITERAL, "User:ANONYMOUS", operation) for operation in (READ, WRITE, DESCRIBE))]


def _give(peer: FirnPeer, entries: list[tuple[str, int, str, int]]) -> None:
    module = request_module(ApiKey.CREATE_ACLS)
    host, _, port = peer.bootstrap.rpartition(":")
    with BlockingClient(host, int(port), "bench", timeout_s=60) as client:
        for at in range(0, len(entries), AT_A_TIME):
            creations: list[Any] = [
                module.AclCreation(
                    resource_type=TOPIC, resource_name=name, resource_pattern_type=pattern,
                    principal=principal, host="*", operation=operation, permission_type=ALLOW,
                )
                for name, pattern, principal, operation in entries[at : at + AT_A_TIME]
            ]  # fmt: skip
            answer = client.request(ApiKey.CREATE_ACLS, module.CreateAclsRequest(creations=tuple(creations)))
            assert not any(one.error_code for one in answer.results), answer.results[0]


def _us_of_a_request(peer: FirnPeer, work: Callable[[str, str, int], None], requests: int) -> float:
    with Cpu(peer.pid) as cpu:
        work(peer.bootstrap, "t", requests)
    return cpu.all / requests * 1e6


if __name__ == "__main__":
    sys.exit(main())
