"""`python -m bench.crowd [--only ROW …] [--crowds 1 10 100]`: N clients that ask for as much as they may.

The matrix has a row for each API of a broker's listener, with a request of the most elements that its schema
allows within `ELEMENTS`, and rows for what no single request shows: requests sent ahead, wide fetches and
produces, long polls that one append wakes, large frames, tagged fields, requests whose client leaves at once,
and connections that end in the same moment. Each is done by 1, 10 and 100 clients to a node with 1,000
partitions and 50 group coordinators, which may have 1 GiB more memory than it has (RLIMIT_AS). Beside them an
innocent client (`bench.innocent`) makes 100 requests a second.

Columns: the longest turn of the loop in CPU time of its thread, so that a busy machine does not matter; p50,
p99 and the worst of the innocent client's waits; the same of an idle node in the row `idle`; RSS before, at
most, and after the clients have gone; how many requests were answered; whether the node lives. `--check`
fails where a turn took more than 20 ms, RSS stayed 50 MiB above what it was, or the node ended.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import selectors
import socket
import struct
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from bench import load
from bench.innocent import Felt, Innocent
from bench.stage import create_topics, produce_to_all
from service.serving.api_table import BROKER_APIS
from service.wire.api import APIS, ApiKey, encode_request, request_module
from service.wire.primitives import write_uvarint
from tests.support.batches import batch
from tests.support.many import most_elements
from tests.support.processes import Node, free_port
from tests.support.wire import RawConnection, connect_all, produce, schema
from tests.support.wire import encode_request as encode

TOPIC, WIDE, ALONE = "innocent", "wide", "alone"
PARTITIONS = 1000
ELEMENTS = 50_000
ACT_S = 6.0
"""So long the clients go on, and wait for answers."""
QUIET_S = 60.0
"""So long the node may take to let go of what they asked for."""
QUIET_CPU_S = 0.05
"""What a node that does nothing takes of a second at most; one at work gets little more where others are."""
MORE_MEMORY = 1 << 30
WORST_TURN_S, MORE_RSS_MIB = 0.020, 50
_WITHOUT_ROW = {ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.API_VERSIONS}
"""APIs that rows of their own ask."""


class Crowd:
    """Clients of one process: each sends what it has and reads what comes."""

    def __init__(self, bootstrap: str, count: int) -> None:
        self.sockets = connect_all(bootstrap, count)
        self.received = 0
        self._selector = selectors.DefaultSelector()
        self._unsent: dict[socket.socket, memoryview] = {}

    def close(self) -> None:
        self._selector.close()
        for one in self.sockets:
            one.close()

    def send(self, frames: Callable[[int], bytes]) -> None:
        """Client n sends `frames(n)`, once its socket takes it."""
        for n, one in enumerate(self.sockets):
            self._unsent[one] = memoryview(frames(n))
            self._selector.register(one, selectors.EVENT_READ | selectors.EVENT_WRITE)

    def go_on(self, seconds: float, *, again: bytes = b"", until: int = 1 << 60, reads: bool = True) -> None:
        """Run for `seconds`, or until `until` bytes came. Connections that have sent all repeat `again`."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and self.received < until and self._selector.get_map():
            for key, events in self._selector.select(min(left, 0.1)):
                one: Any = key.fileobj
                try:
                    if events & selectors.EVENT_WRITE:
                        self._write(one, again, reads)
                    if events & selectors.EVENT_READ:
                        self._read(one)
                except BlockingIOError:
                    pass
                except OSError:
                    self._selector.unregister(one)

    def _write(self, one: socket.socket, again: bytes, reads: bool) -> None:
        rest = self._unsent[one]
        rest = rest[one.send(rest) :]
        if not rest and again:
            rest = memoryview(again)
        self._unsent[one] = rest
        if not rest:
            if reads:
                self._selector.modify(one, selectors.EVENT_READ)
            else:
                self._selector.unregister(one)

    def _read(self, one: socket.socket) -> None:
        data = one.recv(1 << 20)
        if not data:
            raise ConnectionError
        self.received += len(data)


class Play(NamedTuple):
    """Node and number of clients of a row."""

    node: Node
    clients: int

    @contextlib.contextmanager
    def crowd(self, times: int = 1) -> Iterator[Crowd]:
        crowd = Crowd(self.node.bootstrap, self.clients * times)
        try:
            yield crowd
        finally:
            crowd.close()


Act = Callable[[Play], str]


