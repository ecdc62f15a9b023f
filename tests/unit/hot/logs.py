"""Batches and logs for the tests of the local tier."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

from service.base.clock import ManualClock
from service.base.disk import SystemDisk
from service.base.files import read_checkpoint
from service.base.types import TopicIdPartition
from service.base.world import World
from service.config.settings import LogConfig
from service.hot.log import LocalLog
from service.hot.manager import LogManager
from service.records.batch import BatchHeader, complete_headers, iter_headers, read_header, stamp
from service.records.builder import BatchBuilder
from service.records.checkpoint_lines import decode_offsets
from service.records.decode import Record, iter_records
from service.records.validation import ValidatedBatch
from tests.support.world import START_MS as START_MS
from tests.support.world import make_world

T = TypeVar("T")

TIP = TopicIdPartition(UUID(int=7), "events", 0)


def batch(
    count: int = 1,
    *,
    timestamp: int = START_MS,
    value: bytes = b"v" * 50,
    producer_id: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    **options: Any,
) -> ValidatedBatch:
    """A batch of `count` records, ready to be appended; record n has `timestamp` + n."""
    builder = BatchBuilder(producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, **options)
    for n in range(count):
        builder.add(timestamp + n, b"k", value)
    data = memoryview(builder.build())
    return ValidatedBatch(data, read_header(data), timestamp + count - 1, count - 1, count)


def checkpointed(path: Path) -> dict[tuple[str, int], int]:
    """Offsets by topic and partition, as a checkpoint file has them."""
    return decode_offsets(read_checkpoint(SystemDisk(), path))


def raw(*batches: tuple[int, int, int], timestamp: int = START_MS) -> memoryview:
    """Batches of (base offset, count, leader epoch), back to back."""
    data = bytearray()
    for base_offset, count, epoch in batches:
        one = batch(count, timestamp=timestamp).data
        stamp(one, 0, base_offset, epoch)
        data += one
    return memoryview(data)


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` to its end, also inside a running loop, which waits meanwhile."""
    found: list[Future[T]] = []

    def run() -> None:
        future: Future[T] = Future()
        found.append(future)
        try:
            future.set_result(asyncio.run(work))
        except BaseException as e:
            future.set_exception(e)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0].result()


def get_or_create(
    logs: LogManager, tip: TopicIdPartition, config: LogConfig, *, is_new: bool = True
) -> LocalLog:
    """The partition's log; raises why there is none."""
    (made,) = at_once(logs.create([(tip, config)], lambda _: is_new))
    if not isinstance(made, LocalLog):
        raise made
    return made


def checkpoint(logs: LogManager) -> None:
    """Write recovery points and log starts of all logs now; raises why one could not be written."""
    maintenance, homes = logs._maintenance, logs._registry.homes
    for error in maintenance.checkpoints.files.write(maintenance.offsets.snapshot_all(homes)).values():
        raise error


def delete(logs: LogManager, tip: TopicIdPartition) -> None:
    at_once(logs.delete([tip]))


def open_log(
    directory: Path, clock: ManualClock | None = None, *, world: World | None = None, **options: Any
) -> LocalLog:
    """Open a log; options that `LocalLog.open` does not know are the topic's settings."""
    known = {
        *("recovery_point", "log_start_offset", "cleaned_offset", "clean", "lost_power", "files"),
        "producer_expiration_ms",
        "high_watermark",
    }
    opening = {key: options.pop(key) for key in known & options.keys()}
    return LocalLog.open(
        directory / "events-0", TIP, LogConfig(**options), world=world or make_world(clock), **opening
    )


def headers_from(
    log: LocalLog, offset: int, end: int | None = None, max_bytes: int = 1 << 20
) -> Iterator[BatchHeader]:
    """Headers of all whole batches from `offset` on, as a consumer that fetches again and again sees them."""
    while True:
        found = log.read(offset, max_bytes, end)
        if found.slice is None:
            return
        data = found.slice.read()
        position = 0
        for header in complete_headers(data):
            offset = header.next_offset
            position = header.end
            yield header
        assert position, "a slice holds one whole batch at least"


def records_from(log: LocalLog, offset: int = 0) -> list[Record]:
    """All records from `offset` to the end, decoded."""
    records: list[Record] = []
    while offset < log.log_end_offset:
        found = log.read(offset, 1 << 30)
        assert found.slice is not None
        data = found.slice.read()
        records += iter_records(data, include_control=True)
        offset = list(iter_headers(data))[-1].next_offset
    return records
