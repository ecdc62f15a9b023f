"""Compaction by a running manager: the order of logs, failures, deletions meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

from service.base.clock import SystemClock
from service.base.types import TopicIdPartition
from service.config.settings import LogConfig
from service.hot.cleaning.log_rewrite import CleanerSettings
from service.hot.log import LocalLog
from service.hot.log_dir import CLEANER_OFFSETS
from service.hot.manager import LogManager
from tests.support.compaction import Pair, last_of_each
from tests.support.fault_disk import FaultDisk
from tests.support.kafka_node import CLUSTER_ID
from tests.support.world import make_world
from tests.unit.hot.cleanings import put, records_in
from tests.unit.hot.logs import checkpointed

CONFIG = LogConfig(
    segment_bytes=2000, cleanup_policy="compact", min_cleanable_dirty_ratio=0.1, file_delete_delay_ms=0
)


def tip(number: int) -> TopicIdPartition:
    return TopicIdPartition(UUID(int=number + 1), f"t{number}", 0)


@asynccontextmanager
async def running(
    folder: Path, disk: FaultDisk, settings: CleanerSettings | None = None
) -> AsyncIterator[LogManager]:
    """A manager that flushes and compacts."""
    logs = LogManager([folder], make_world(SystemClock(), disk))
    logs.claim(CLUSTER_ID, 1)
    await logs.open_all(lambda _: CONFIG)
    used = settings or CleanerSettings(backoff_ms=10)
    tasks = [
        asyncio.create_task(logs.run()),
        asyncio.create_task(logs.cleaner.run(lambda: used, lambda log: log.log_end_offset)),
    ]
    try:
        yield logs
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await logs.close(clean=True, broker_epoch=1)


async def make(logs: LogManager, number: int, config: LogConfig = CONFIG) -> LocalLog:
    (log,) = await logs.create([(tip(number), config)])
    assert isinstance(log, LocalLog)
    return log


def fill(log: LocalLog, batches: int = 200) -> None:
    for n in range(batches):
        put(log, [Pair(b"k%d" % (n % 9), b"value %d" % n), Pair(b"k%d" % (n % 5), b"x" * 30)])
    log.appender.roll()


async def until(condition: object, seconds: float = 30) -> None:
    assert callable(condition)
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


def is_clean(log: LocalLog) -> bool:
    return log.state.cleaned_offset == log.active_base_offset


def test_dirty_logs_are_compacted_and_checkpointed(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path, FaultDisk()) as logs:
            both = [await make(logs, number) for number in range(2)]
            plain = await make(logs, 2, LogConfig(segment_bytes=2000))
            want = []
            for log in (*both, plain):
                fill(log)
                want.append(last_of_each(records_in(log)))
            size = plain.size
            await until(lambda: all(map(is_clean, both)))
            for log, last in zip(both, want, strict=False):
                assert records_in(log) == sorted(last.values())
            assert plain.size == size
            ends = {log.tip[1:]: log.state.cleaned_offset for log in both}
            await until(lambda: checkpointed(tmp_path / CLEANER_OFFSETS) == ends)
        async with running(tmp_path, FaultDisk()) as logs:
            again = [logs.get(log.tip.topic_id, 0) for log in both]
            assert [log.state.cleaned_offset for log in again if log is not None] == list(ends.values())

    asyncio.run(main())


def test_a_log_that_cannot_be_cleaned_is_set_aside_and_others_go_on(tmp_path: Path) -> None:
    async def main() -> None:
        disk = FaultDisk()
        async with running(tmp_path, disk) as logs:
            bad, refused, good = [await make(logs, number) for number in range(3)]
            disk.fail("pwrite", errno.ENOSPC, path="t1-0/00000000000000000000.log.cleaned")
            fill(bad)
            path = bad.state.segments.all[1].log.path
            data = bytearray(path.read_bytes())
            data[90] ^= 1
            path.write_bytes(data)
            fill(refused)
            fill(good)
            await until(lambda: is_clean(good) and logs.metrics.uncleanable_logs == 2)
            assert logs.metrics.cleaning_errors == 2
            assert logs.cleaner.set_aside().keys() == {bad, refused}
            disk.heal()
            # It serves all the same, and both are forgotten with their topics.
            assert records_in(refused)
            await logs.delete([bad.tip, refused.tip])
            assert logs.metrics.uncleanable_logs == 0

    asyncio.run(main())


def test_a_failed_fsync_takes_the_directory_offline(tmp_path: Path) -> None:
    async def main() -> None:
        disk = FaultDisk()
        with contextlib.suppress(Exception):
            async with running(tmp_path, disk) as logs:
                log = await make(logs, 0)
                disk.fail("fsync", errno.EIO, path=".cleaned")
                fill(log)
                await until(lambda: log.failure is not None)
                assert not list(log.dir.glob("*.swap"))
                raise RuntimeError("over")
        disk.heal()
        async with running(tmp_path, disk) as logs:
            again = logs.get(tip(0).topic_id, 0)
            assert again is not None
            await until(lambda: is_clean(again))

    asyncio.run(main())


def test_a_topic_is_deleted_or_has_another_policy_while_it_is_cleaned(tmp_path: Path) -> None:
    """Throttled, so that the cleaning is under way for sure."""

    async def main() -> None:
        slow = CleanerSettings(backoff_ms=10, max_bytes_per_second=15_000)
        async with running(tmp_path, FaultDisk(), slow) as logs:
            for number, after in enumerate(("delete", "policy")):
                log = await make(logs, number)
                fill(log)
                await until(lambda log=log: list(log.dir.glob("*.cleaned")))
                assert not is_clean(log)
                if after == "delete":
                    await logs.delete([log.tip])
                    assert logs.get(log.tip.topic_id, 0) is None
                else:
                    log.config = LogConfig(segment_bytes=2000)
                    await until(lambda log=log: not list(log.dir.glob("*.cleaned")))
            assert logs.metrics.cleaning_errors == 0

    asyncio.run(main())


def test_a_rate_is_kept(tmp_path: Path) -> None:
    async def main() -> None:
        slow = CleanerSettings(backoff_ms=10, max_bytes_per_second=60_000)
        async with running(tmp_path, FaultDisk(), slow) as logs:
            log = await make(logs, 0)
            fill(log)
            began = asyncio.get_running_loop().time()
            size = log.size
            await until(lambda: is_clean(log))
            # It is read twice.
            assert asyncio.get_running_loop().time() - began > 0.8 * 2 * size / 60_000

    asyncio.run(main())