class Row(NamedTuple):
    """One kind of request, and what the node needs to be told for it."""

    act: Act
    settings: Mapping[str, str] = {}


def _framed(key: ApiKey, version: int, message: Any) -> bytes:
    return encode_request(key, version, 7, "crowd", message)


def _asked(frame: Callable[[], bytes], seconds: float = ACT_S) -> Act:
    """Every client sends one request and reads its answer."""

    def act(play: Play) -> str:
        request = frame()
        with play.crowd() as crowd:
            crowd.send(lambda _: request)
            crowd.go_on(seconds)
            return f"{len(request) >> 10} KiB each, {crowd.received >> 10} KiB answered"

    return act


def _of_api(key: ApiKey) -> Row:
    def frame() -> bytes:
        module, api = request_module(key), APIS[key]
        name = next(
            one
            for one in dir(module)
            if one.endswith("Request") and one.replace("Request", "").upper() == key.name.replace("_", "")
        )
        return _framed(key, api.max_version, most_elements(getattr(module, name), ELEMENTS))

    return Row(_asked(frame))


def _sent_and_left(play: Play) -> str:
    request = _list_offsets()
    with play.crowd() as crowd:
        crowd.send(lambda _: request)
        crowd.go_on(3.0, reads=False)
    return f"{len(request) >> 10} KiB each, nobody stayed"


def _list_offsets(count: int = 100_000) -> bytes:
    module = request_module(ApiKey.LIST_OFFSETS)
    some = tuple(
        module.ListOffsetsPartition(partition_index=n, current_leader_epoch=-1, timestamp=-1)
        for n in range(count)
    )
    return _framed(
        ApiKey.LIST_OFFSETS, APIS[ApiKey.LIST_OFFSETS].max_version,
        module.ListOffsetsRequest(
            replica_id=-1, isolation_level=0, timeout=timedelta(0),
            topics=(module.ListOffsetsTopic(name=WIDE, partitions=some),),
        ),
    )  # fmt: skip


def _tagged() -> bytes:
    """ListOffsets v6 of which each partition has 64 tagged fields that nobody knows."""
    out = bytearray(
        struct.pack(">hhi", ApiKey.LIST_OFFSETS, 6, 7) + b"\x00\x05crowd\x00" + struct.pack(">ib", -1, 0)
    )
    write_uvarint(out, 2)
    write_uvarint(out, len(WIDE) + 1)
    count = 3_900
    out += WIDE.encode()
    write_uvarint(out, count + 1)
    tags = bytearray([64])
    for tag in range(64):
        tags += bytes([tag + 30, 0])
    for n in range(count):
        out += struct.pack(">iiq", n, -1, -1) + tags
    out += b"\x00\x00"
    return struct.pack(">i", len(out)) + bytes(out)


def _sent_ahead(play: Play) -> str:
    small = struct.pack(">hhih", ApiKey.API_VERSIONS, 0, 7, -1)
    some = (struct.pack(">i", len(small)) + small) * 500
    with play.crowd(times=2) as crowd:
        crowd.send(lambda _: some)
        crowd.go_on(ACT_S, again=some)
        return f"{crowd.received >> 10} KiB answered"


def _fetch(topic: str, partitions: int, wait_ms: int, least: int, begin: int = 0) -> bytes:
    module = schema(1, 11)
    parts = tuple(
        module.FetchPartition(
            partition=n,
            fetch_offset=begin,
            partition_max_bytes=1 << 20,
            current_leader_epoch=-1,
            log_start_offset=-1,
        )
        for n in range(partitions)
    )
    body = encode(
        module.FetchRequest(
            replica_id=-1, max_wait=timedelta(milliseconds=wait_ms), min_bytes=least, max_bytes=50 << 20,
            isolation_level=0, session_id=0, session_epoch=-1, forgotten_topics_data=(), rack_id="",
            topics=(module.FetchTopic(topic=topic, partitions=parts),),
        )
    )  # fmt: skip
    return struct.pack(">i", len(body)) + body


def _wide_fetch(play: Play) -> str:
    request = _fetch(WIDE, PARTITIONS, 0, 1)
    with play.crowd() as crowd:
        crowd.send(lambda _: request * 3)
        crowd.go_on(ACT_S)
        return f"{PARTITIONS} partitions each, three times, {crowd.received >> 10} KiB answered"


def _produce(partitions: Sequence[int], records: bytes) -> bytes:
    body = encode(produce_to_all(WIDE, partitions, records))
    return struct.pack(">i", len(body)) + body


