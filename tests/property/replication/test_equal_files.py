"""The fetcher between real logs on real files, which stop anywhere: in the end both have the same bytes."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import random
import shutil
from pathlib import Path
from typing import Any, Final

import pytest

from service.base.clock import SystemClock
from service.base.errors import StorageError
from service.config.settings import LogConfig
from service.hot.log import LocalLog
from service.hot.manager import LogManager
from service.partition.follower_log import LocalFollowerLog
from service.replication.fetcher import Fetcher, FetcherSettings
from tests.support.fault_disk import FaultDisk
from tests.support.world import START_MS, make_world
from tests.unit.hot.logs import batch, headers_from
from tests.unit.partition.following import Standing
from tests.unit.replication.fetching import BROKER_EPOCH, FOLLOWER, Bucket, LeaderNode, content, tip_of

TIP: Final = tip_of(0)
CONFIG: Final = LogConfig(segment_bytes=3_000, index_interval_bytes=300)
SETTINGS: Final = FetcherSettings(max_wait_ms=1, max_bytes=8_000, backoff_ms=2, timeout_ms=1_000)
HISTORIES: Final = 40
STEPS: Final = (
    *("write",) * 6,
    *("follow",) * 6,
    *("stop_one", "break_a_disk", "fail_over") * 2,
    *("delete_records", "elect_uncleanly", "flush", "wipe"),
)


class Node:
    """One of the two, with its files."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.disk = FaultDisk()
        self.logs: LogManager
        self.standing: Standing

    async def start(self) -> None:
        self.logs = LogManager([self.directory], make_world(disk=self.disk))
        await self.logs.open_all(lambda _: CONFIG)
        assert self.logs.offline() == []
        (log,) = await self.logs.create([(TIP, CONFIG)])
        assert isinstance(log, LocalLog)
        mark = self.logs.high_watermark(TIP) or 0
        self.standing = Standing(log, min(mark, log.log_end_offset))
        self.logs.checkpoint_high_watermarks(lambda: [(TIP, self.standing.high_watermark)])

    @property
    def log(self) -> LocalLog:
        return self.standing.log

    async def stop(self, *, clean: bool) -> None:
        self.disk.heal()
        await self.logs.close(clean and self.log.failure is None)


class Leading(LeaderNode):
    """With a disk that may fail: nobody hears of it then."""

    async def call(
        self, api_key: int, version: int | None, message: Any, *, timeout_ms: int | None = None
    ) -> Any:
        try:
            return await super().call(api_key, version, message, timeout_ms=timeout_ms)
        except StorageError as e:
            raise ConnectionResetError(str(e)) from e


