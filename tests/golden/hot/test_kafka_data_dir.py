"""Files that a real broker wrote are read as they are, and ours are the same bytes."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from service.base.clock import ManualClock
from service.base.types import TopicIdPartition
from service.config.settings import LogConfig
from service.hot.log import LocalLog
from service.hot.log_dir import decode_uuid
from service.hot.manager import LogManager
from service.hot.producer_snapshot import decode_snapshot
from service.records.batch import iter_headers
from service.records.decode import iter_records
from tests.support.world import make_world

GOLDEN = Path(__file__).parent / "kafka-data"
PARTITION = "golden-0"
CONFIG = LogConfig(index_interval_bytes=300, segment_ms=400)
TOPIC_ID = decode_uuid("_BfIN2PVRce2G9_PIdBD0Q")
WRITTEN_MS = 1_795_226_000_000


@pytest.fixture
def data(tmp_path: Path) -> Path:
    shutil.copytree(GOLDEN, tmp_path / "data")
    return tmp_path / "data"


def files(directory: Path, *suffixes: str) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in directory.iterdir() if p.suffix in suffixes}


def opened(directory: Path, *, clean: bool) -> LocalLog:
    tip = TopicIdPartition(TOPIC_ID, "golden", 0)
    return LocalLog.open(directory, tip, CONFIG, world=make_world(ManualClock(WRITTEN_MS)), clean=clean)


def test_a_directory_of_kafkas_opens(data: Path) -> None:
    logs = LogManager([data], make_world(ManualClock(WRITTEN_MS)))
    asyncio.run(logs.open_all(lambda _: CONFIG))
    (meta,) = logs.claim("4L6g3nShT-eMCtK--X86sw", 1).values()
    assert meta.directory_id != UUID(int=0)
    log = logs.get(TOPIC_ID, 0)
    assert log is not None
    assert (log.log_start_offset, log.log_end_offset, log.recovery_point) == (524, 800, 800)
    assert [(s.base_offset, s.last_offset) for s in log.sealed.describe_all()] == [(524, 599), (600, 767)]
    assert len(log.producers) == 2
    asyncio.run(logs.close())


@pytest.mark.parametrize("clean", [True, False])
def test_every_record_of_kafkas_is_read(data: Path, clean: bool) -> None:
    log = opened(data / PARTITION, clean=clean)
    offset = 524
    records: list[Any] = []
    while offset < log.log_end_offset:
        found = log.read(offset, 1 << 20).slice
        assert found is not None
        records += iter_records(found.read())
        offset = list(iter_headers(found.read()))[-1].next_offset
    assert [r.offset for r in records] == list(range(524, 800))
    assert all(len(r.value or b"") == 60 for r in records)


def test_our_recovery_makes_kafkas_indexes(data: Path) -> None:
    before = files(data / PARTITION, ".index", ".timeindex", ".log")
    indexes = [*(data / PARTITION).glob("*index")]
    assert indexes
    for path in indexes:
        path.unlink()
    opened(data / PARTITION, clean=False).close()
    assert files(data / PARTITION, ".index", ".timeindex", ".log") == before


def test_indexes_preallocated_by_a_killed_broker_are_rebuilt(data: Path) -> None:
    before = files(data / PARTITION, ".index", ".timeindex")
    for name in ("00000000000000000768.index", "00000000000000000768.timeindex"):
        with open(data / PARTITION / name, "r+b") as file:
            file.truncate(10_485_756)
    opened(data / PARTITION, clean=False).close()
    assert files(data / PARTITION, ".index", ".timeindex") == before


def test_our_log_files_equal_kafkas(data: Path, tmp_path: Path) -> None:
    """The same batches through our log: the same segments, indexes, snapshots and epochs, byte for byte."""
    kafka = files(data / PARTITION, ".log", ".index", ".timeindex", ".snapshot")
    ours = tmp_path / PARTITION
    tip = TopicIdPartition(TOPIC_ID, "golden", 0)
    log = LocalLog.open(
        ours, tip, CONFIG, world=make_world(ManualClock(WRITTEN_MS)), log_start_offset=524, clean=True
    )
    for name in sorted(name for name in kafka if name.endswith(".log")):
        for header in iter_headers(kafka[name]):
            log.appender.append_raw(memoryview(kafka[name])[header.position : header.end])
    log.close()
    made = files(ours, ".log", ".index", ".timeindex", ".snapshot")
    made["00000000000000000524.snapshot"] = kafka["00000000000000000524.snapshot"]  # the log was begun at 524
    assert made == kafka
    assert [line.rstrip() for line in (ours / "leader-epoch-checkpoint").open()] == ["0", "1", "0 524"]


def test_kafkas_snapshots_are_understood(data: Path) -> None:
    entries = dict(decode_snapshot((data / PARTITION / "00000000000000000800.snapshot").read_bytes()))
    assert sorted(entries) == [0, 1]
    assert entries[0].last_offset == 599
    assert entries[1].last_sequence == 199
    assert entries[1].last_offset == 799