def _wide_produce(play: Play) -> str:
    request = _produce(range(PARTITIONS), batch([bytes(200)]))
    with play.crowd() as crowd:
        crowd.send(lambda _: request * 3)
        crowd.go_on(ACT_S)
        return f"{PARTITIONS} partitions each, three times, {crowd.received >> 10} KiB answered"


def _polls(play: Play) -> str:
    """40 long polls each at the end of one partition, and one append."""
    with RawConnection(play.node.bootstrap, 60) as connection:
        end = produce(connection, ALONE, 0, batch([bytes(100)])).base_offset + 1
        request = _fetch(ALONE, 1, 30_000, 1, end)
        with play.crowd(times=40) as crowd:
            crowd.send(lambda _: request)
            crowd.go_on(2.0)
            before, crowd.received = crowd.received, 0
            began = time.monotonic()
            produce(connection, ALONE, 0, batch([bytes(100)]))
            took = time.monotonic() - began
            crowd.go_on(ACT_S, until=200 * len(crowd.sockets))
            return (
                f"{len(crowd.sockets)} polls, the append took {1000 * took:.0f} ms, {before} bytes too early"
            )


def _large_frames(play: Play) -> str:
    request = _produce([0], batch([bytes(16 << 20)]))
    with play.crowd() as crowd:
        crowd.send(lambda _: request)
        crowd.go_on(ACT_S)
        return f"{len(request) >> 20} MiB each, {crowd.received} bytes answered"


def _closings(play: Play) -> str:
    """80 connections each that send three bytes of a request and no more: their time is up at once."""
    with play.crowd(times=80) as crowd:
        crowd.send(lambda _: b"\0\0\1")
        crowd.go_on(7.0)
        return f"{len(crowd.sockets)} connections, {len(crowd._selector.get_map())} still open"


def _idle(play: Play) -> str:
    time.sleep(ACT_S)
    return ""


ROWS: dict[str, Row] = {
    "idle": Row(_idle),
    "sent ahead": Row(_sent_ahead),
    "wide fetch": Row(_wide_fetch),
    "wide produce": Row(_wide_produce),
    "waits": Row(_polls),
    "large frames": Row(_large_frames),
    "tagged fields": Row(_asked(_tagged)),
    "long requests": Row(_asked(_list_offsets)),
    "sent and left": Row(_sent_and_left),
    "closings": Row(_closings, {"firn.request.read.timeout.ms": "3000"}),
    "fetch": Row(_asked(lambda: _fetch(WIDE, ELEMENTS, 500, 1))),
} | {ApiKey(key).name.lower(): _of_api(ApiKey(key)) for key in BROKER_APIS if key not in _WITHOUT_ROW}


class Result(NamedTuple):
    """Effect of one crowd on the node and on the innocent client."""

    turn_s: float
    who: str
    felt: Felt
    before_mib: int
    most_mib: int
    after_mib: int
    note: str
    is_alive: bool


def _rss_mib(node: Node) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{node.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) >> 10
    return 0


def _cpu_s(node: Node) -> float:
    fields = Path(f"/proc/{node.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


class _Watch:
    """Watch over one running node's turns and memory."""

    def __init__(self, node: Node, http: str) -> None:
        self._node, self._http = node, http

    def worst_turn(self, seconds: float) -> tuple[float, str]:
        try:
            with urllib.request.urlopen(self._http + "/turns", timeout=60) as answer:
                told = json.load(answer)
        except OSError:
            return 0.0, "nobody answered"
        turns = [one for one in told["longest"] + told["latest"] if one["ended_s_ago"] <= seconds]
        return max(((one["cpu_ms"] / 1000, one["who"]) for one in turns), default=(0.0, ""))

    def wait_until_quiet(self) -> None:
        """Wait until the node is idle, also after its periodic checks of memory and garbage."""
        end = time.monotonic() + QUIET_S
        quiet = 0
        while quiet < 3 and time.monotonic() < end and self._node.running:
            before = _cpu_s(self._node)
            time.sleep(1.0)
            with contextlib.suppress(OSError):
                quiet = quiet + 1 if _cpu_s(self._node) - before < QUIET_CPU_S else 0


def _play(row: str, count: int, node: Node, http: str) -> Result:
    watch = _Watch(node, http)
    before_mib = _rss_mib(node)
    began = time.monotonic()
    most_mib = [before_mib]
    note, felt = "", Felt(0, 0, 0, 0, 0, 0)
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.1):
            most_mib[0] = max(most_mib[0], _rss_mib(node))

    looker = threading.Thread(target=look)
    looker.start()
    try:
        with Innocent(node.bootstrap, TOPIC, 100) as innocent:
            time.sleep(0.5)
            innocent.begin()
            note = ROWS[row].act(Play(node, count))
            felt = innocent.end()
    except Exception as e:
        note = f"{type(e).__name__}: {e}"[:100]
    turn_s, who = watch.worst_turn(time.monotonic() - began)
    watch.wait_until_quiet()
    after_s, after_who = watch.worst_turn(time.monotonic() - began)
    ended.set()
    looker.join()
    turn_s, who = max((turn_s, who), (after_s, after_who))
    return Result(turn_s, who, felt, before_mib, most_mib[0], _rss_mib(node), note, node.running)


