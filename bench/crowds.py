"""Rows as in `bench.nasty`: effects of many connections at once on all others."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from bench import load
from bench.stage import Act, Stage
from tests.support.processes import wait_until
from tests.support.tiers import EARLIEST_LOCAL, offset
from tests.support.wire import connect_all, encode_request, schema

CROWD = 1000
SLOW_S = 12
IMPATIENT = {
    "firn.request.read.timeout.ms": "4000",
    "firn.send.timeout.ms": "4000",
    "queued.max.request.bytes": str(16 << 20),
    "socket.request.max.bytes": str(4 << 20),
}
"""So little memory and patience that the node ends the slow ones while it is measured."""
SCANNERS = 4


def _connected(stage: Stage, receive_bytes: int | None = None) -> list[socket.socket]:
    return connect_all(stage.bootstrap, stage.of(CROWD), receive_bytes)


def _send(one: socket.socket, data: bytes) -> None:
    """Send as much of `data` as fits; the node may have closed the connection."""
    with contextlib.suppress(OSError):
        one.send(data)


def _open_at(stage: Stage) -> int:
    """Sockets that the node has open."""
    found = 0
    for fd in Path(f"/proc/{stage.node.pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            found += str(fd.readlink()).startswith("socket:")
    return found


@contextlib.contextmanager
def _crowd(stage: Stage, receive_bytes: int | None = None) -> Iterator[list[socket.socket]]:
    crowd = _connected(stage, receive_bytes)
    try:
        yield crowd
    finally:
        for one in crowd:
            one.close()


def _left(stage: Stage, before: int, count: int) -> str:
    return f"{max(_open_at(stage) - before, 0)} of {count} still open"


def a_byte_a_second(stage: Stage) -> Act:
    """The size of a large request, then byte by byte."""

    def act() -> str:
        before = _open_at(stage)
        with _crowd(stage) as crowd:
            for one in crowd:
                _send(one, struct.pack(">i", 1 << 20))
            for _ in range(SLOW_S):
                time.sleep(1)
                for one in crowd:
                    _send(one, b"\0")
            return _left(stage, before, len(crowd))

    return act


def in_mid_frame(stage: Stage) -> Act:
    """Much of a request that never ends."""
    piece = struct.pack(">i", 1 << 20) + bytes(60_000)

    def act() -> str:
        before = _open_at(stage)
        with _crowd(stage) as crowd:
            for one in crowd:
                _send(one, piece)
            time.sleep(SLOW_S)
            return _left(stage, before, len(crowd))

    return act


def never_reading(stage: Stage) -> Act:
    """A fetch of more than the kernel takes, and no look at the answer."""
    load.create(stage.bootstrap, "large")
    load.fill(stage.bootstrap, "large", 20)
    frame = _framed(_fetch("large", 0, 8 << 20))

    def act() -> str:
        before = _open_at(stage)
        with _crowd(stage, receive_bytes=4096) as crowd:
            for one in crowd:
                _send(one, frame)
            time.sleep(SLOW_S)
            return _left(stage, before, len(crowd))

    return act


def coming_and_going(stage: Stage) -> Act:
    """Connections that are made, ask for one thing, and go."""
    frame = _framed(schema(18, 3).ApiVersionsRequest(client_software_name="a", client_software_version="1"))

    def act() -> None:
        for _ in range(5):
            with _crowd(stage) as crowd:
                for one in crowd:
                    _send(one, frame)

    return act


def scanning(stage: Stage) -> Act:
    """Four clients read an archive from its beginning to its end, again and again."""
    config = {"remote_storage_enable": "true", "segment_bytes": str(16 << 20), "local_retention_bytes": "1"}
    node = stage.asked
    stage.create(["archived"], SCANNERS, node=node, **config)
    size = stage.of(100)
    found = [load.fill(node.bootstrap, "archived", size, partition) for partition in range(SCANNERS)]

    def border(partition: int) -> int:
        return offset(node.bootstrap, "archived", partition, EARLIEST_LOCAL)

    least = (found[0][1] * load.BATCH_RECORDS * 6) // 10
    for partition in range(SCANNERS):
        wait_until("offload", lambda one=partition: border(one) > least, 120, every=0.5)  # type: ignore[misc]
    node.restart()
    batches = [border(partition) // load.BATCH_RECORDS for partition in range(SCANNERS)]

    def act() -> str:
        until = time.monotonic() + 15
        read = [0] * SCANNERS

        def scan(partition: int) -> None:
            while time.monotonic() < until:
                size, _ = found[partition]
                read[partition] += load.fetch_all(
                    node.bootstrap, "archived", size, batches[partition], partition=partition
                )

        started = time.monotonic()
        threads = [threading.Thread(target=scan, args=(one,)) for one in range(SCANNERS)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        return f"{sum(read) / 1e6 / (time.monotonic() - started):.0f} MB/s"

    return act


def _fetch(topic: str, partition: int, size: int) -> Any:
    module = schema(1, 12)
    part = module.FetchPartition(
        partition=partition, fetch_offset=0, partition_max_bytes=size,
        current_leader_epoch=-1, log_start_offset=-1, last_fetched_epoch=-1,
    )  # fmt: skip
    return module.FetchRequest(
        replica_id=-1, max_wait=timedelta(0), min_bytes=1, max_bytes=size, isolation_level=0, session_id=0,
        session_epoch=-1, forgotten_topics_data=(), rack_id="",
        topics=(module.FetchTopic(topic=topic, partitions=(part,)),),
    )  # fmt: skip


def _framed(request: Any) -> bytes:
    body = encode_request(request)
    return struct.pack(">i", len(body)) + body
