"""The model disk loses what was not flushed and nothing else; the network brings every byte in order."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Any

import pytest

from service.base.disk import Disk, DiskError, LockHeld, MissingFile, Open
from simulator.loop import Loop
from simulator.network import Network
from simulator.power_loss import Loss, Platter
from simulator.process import Process
from simulator.process_disk import NoFaults, SimDisk
from simulator.threads import SimThreads
from simulator.trace import Trace

ROOT = Path("/sim/d0")


def disk_of(platter: Platter, faults: Any = None) -> tuple[SimDisk, Process]:
    loop, process = Loop(Random(1)), Process("node")
    threads = SimThreads(loop, process, Random(2))
    disk = SimDisk(platter, process, threads, faults or NoFaults(), Trace(loop.time), lambda: 0)
    loop.close()
    return disk, process


def platter() -> Platter:
    made = Platter()
    made.make_root(ROOT)
    return made


def write(disk: Disk, path: Path, data: bytes, position: int = 0, *, fsync: bool = True) -> None:
    fd = disk.open(path, Open.CREATE)
    disk.pwrite(fd, data, position)
    if fsync:
        disk.fsync(fd)
    disk.close(fd)


def read(disk: Disk, path: Path) -> bytes:
    fd = disk.open(path)
    try:
        return disk.pread(fd, 1 << 20, 0)
    finally:
        disk.close(fd)


def test_flushed_writes_survive_and_others_may_be_lost() -> None:
    medium = platter()
    disk, _ = disk_of(medium)
    write(disk, ROOT / "a", b"durable")
    disk.fsync_dir(ROOT)
    write(disk, ROOT / "a", b" and more", 7, fsync=False)
    write(disk, ROOT / "nameless", b"flushed, but its name is not")
    found = set()
    for seed in range(60):
        twin = _twin(medium)
        twin.lose_power(Random(seed), Loss.ANY)
        again, _ = disk_of(twin)
        data = read(again, ROOT / "a")
        assert b"durable and more".startswith(data)
        assert len(data) >= 7
        found.add(data)
    assert len(found) > 4
    medium.lose_power(Random(0), Loss.ALL)
    again, _ = disk_of(medium)
    assert [entry.name for entry in again.list(ROOT)] == ["a"]
    assert read(again, ROOT / "a") == b"durable"


def _twin(medium: Platter) -> Platter:
    import copy

    return copy.deepcopy(medium)


def test_a_rename_is_whole_before_and_after_a_crash() -> None:
    medium = platter()
    disk, _ = disk_of(medium)
    write(disk, ROOT / "f", b"old")
    disk.fsync_dir(ROOT)
    write(disk, ROOT / "f.tmp", b"new")
    disk.rename(ROOT / "f.tmp", ROOT / "f")
    outcomes = set()
    for seed in range(20):
        twin = _twin(medium)
        twin.lose_power(Random(seed), Loss.ANY)
        again, _ = disk_of(twin)
        outcomes.add(read(again, ROOT / "f"))
    assert outcomes == {b"old", b"new"}


def test_a_failed_fsync_drops_what_it_should_have_written_and_the_next_does_not_bring_it_back() -> None:
    class Faults(NoFaults):
        once = True

        def fail(self, call: str, path: Path) -> int | None:
            if call == "fsync" and self.once:
                self.once = False
                return 5
            return None

        def drops_dirty(self) -> bool:
            return True

    medium = platter()
    disk, _ = disk_of(medium, Faults())
    fd = disk.open(ROOT / "a", Open.CREATE)
    disk.fsync_dir(ROOT)
    disk.pwrite(fd, b"lost", 0)
    with pytest.raises(DiskError):
        disk.fsync(fd)
    disk.fsync(fd)
    assert read(disk, ROOT / "a") == b"lost"
    medium.lose_power(Random(1), Loss.NONE)
    assert medium.file(ROOT / "a").data == b""


def test_locks_are_a_process_s_and_end_with_it() -> None:
    medium = platter()
    disk, process = disk_of(medium)
    disk.lock(ROOT / ".lock")
    other, _ = disk_of(medium)
    with pytest.raises(LockHeld):
        other.lock(ROOT / ".lock")
    process.kill()
    other.lock(ROOT / ".lock")


def test_errors_are_the_port_s() -> None:
    disk, _ = disk_of(platter())
    with pytest.raises(MissingFile):
        disk.open(ROOT / "none")
    with pytest.raises(DiskError):
        disk.pread(7, 1, 0)
    disk.mkdir(ROOT / "d")
    with pytest.raises(DiskError):
        disk.mkdir(ROOT / "d")
    write(disk, ROOT / "d" / "f", b"x")
    with pytest.raises(DiskError):
        disk.rmdir(ROOT / "d")
    disk.rename(ROOT / "d", ROOT / "e")
    assert read(disk, ROOT / "e" / "f") == b"x"


def test_bytes_arrive_in_order_whatever_the_chunks() -> None:
    for seed in range(10):
        loop = Loop(Random(seed))
        Network(loop, Random(seed), Trace(loop.time))
        server_process, client_process = Process("server"), Process("client")
        sent = Random(seed).randbytes(300_000)

        async def serve() -> None:
            async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                while data := await reader.read(5000):
                    writer.write(data)
                    await writer.drain()
                writer.close()

            await asyncio.start_server(echo, "n1", 9092)

        async def ask(sent: bytes = sent) -> bytes:
            reader, writer = await asyncio.open_connection("n1", 9092)
            writer.write(sent)
            await writer.drain()
            return await reader.readexactly(len(sent))

        async def main(
            loop: Loop = loop, server: Process = server_process, client: Process = client_process
        ) -> bytes:
            with pytest.raises(ConnectionRefusedError):
                await client.run(lambda: loop.create_task(ask()))
            await server.run(lambda: loop.create_task(serve()))
            got: bytes = await client.run(lambda: loop.create_task(ask()))
            server.kill()
            with pytest.raises(ConnectionRefusedError):
                await client.run(lambda: loop.create_task(ask()))
            return got

        assert loop.run_until_complete(main()) == sent
        loop.close()
