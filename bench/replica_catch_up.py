"""Speed of a follower that catches up, beside that of loopback and of its disk.

`python -m bench.replica_catch_up [--megabytes N] [--batch BYTES]`: the follower's fetcher, over a channel,
with real logs; its leader is a process that answers out of real logs, as tests have it. Loopback is the same
process that sends as many bytes, a megabyte at a time; the disk takes them in a file that is then flushed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from service.base.clock import SystemClock
from service.base.threads import SystemThreads
from service.base.types import TopicIdPartition
from service.client.node_channel import Channel, ChannelOptions
from service.config.settings import LogConfig
from service.hot.log import LocalLog
from service.hot.log_io import LogIo
from service.partition.follower_log import LocalFollowerLog
from service.records.batch import stamp
from service.records.builder import BatchBuilder
from service.records.scan import scan_batches
from service.replication.fetcher import Fetcher, FetcherSettings
from tests.support.peers import Address, peer
from tests.support.processes import child, first_line
from tests.support.world import START_MS, make_world
from tests.unit.partition.following import NoFiles, Standing
from tests.unit.replication.fetching import BROKER_EPOCH, EPOCH, FOLLOWER, Bucket, LeaderNode, tip_of

PARTITIONS: Final = 10
_PIECE: Final = 1 << 20
_RECORD: Final = 1_000


def fill(directory: Path, tip: TopicIdPartition, size: int, batch_bytes: int) -> LocalLog:
    """A leader's log of about `size` bytes in batches of idempotent producers."""
    log = LocalLog.open(directory / f"{tip.topic}-0", tip, LogConfig(), world=make_world(SystemClock()))
    count = max(batch_bytes // _RECORD, 1)
    value = os.urandom(_RECORD - 12)
    builder = BatchBuilder(producer_id=7, producer_epoch=0, base_sequence=0)
    for _ in range(count):
        builder.add(START_MS, None, value)
    one = bytes(builder.build())
    run = bytearray(one * max(_PIECE // len(one), 1))
    view, offset = memoryview(run), 0
    while log.size < size:
        for position in range(0, len(run), len(one)):
            stamp(view, position, offset, EPOCH)
            offset += count
        log.appender.append_fetched(view, scan_batches(view))
    return log


async def lead(directory: Path, size: int, batch_bytes: int) -> None:
    """Be the leader: says its ports, and answers until it is ended."""
    tips = [tip_of(number) for number in range(PARTITIONS)]
    node = LeaderNode({tip: fill(directory, tip, size // PARTITIONS, batch_bytes) for tip in tips})
    for tip, log in node.logs.items():
        node.leaders[tip].end_offset = log.log_end_offset
    piece = bytes(_PIECE)

    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            for _ in range(size // _PIECE):
                writer.write(piece)
                await writer.drain()
            writer.close()

    async with peer(node.behave) as server:
        plain = await asyncio.start_server(pour, "127.0.0.1", 0)
        ends = " ".join(str(log.log_end_offset) for log in node.logs.values())
        print(server.address.port, plain.sockets[0].getsockname()[1], ends, flush=True)
        await asyncio.Event().wait()


def loopback(port: int) -> float:
    """Bytes a second."""
    buffer = bytearray(_PIECE)
    began, size = time.perf_counter(), 0
    with socket.create_connection(("127.0.0.1", port)) as connection:
        while count := connection.recv_into(buffer):
            size += count
    return size / (time.perf_counter() - began)


def disk(directory: Path, size: int) -> float:
    """Bytes a second."""
    piece = os.urandom(_PIECE)
    began = time.perf_counter()
    fd = os.open(directory / "plain", os.O_CREAT | os.O_WRONLY)
    for position in range(0, size, _PIECE):
        os.pwrite(fd, piece, position)
    os.fdatasync(fd)
    took = time.perf_counter() - began
    os.close(fd)
    os.unlink(directory / "plain")
    return size / took


class Follower:
    """Catches up with all partitions."""

    def __init__(self, directory: Path, port: int, ends: list[int]) -> None:
        self.ends = ends
        self.longest_s = 0.0
        self._leader = Channel(Address("127.0.0.1", port), ChannelOptions("replica"))
        self._fetcher = Fetcher(
            self._leader,
            FOLLOWER,
            lambda: BROKER_EPOCH,
            FetcherSettings(),
            SystemClock(),
            Bucket({}),
            print,
            on_caught_up=lambda *_: None,
        )
        files = NoFiles()
        files.io = LogIo(SystemThreads(), 2, "log-append")
        self.logs: list[LocalLog] = []
        for number in range(PARTITIONS):
            tip = tip_of(number)
            path = directory / "follower" / f"{tip.topic}-0"
            log = LocalLog.open(path, tip, LogConfig(), world=make_world(SystemClock()))
            self.logs.append(log)
            self._fetcher.assign(tip, LocalFollowerLog(Standing(log), files), EPOCH, is_clean=True)

    async def catch_up(self) -> tuple[float, float]:
        """(seconds, CPU seconds), all of it flushed."""
        began, cpu = time.perf_counter(), time.process_time()
        running = asyncio.create_task(self._fetcher.run())
        at = time.thread_time()
        while [log.log_end_offset for log in self.logs] != self.ends:
            await asyncio.sleep(0.001)
            now = time.thread_time()
            self.longest_s, at = max(self.longest_s, now - at), now
            if running.done():
                running.result()
        for log in self.logs:
            await asyncio.to_thread(log.durability.flush)
        took = time.perf_counter() - began, time.process_time() - cpu
        running.cancel()
        await asyncio.wait({running})
        await self._leader.close()
        return took


async def catch_up(directory: Path, port: int, ends: list[int]) -> tuple[float, float, float, int]:
    """(seconds, CPU seconds, most of it in one turn of the loop, bytes)."""
    follower = Follower(directory, port, ends)
    seconds, cpu_s = await follower.catch_up()
    return seconds, cpu_s, follower.longest_s, sum(log.size for log in follower.logs)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.replica_catch_up", description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1_000, help="that the follower lacks")
    parser.add_argument("--batch", type=int, default=16_384, help="bytes of a batch")
    parser.add_argument("--lead", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    size = arguments.megabytes * 1_000_000
    if arguments.lead is not None:
        asyncio.run(lead(arguments.lead, size, arguments.batch))
        return 0
    with tempfile.TemporaryDirectory(prefix="firn-bench-", dir=".") as name:
        folder = Path(name)
        sizes = ["--megabytes", str(arguments.megabytes), "--batch", str(arguments.batch)]
        command = [sys.executable, "-m", "bench.replica_catch_up", "--lead", str(folder), *sizes]
        with child(command, folder / "leader.log") as leader:
            port, plain, *ends = map(int, first_line(leader, 300).split())
            of_loopback, of_disk = loopback(plain), disk(folder, size)
            seconds, cpu_s, longest_s, total = asyncio.run(catch_up(folder, port, ends))
    rate, best = total / seconds, min(of_loopback, of_disk)
    print(f"loopback {of_loopback / 1e6:.0f} MB/s, disk {of_disk / 1e6:.0f} MB/s")
    print(
        f"catching up, batches of {arguments.batch} bytes: {rate / 1e6:.0f} MB/s, {rate / best:.0%} of that"
    )
    print(
        f"CPU {cpu_s / (total / 1e9):.2f} s a GB; longest turn of the loop {longest_s * 1000:.0f} ms of CPU"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
