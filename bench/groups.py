"""Consumer groups: `python -m bench.groups [commits] [positions] [settle] [assignors] [compaction] [--kafka]`

- commits: commits of 10 partitions over 50 connections, one under way on each; `--kafka` beside Apache Kafka.
- positions: 100,000 groups with 10 positions each: memory, then `kill -9` and a start that reads a million
  records, while an innocent client produces to and fetches from another topic.
- settle: 500 members and 1,000 partitions: joins until everybody has its share, then their heartbeats alone;
  classic and KIP-848.
- assignors: 1,000 members and 10,000 partitions, and the longest step of each assignor.
- compaction: how large `__consumer_offsets` becomes under steady commits.
"""

from __future__ import annotations

import argparse
import selectors
import socket
import struct
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from bench import load
from bench.assigning import assignors
from bench.figures import FIRN, KAFKA, Figures, add_json_option, write_asked
from bench.innocent import Innocent
from bench.measures import Measured
from bench.parts import parts_of
from bench.peers import Cpu, Peer, check_kafka, firn, kafka
from bench.settling import longest_turn, settle
from tests.support.clients import Admin
from tests.support.processes import Node, free_port, wait_until
from tests.support.wire import RawConnection, connect_all, decode_response, schema

NAMES = ("commits", "positions", "settle", "assignors", "compaction")
CONNECTIONS = 50
WARM_COMMITS = 100_000
POSITIONS = 10
TOPIC = "committed"
RATE, CPU = "commits of 10 partitions", "CPU of one, user and system"
OFFSETS = "__consumer_offsets"
_COMMIT, _FETCH, _FIND = 8, 9, 10
_COMMIT_VERSION = 9


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.groups", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; default: all")
    parser.add_argument("--kafka", action="store_true", help="commits to Apache Kafka beside it")
    parser.add_argument("--rounds", type=int, default=3, help="of commits (default: 3)")
    parser.add_argument("--commits", type=int, default=100_000, help="of a round (default: 100000)")
    parser.add_argument("--groups", type=int, default=100_000, help="with positions (default: 100000)")
    parser.add_argument("--members", type=int, default=500, help="that settle (default: 500)")
    add_json_option(parser)
    arguments = parser.parse_args()
    names = parts_of(parser, arguments.names, NAMES)
    figures = Figures()
    check_kafka(parser, arguments)
    with tempfile.TemporaryDirectory(prefix="firn-groups-") as name:
        folder = Path(name)
        if "commits" in names:
            _commits(folder, arguments, figures)
        if "positions" in names:
            figures.tell(FIRN, positions(folder / "positions", arguments.groups))
        if "settle" in names:
            for protocol in ("classic", "consumer"):
                figures.tell(FIRN, settle(folder / protocol, protocol, arguments.members))
        if "assignors" in names:
            figures.tell(FIRN, assignors())
        if "compaction" in names:
            figures.tell(FIRN, compaction(folder / "compaction"))
    write_asked(arguments, figures)
    return 0


# Commits, beside Apache Kafka's.


def _commits(folder: Path, arguments: argparse.Namespace, figures: Figures) -> None:
    with firn(folder / "firn") as ours:
        if not arguments.kafka:
            _rounds([ours], arguments, figures)
            return
        with kafka(folder / "kafka") as theirs:
            _rounds([ours, theirs], arguments, figures)


def _rounds(peers: Sequence[Peer], arguments: argparse.Namespace, figures: Figures) -> None:
    for peer in peers:
        prepare(peer.bootstrap, [f"group-{number}" for number in range(CONNECTIONS)])
        commit(peer.bootstrap, WARM_COMMITS)
    for number in range(arguments.rounds):
        for peer in peers[:: 1 if number % 2 == 0 else -1]:
            with Cpu(peer.pid) as cpu:
                commit(peer.bootstrap, arguments.commits)
            figures.tell(
                peer.name,
                [
                    Measured(RATE, "1/s", None, arguments.commits / cpu.wall),
                    Measured(CPU, "µs", None, cpu.all / arguments.commits * 1e6),
                ],
            )
    if len(peers) == 2:
        ours, theirs = (figures.median(RATE, side) for side in (FIRN, KAFKA))
        cpu_ours, cpu_theirs = (figures.median(CPU, side) for side in (FIRN, KAFKA))
        found = [
            Measured("Apache Kafka's rate, by ours (medians)", "x", 1 / 0.7, theirs / ours),
            Measured("CPU beside Apache Kafka's (medians)", "x", 1.5, cpu_ours / cpu_theirs),
        ]
        figures.tell(FIRN, found)


def prepare(bootstrap: str, groups: Iterable[str]) -> None:
    """A topic to commit about, and coordinators that answer."""
    Admin(bootstrap).create(TOPIC, POSITIONS)
    with RawConnection(bootstrap) as connection:
        wait_until(
            "coordinators of all groups", lambda: all(has_coordinator(connection, one) for one in groups), 60
        )


def has_coordinator(connection: RawConnection, group: str) -> bool:
    """Return whether the group's coordinator answers OffsetFetch."""
    find = schema(_FIND, 4).FindCoordinatorRequest(key_type=0, coordinator_keys=(group,))
    if connection.call(find).coordinators[0].error_code:
        return False
    module = schema(_FETCH, 8)
    topic = module.OffsetFetchRequestTopics(name=TOPIC, partition_indexes=(0,))
    asked = module.OffsetFetchRequestGroup(group_id=group, topics=(topic,))
    request = module.OffsetFetchRequest(groups=(asked,), require_stable=False)
    return bool(connection.call(request).groups[0].error_code == 0)


