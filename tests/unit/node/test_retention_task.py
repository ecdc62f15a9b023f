"""Retention goes from partition to partition, in turns: what went meanwhile is left alone."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from service.base.clock import ManualClock
from service.base.purgatory import Purgatory
from service.base.turn_queues import SliceQueue
from service.base.types import TopicIdPartition
from service.config.settings import LogConfig
from service.hot.log import LocalLog
from service.node import retention_task
from service.partition.archive import PartitionArchive
from service.partition.partition import Partition
from service.replicas.partition_registry import Replicas
from tests.support.world import make_world


class WatchedArchive(PartitionArchive):
    """Counts its retention passes, and does what is to happen then."""

    def __init__(self, partition: Watched) -> None:
        super().__init__(partition)
        self._watched = partition

    def apply_retention(self, now_ms: int, *, may_let_go: bool = True) -> int:
        self._watched.looks += 1
        if self._watched.then is not None:
            asyncio.get_running_loop().call_soon(self._watched.then)
        return super().apply_retention(now_ms, may_let_go=may_let_go)


class Watched(Partition):
    """Partition with such an archive."""

    def __init__(self, directory: Path, number: int) -> None:
        tip = TopicIdPartition(UUID(int=number), f"t{number}", 0)
        log = LocalLog.open(directory / tip.topic, tip, LogConfig(), world=make_world())
        super().__init__(tip, log, None, 0, 1, 1 << 20, Purgatory(0))
        self.archive = WatchedArchive(self)
        self.looks = 0
        self.then: Any = None


def test_a_partition_that_went_in_the_middle_of_a_round_is_not_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SliceQueue, "is_over", lambda self: True)  # each partition is a turn
    first, second, third = (Watched(tmp_path, number) for number in (1, 2, 3))
    replicas = Replicas()
    for one in (first, second, third):
        replicas.add(one)
    first.then = lambda: replicas.remove(second)
    config = SimpleNamespace(log_retention_check_interval_ms=1)
    broker = SimpleNamespace(config=config, replicas=replicas, clock=ManualClock())

    async def scenario() -> None:
        task = asyncio.create_task(retention_task.retention_loop(cast("Any", broker)))
        async with asyncio.timeout(20):
            while third.looks < 2:
                await asyncio.sleep(0.001)
        task.cancel()

    asyncio.run(scenario())
    assert first.looks >= 2
    assert second.looks == 0
