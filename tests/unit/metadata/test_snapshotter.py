"""Snapshots that are written while the log changes beneath them."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from service.base.disk import SystemDisk
from service.metadata.batches import encode_batch
from service.metadata.delta import MetadataDelta
from service.metadata.frames import newest
from service.metadata.image import MetadataImage
from service.metadata.metrics import MetadataMetrics
from service.metadata.raft.control import NO_VOTER_RECORDS
from service.metadata.raft.keys import SnapshotId
from service.metadata.raft.log import MetadataLog
from service.metadata.raft.snapshots import list_snapshots, write_snapshot
from service.metadata.records import TopicRecord
from service.metadata.snapshot_codec import encode_image
from service.metadata.snapshotter import Snapshotter
from tests.support.world import make_world

DISK = SystemDisk()


def topic(number: int) -> TopicRecord:
    return TopicRecord(name=f"topic-{number}", topic_id=UUID(int=1 << 70 | number))


def image_at(offset: int) -> MetadataImage:
    delta = MetadataDelta(MetadataImage()).replay_all(topic(i) for i in range(offset + 1))
    return delta.build(offset, 1, 0)


def refuse(error: BaseException) -> None:
    raise AssertionError from error


def test_a_log_that_restarts_during_a_snapshot_keeps_its_own_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was fetched once the files had been listed: what this node leads with would else have no beginning
    that it knows of, and nobody could catch up with it."""
    world = make_world()
    listed, goes_on = threading.Event(), threading.Event()
    fetched = SnapshotId(9, 2)

    def list_and_wait(*given: Any) -> list[SnapshotId]:
        found = list_snapshots(*given)
        listed.set()
        assert goes_on.wait(60)
        return found

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        log = MetadataLog.open(
            tmp_path, world, segment_bytes=1 << 20, snapshots=(), snapshot=None, state=None
        )
        for i in range(4):
            log.append(encode_batch([newest(topic(i))], base_offset=i, epoch=1, timestamp_ms=0))
        with ThreadPoolExecutor(2) as log_io:
            snapshotter = Snapshotter(
                log,
                world,
                log_io,
                MetadataMetrics(),
                max_bytes=1,
                interval_ms=0,
                retention_bytes=0,
                retention_ms=-1,
                current_image=lambda: image_at(3),
                on_fatal=refuse,
            )
            monkeypatch.setattr("service.metadata.snapshotter.list_snapshots", list_and_wait)
            snapshotter.start()
            snapshotter.committed(1)
            await loop.run_in_executor(None, listed.wait, 60)
            write_snapshot(DISK, tmp_path, fetched, encode_image(image_at(8), 0, NO_VOTER_RECORDS))
            async with log.changing:
                await loop.run_in_executor(log_io, log.restart_at, fetched, NO_VOTER_RECORDS)
            goes_on.set()
            await snapshotter.stop()
        assert log.snapshots == (fetched,)
        assert (log.start_offset, log.end_offset) == (9, 9)
        assert list_snapshots(DISK, tmp_path) == [fetched]
        log.close()

    asyncio.run(scenario())