def commit_request(group: str, offset: int = 1_234_567) -> Any:
    """OffsetCommit of a simple group."""
    module = schema(_COMMIT, _COMMIT_VERSION)
    partitions = tuple(
        module.OffsetCommitRequestPartition(
            partition_index=index,
            committed_offset=offset + index,
            committed_leader_epoch=0,
            committed_metadata="",
        )
        for index in range(POSITIONS)
    )
    topic = module.OffsetCommitRequestTopic(name=TOPIC, partitions=partitions)
    return module.OffsetCommitRequest(group_id=group, member_id="", topics=(topic,))


def commit(bootstrap: str, count: int) -> None:
    """`count` commits, each connection those of its own group, one under way on each."""
    frames = [load.framed(commit_request(f"group-{number}")) for number in range(CONNECTIONS)]
    commit_frames(bootstrap, count, lambda connection, _: frames[connection])


def commit_frames(bootstrap: str, count: int, frame: Callable[[int, int], bytes]) -> None:
    """`frame(connection, number)` is what is sent."""
    request = commit_request("group-0")
    sockets = connect_all(bootstrap, CONNECTIONS)
    sent = 0
    with selectors.EpollSelector() as selector:
        for number, one in enumerate(sockets):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            selector.register(one, selectors.EVENT_READ, number)
            one.sendall(frame(number, sent))
            sent += 1
        answered, good = 0, b""
        while answered < count:
            for key, _ in selector.select(30):
                one = sockets[key.data]
                answer = one.recv(4096)
                assert struct.unpack_from(">i", answer)[0] == len(answer) - 4, "an answer in pieces"
                if answer != good:
                    told = decode_response(request, answer[4:]).topics
                    assert [p.error_code for topic in told for p in topic.partitions] == [0] * POSITIONS, told
                    good = answer
                answered += 1
                if sent < count:
                    one.sendall(frame(key.data, sent))
                    sent += 1
    for one in sockets:
        one.close()


# Many positions: memory, and reading them again.


def positions(folder: Path, groups: int) -> list[Measured]:
    """A node full of positions, which is killed and started."""
    http = f"127.0.0.1:{free_port()}"
    node = Node(folder, {"firn.http.listener": http})
    try:
        node.start()
        prepare(node.bootstrap, [f"group-{number}" for number in range(200)])
        load.create(node.bootstrap, "innocent")
        before = node.rss_bytes()
        template = load.framed(commit_request(f"group-{0:08}"))
        at = template.index(b"group-00000000") + len("group-")

        def of_group(_: int, number: int) -> bytes:
            return template[:at] + b"%08d" % number + template[at + 8 :]

        commit_frames(node.bootstrap, groups, of_group)
        bytes_each = (node.rss_bytes() - before) / (groups * POSITIONS)
        quiet = _felt(node, lambda: time.sleep(10))
        node.kill()
        started = time.monotonic()
        node.start(120)
        ready_s = time.monotonic() - started
        loading = _felt(node, lambda: _wait_for_all(node, groups))
        loaded_s = time.monotonic() - started
        records = f"{groups * POSITIONS:,} records"
        return [
            Measured(f"memory of a position, {groups:,} groups of {POSITIONS}", "bytes", 250, bytes_each),
            Measured(f"{records}: killed, started until ready", "s", None, ready_s),
            Measured(f"{records}: ready until all are read", "s", 10, loaded_s - ready_s),
            Measured("p99 of an innocent client beside that", "ms", None, loading * 1e3),
            Measured("p99 of it at other times", "ms", None, quiet * 1e3),
            Measured("rise of its p99", "ms", 5, (loading - quiet) * 1e3),
            Measured("resident memory after the load", "MB", None, node.rss_bytes() / 1e6),
            longest_turn(http, "since that start"),
        ]
    finally:
        node.close()


def _felt(node: Node, work: Callable[[], object]) -> float:
    with Innocent(node.bootstrap, "innocent") as innocent:
        innocent.begin()
        work()
        return innocent.end().p99


def _wait_for_all(node: Node, groups: int) -> None:
    """Wait until every partition of the offsets topic is loaded: each has some of the groups."""
    left = deque(f"group-{number:08}" for number in range(min(groups, 1000)))

    def are_read(connection: RawConnection) -> bool:
        while left and has_coordinator(connection, left[0]):
            left.popleft()
        return not left

    with RawConnection(node.bootstrap) as connection:
        wait_until("all positions to be read", lambda: are_read(connection), 120)


# The log under steady commits.


def compaction(folder: Path, seconds: float = 40, segment_bytes: int = 1 << 20) -> list[Measured]:
    """One partition, so that its cleaner has most to do; the same 500 positions over and over, 5,000 a
    second, so that there is a new segment every three seconds.
    """
    settings = {
        "offsets.topic.num.partitions": "1",
        "offsets.topic.segment.bytes": str(segment_bytes),
        "log.cleaner.backoff.ms": "500",
    }
    node = Node(folder, settings)
    try:
        node.start()
        prepare(node.bootstrap, ["group-0"])
        log, largest, rounds = node.data / f"{OFFSETS}-0", 0, int(seconds * 2)
        began = time.monotonic()
        for number in range(rounds):
            commit(node.bootstrap, 250)
            largest = max(largest, _log_bytes(log))
            time.sleep(max(began + (number + 1) / 2 - time.monotonic(), 0))
        return [
            Measured("offset records written to one partition", "1000", None, rounds * 250 * POSITIONS / 1e3),
            Measured("most that its log was, steady commits", "segments", 2, largest / segment_bytes),
        ]
    finally:
        node.close()


def _log_bytes(folder: Path) -> int:
    size = 0
    for path in folder.glob("*.log"):
        try:
            size += path.stat().st_size
        except FileNotFoundError:
            continue
    return size


if __name__ == "__main__":
    sys.exit(main())