class History:
    """What happens to two nodes, by one seed."""

    def __init__(self, seed: int, directory: Path) -> None:
        self.chance = random.Random(seed)
        self.nodes = [Node(directory / name) for name in "ab"]
        self.epoch = 0
        self.is_clean = True
        self.is_backed = True
        """whether the follower has all that its leader takes for committed: not after an unclean election,
        until it has followed"""
        self.leader: Leading
        self.sequences: dict[int, int] = {}
        self.committed: dict[int, bytes] = {}
        """batches below the high watermark, by their offsets"""
        self.warnings: list[str] = []
        self.happened: list[str] = []

    @property
    def leading(self) -> Node:
        return self.nodes[0]

    @property
    def following(self) -> Node:
        return self.nodes[1]

    async def play(self) -> None:
        for node in self.nodes:
            await node.start()
        self.elect()
        for _ in range(self.chance.randrange(5, 25)):
            name = self.chance.choice(STEPS)
            self.happened.append(name)
            await getattr(self, name)()
        await self.mend()
        await self.follow(until_equal=True)
        self.compare()
        for node in self.nodes:
            # A start that has fallen, as its batch was cut off, is told by the next checkpoint.
            await node.logs.checkpoint_starts()
            await node.stop(clean=self.chance.random() < 0.5)
            await node.start()
        self.compare()
        for node in self.nodes:
            await node.stop(clean=True)

    def elect(self, high_watermark: int | None = None) -> None:
        """The first node leads, in a new epoch."""
        self.epoch += 1
        standing = self.leading.standing
        mark = standing.high_watermark if high_watermark is None else high_watermark
        self.leader = Leading({TIP: standing.log}, self.epoch, mark)
        self.leader.max_bytes = self.chance.choice((500, 3_000, 20_000))

    def note_committed(self) -> None:
        state = self.leader.leaders[TIP]
        self.leading.standing.high_watermark = mark = state.high_watermark
        begin = max(self.committed, default=-1) + 1
        log = self.leading.log
        for header in headers_from(log, max(begin, log.log_start_offset), mark):
            if header.base_offset not in self.committed and header.next_offset <= mark:
                found = log.read(header.base_offset, 1).slice
                assert found is not None
                self.committed[header.base_offset] = bytes(found.read())

    # -- steps

    async def write(self) -> None:
        with contextlib.suppress(StorageError):
            for _ in range(self.chance.randrange(1, 12)):
                producer = self.chance.choice((-1, 5, 6))
                count = self.chance.choice((1, 3, 20))
                one = batch(count, value=b"v" * self.chance.choice((5, 60)))
                if producer >= 0:
                    entry = self.leading.log.producers.get(producer)
                    sequence = 0 if entry is None else entry.last_sequence + 1
                    one = batch(count, producer_id=producer, epoch=0, sequence=sequence)
                self.leading.log.append(one, self.epoch, START_MS)
            self.leader.leaders[TIP].appended(START_MS)

    async def follow(self, *, until_equal: bool = False) -> None:
        """For a while."""
        follower, state = self.following, self.leader.leaders[TIP]
        replica = LocalFollowerLog(follower.standing, follower.logs)
        fetcher = Fetcher(
            self.leader,
            FOLLOWER,
            lambda: BROKER_EPOCH,
            SETTINGS,
            SystemClock(),
            Bucket({}),
            self.warnings.append,
            on_caught_up=None if self.chance.random() < 0.5 else lambda *_: None,
        )
        fetcher.assign(TIP, replica, self.epoch, is_clean=self.is_clean)
        running = asyncio.create_task(fetcher.run())
        try:
            if until_equal:
                async with asyncio.timeout(20):
                    while not self.is_equal(state.high_watermark) and not running.done():
                        await asyncio.sleep(0.002)
                self.is_backed = True
            else:
                await asyncio.sleep(self.chance.choice((0, 0.003, 0.01)))
        finally:
            running.cancel()
            await asyncio.wait({running})
        if not running.cancelled():
            running.result()
        if self.leading.log.failure is None:
            disk = self.leading.disk
            faults, disk.faults = disk.faults, []
            self.note_committed()
            disk.faults = faults

    def is_equal(self, mark: int) -> bool:
        end = self.leading.log.log_end_offset
        follower = self.following.standing
        return (follower.log.log_end_offset, follower.high_watermark, mark) == (end, end, end)

    async def stop_one(self) -> None:
        node = self.chance.choice(self.nodes)
        await node.stop(clean=self.chance.random() < 0.3)
        await node.start()
        if node is self.leading:
            self.elect()

    async def break_a_disk(self) -> None:
        """From some call on nothing gets through, until the process is started again."""
        node = self.chance.choice(self.nodes)
        node.disk.fail("*", errno.EIO, after=self.chance.randrange(40))
        for _ in range(3):
            await self.write()
            await self.follow()
            with contextlib.suppress(StorageError):
                await self.leading.logs.flush(self.leading.log)
        await node.stop(clean=False)
        await node.start()
        if node is self.leading:
            self.elect()

    async def mend(self) -> None:
        for node in self.nodes:
            if node.log.failure is not None:
                await node.stop(clean=False)
                await node.start()
                if node is self.leading:
                    self.elect()

    async def fail_over(self) -> None:
        await self.mend()
        if not self.is_backed:
            await self.follow(until_equal=True)
        self.nodes.reverse()
        self.elect()

    async def elect_uncleanly(self) -> None:
        """One leads that has lost something of what was committed."""
        await self.mend()
        self.nodes.reverse()
        log = self.leading.log
        end = self.chance.randrange(log.log_start_offset, log.log_end_offset + 1)
        async with self.leading.logs.lower_recovery_point(log, log.truncation.end_after(end)) as is_told:
            assert is_told
            end = log.truncation.truncate_to(end)
        self.leading.standing.set_follower_high_watermark(min(self.leading.standing.high_watermark, end))
        self.committed = {offset: data for offset, data in self.committed.items() if offset < end}
        self.is_clean = self.is_backed = False
        self.elect()

    async def wipe(self) -> None:
        """The follower's disk is lost. It may not lead before it has caught up."""
        await self.following.stop(clean=False)
        shutil.rmtree(self.following.directory)
        await self.following.start()
        await self.mend()
        await self.follow(until_equal=True)

    async def delete_records(self) -> None:
        log = self.leading.log
        mark = self.leading.standing.high_watermark
        if log.failure is None and mark > log.log_start_offset:
            log.deletion.move_log_start(self.chance.randrange(log.log_start_offset, mark + 1))
            if self.chance.random() < 0.5:
                log.deletion.delete_below_start()

    async def flush(self) -> None:
        node = self.chance.choice(self.nodes)
        with contextlib.suppress(StorageError):
            await node.logs.flush(node.log)
            await node.logs.checkpoint_starts()

    # -- what must hold

    def compare(self) -> None:
        one, other = (node.log for node in self.nodes)
        first = max(one.log_start_offset, other.log_start_offset)
        first = max(first, one.local_log_start_offset, other.local_log_start_offset)
        assert one.log_end_offset == other.log_end_offset
        assert content(one, first) == content(other, first)
        for offset, data in self.committed.items():
            if offset >= first:
                found = one.read(offset, 1).slice
                assert found is not None
                assert bytes(found.read()) == data, f"what was committed at {offset}"
        for offset in range(first, one.log_end_offset):
            assert one.epochs.epoch_at(offset) == other.epochs.epoch_at(offset), f"epoch of {offset}"
        mine, its = ({pid: entry.last_sequence for pid, entry in log.producers} for log in (one, other))
        for pid in mine.keys() & its.keys():
            assert mine[pid] == its[pid], f"producer {pid}"


def play(seed: int, directory: Path) -> None:
    history = History(seed, directory)
    try:
        asyncio.run(history.play())
    except BaseException as e:
        told = ", ".join(history.happened)
        e.add_note(f"seed {seed}: {told}; warnings: {history.warnings[-5:]}")
        raise


@pytest.mark.parametrize("first", range(1, 1 + HISTORIES, 10))
def test_both_have_the_same_bytes_in_the_end(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 10):
        play(seed, tmp_path / str(seed))


def test_replicas_equal_their_leader_after_random_events(tmp_path: Path) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    play(seed, tmp_path)
