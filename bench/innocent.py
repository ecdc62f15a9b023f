"""An innocent client in a process of its own: `python -m bench.innocent HOST:PORT TOPIC [RATE]`.

RATE requests a second (1,000), by turns a produce of one small record on one connection and a fetch of the
newest record on another. It is an open loop: requests are sent when they are due, whether or not those
before them are answered, and time counts from when a request is due, so that waiting counts in full.

It says ``ready`` once it runs, and obeys lines on stdin: ``begin`` starts to measure and is answered, ``end``
prints what was measured since as one line of JSON once all of it is answered, the end of stdin ends it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, NamedTuple

from tests.support.batches import batch
from tests.support.processes import PYTHON, end
from tests.support.wire import RawConnection, encode_request, produce, produce_request, schema

RATE = 1000
PATIENCE_S = 90.0
_MARK = 0x0102030405060708


class Felt(NamedTuple):
    """Latencies of the client in one measured time, in seconds."""

    requests: int
    p50: float
    p99: float
    p999: float
    worst: float
    late: float
    """how late the client itself was at worst with sending: what the machine adds"""


def produce_error_at(topic: str) -> int:
    """Return the position of the error code in the response to a Produce of one partition."""
    # correlation id, no tags, one topic, its name, one partition, its index
    return 4 + 1 + 1 + 1 + len(topic) + 1 + 4


class Lane:
    """One connection: requests that are due go out, answers come in, in order."""

    def __init__(self, bootstrap: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), 30)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.due: deque[float] = deque()
        self.unsent = bytearray()
        self._received = bytearray()

    def ask(self, frame: bytes | bytearray, due: float) -> None:
        self.due.append(due)
        self.unsent += frame
        self.push()

    def push(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self.unsent:
                del self.unsent[: self.socket.send(self.unsent)]

    def answers(self) -> Iterator[tuple[float, bytes]]:
        """Yield the due time of each answered request, and its response."""
        piece = self.socket.recv(256 << 10)
        if not piece:
            raise ConnectionError("the node closed the client's connection")
        self._received += piece
        while len(self._received) >= 4:
            (size,) = struct.unpack_from(">i", self._received)
            if len(self._received) < 4 + size:
                return
            frame = bytes(self._received[4 : 4 + size])
            del self._received[: 4 + size]
            yield self.due.popleft(), frame


class _Client:
    """The loop of the innocent client."""

    def __init__(self, bootstrap: str, topic: str, rate: int) -> None:
        self._bootstrap, self._topic = bootstrap, topic
        self._every_s = 1 / rate
        self._latencies: list[float] = []
        self._from = self._until = float("inf")
        self._late = 0.0
        with RawConnection(bootstrap) as connection:
            answer = produce(connection, topic, 0, batch([bytes(100)]))
        assert answer.error_code == 0, answer
        self._newest = answer.base_offset
        self._produce = _framed(produce_request(topic, 0, batch([bytes(100)])))
        self._fetch = bytearray(_framed(_fetch_request(topic)))
        self._fetch_offset_at = self._fetch.index(struct.pack(">q", _MARK))
        self._produce_error_at = produce_error_at(topic)

    def run(self) -> None:
        produces, fetches = Lane(self._bootstrap), Lane(self._bootstrap)
        lanes = {produces.socket: produces, fetches.socket: fetches}
        due = time.monotonic()
        number = 0
        print("ready", flush=True)
        while True:
            while (now := time.monotonic()) >= due:
                self._late = max(self._late, now - due)
                if number % 2 == 0:
                    produces.ask(self._produce, due)
                else:
                    struct.pack_into(">q", self._fetch, self._fetch_offset_at, self._newest)
                    fetches.ask(self._fetch, due)
                number += 1
                due += self._every_s
            writing = [lane.socket for lane in lanes.values() if lane.unsent]
            ready, writable, _ = select.select([*lanes, sys.stdin], writing, [], due - now)
            for sock in writable:
                lanes[sock].push()
            if sys.stdin in ready and not self._obey(sys.stdin.readline()):
                return
            for sock, lane in lanes.items():
                for asked, frame in lane.answers() if sock in ready else ():
                    self._answered(asked, frame, lane is produces)
            self._report_when_answered(produces, fetches)

    def _answered(self, due: float, frame: bytes, produced: bool) -> None:
        if produced:
            error, offset = struct.unpack_from(">hq", frame, self._produce_error_at)
            if error:
                raise AssertionError(f"the innocent client's produce was refused: error {error}")
            self._newest = offset
        elif len(frame) < 150:
            raise AssertionError(f"the innocent client's fetch brought no record: {frame.hex()}")
        if self._from <= due <= self._until:
            self._latencies.append(time.monotonic() - due)

    def _obey(self, line: str) -> bool:
        word = line.strip()
        if word == "begin":
            self._from, self._until = time.monotonic(), float("inf")
            self._latencies, self._late = [], 0.0
            print("begun", flush=True)
        elif word == "end":
            self._until = time.monotonic()
        return bool(line)

    def _report_when_answered(self, *lanes: Lane) -> None:
        if self._until == float("inf"):
            return
        open_since = min((lane.due[0] for lane in lanes if lane.due), default=float("inf"))
        if open_since <= self._until and time.monotonic() - self._until < PATIENCE_S:
            return
        now = time.monotonic()
        unanswered = [now - due for lane in lanes for due in lane.due if due <= self._until]
        found = sorted(self._latencies + unanswered)
        p50, p99, p999 = (found[int(part * len(found))] for part in (0.5, 0.99, 0.999))
        felt = Felt(len(found), p50, p99, p999, found[-1], self._late)
        print(json.dumps(felt._asdict()), flush=True)
        self._from = self._until = float("inf")


def _framed(request: Any) -> bytes:
    body = encode_request(request, client_id="innocent")
    return struct.pack(">i", len(body)) + body


def _fetch_request(topic: str) -> Any:
    module = schema(1, 12)
    part = module.FetchPartition(
        partition=0, fetch_offset=_MARK, partition_max_bytes=1 << 10,
        current_leader_epoch=-1, log_start_offset=-1, last_fetched_epoch=-1,
    )  # fmt: skip
    return module.FetchRequest(
        replica_id=-1, max_wait=timedelta(0), min_bytes=1, max_bytes=1 << 10, isolation_level=0, session_id=0,
        session_epoch=-1, forgotten_topics_data=(), rack_id="",
        topics=(module.FetchTopic(topic=topic, partitions=(part,)),),
    )  # fmt: skip


class Innocent:
    """The innocent client, running in its process over a `with`."""

    def __init__(self, bootstrap: str, topic: str, rate: int = RATE) -> None:
        self._command = [str(PYTHON), "-m", "bench.innocent", bootstrap, topic, str(rate)]

    def __enter__(self) -> Innocent:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self._hear()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        end(self._process)
        self._process.stdout.close()

    def begin(self) -> None:
        """Measures from when this returns."""
        self._say("begin")
        self._hear()

    def end(self) -> Felt:
        """Stops measuring; waits for what is not answered yet."""
        self._say("end")
        return Felt(**json.loads(self._hear()))

    def _hear(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the innocent client ended with {self._process.wait()}")
        return line

    def _say(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(word + "\n")


def main() -> int:
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, -10)
    bootstrap, topic, *rate = sys.argv[1:]
    _Client(bootstrap, topic, int(rate[0]) if rate else RATE).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