@contextlib.contextmanager
def _node(folder: Path, row: str) -> Iterator[tuple[Node, str]]:
    http = f"127.0.0.1:{free_port()}"
    settings = {
        "firn.http.listener": http,
        "offsets.topic.num.partitions": "50",
        "auto.create.topics.enable": "false",
        "delete.topic.enable": "false",
    }
    node = Node(folder, {**settings, **ROWS[row].settings})
    node.start(180)
    try:
        with RawConnection(node.bootstrap, 600) as connection:
            connection.call(create_topics([TOPIC, ALONE], 1, {"retention_ms": "-1"}))
            connection.call(create_topics([WIDE], PARTITIONS, {"retention_ms": "-1"}))
            connection.send(_produce(range(PARTITIONS), batch([bytes(200)])))
            connection.receive_frame()
            find = request_module(ApiKey.FIND_COORDINATOR).FindCoordinatorRequest(
                key_type=0, coordinator_keys=("crowd",)
            )
            connection.send(_framed(ApiKey.FIND_COORDINATOR, 4, find))
            connection.receive_frame()
        load.produce_single_records(node.bootstrap, ALONE, 5_000)
        time.sleep(3.0)
        _limit_memory(node)
        yield node, f"http://{http}"
    finally:
        node.close()


def _limit_memory(node: Node) -> None:
    for line in Path(f"/proc/{node.pid}/status").read_text().splitlines():
        if line.startswith("VmSize:"):
            most = (int(line.split()[1]) << 10) + MORE_MEMORY
            resource.prlimit(node.pid, resource.RLIMIT_AS, (most, most))


def _line(row: str, count: int, result: Result) -> str:
    felt = "".join(f"{1000 * one:>8.1f}" for one in (result.felt.p50, result.felt.p99, result.felt.worst))
    turn = f"{1000 * result.turn_s:>8.0f}" if result.turn_s else f"{'<10':>8}"
    rss = f"{result.before_mib:>7}{result.most_mib:>7}{result.after_mib:>7}"
    return f"{row:<28}{count:>4}{turn}{felt}{rss}  {'' if result.is_alive else 'ENDED '}{result.note}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.crowd", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="ROW", choices=ROWS, help=f"of {', '.join(ROWS)}")
    parser.add_argument("--crowds", nargs="+", type=int, default=[1, 10, 100], metavar="N")
    parser.add_argument("--check", action="store_true", help="fail where a bound is broken")
    arguments = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    titles = "".join(f"{one:>8}" for one in ("turn", "p50", "p99", "worst"))
    print(f"{'milliseconds, MiB':<28}{'N':>4}{titles}{'before':>7}{'most':>7}{'after':>7}", flush=True)
    broken = False
    with tempfile.TemporaryDirectory(prefix="firn-crowd-") as name:
        for row in arguments.only or ROWS:
            with contextlib.ExitStack() as stack:
                node: Node | None = None
                for count in arguments.crowds if row != "idle" else [1]:
                    if node is None or not node.running:
                        folder = Path(name) / f"{row}-{count}".replace(" ", "-")
                        node, http = stack.enter_context(_node(folder, row))
                    result = _play(row, count, node, http)
                    print(_line(row, count, result), flush=True)
                    if result.turn_s > WORST_TURN_S:
                        print(f"    held by {result.who[:200]}", flush=True)
                    is_larger = result.after_mib > result.before_mib + MORE_RSS_MIB
                    broken = broken or result.turn_s > WORST_TURN_S or is_larger or not result.is_alive
    return 1 if broken and arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
