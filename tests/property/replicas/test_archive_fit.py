"""Random logs beside random archives of their past or of another one, of which erasures took records."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import pytest

from service.base.clock import ManualClock
from service.base.threads import SystemThreads
from service.config.settings import LogConfig
from service.hot.log import LocalLog
from service.records.batch import CompressionType, read_header
from service.records.builder import BatchBuilder
from service.records.erasure import ErasureCopier
from service.records.scan import scan_batches
from service.remote.catalog import CatalogEntry
from service.remote.reading.reader import ArchiveEnd, RemoteReader
from service.remote.stores.memory_store import MemoryStore
from service.replicas.archive_fit import fit_to_archive
from tests.support.world import make_world
from tests.unit.hot.erasures import keys_of
from tests.unit.remote.archive import START_MS, TIP, Archive

T = TypeVar("T")

CASES = 60
KEYS = [b"a", b"b", b"c", b"d", None]


class Past(NamedTuple):
    """Batches of a log, with the greatest timestamp of each another one."""

    batches: tuple[bytes, ...]

    @property
    def end(self) -> int:
        return read_header(self.batches[-1]).next_offset


def a_batch(chance: random.Random, offset: int, count: int, epoch: int, timestamp: int) -> bytes:
    """A batch whose records have timestamps from `timestamp` on, below the next thousand."""
    stamp = timestamp + 900 if chance.random() < 0.1 else None
    producer = (chance.randrange(3), 0, offset) if chance.random() < 0.5 else (-1, -1, -1)
    codec = chance.choice([*CompressionType])
    builder = BatchBuilder(offset, codec, epoch, *producer, log_append_time=stamp)
    for n in range(count):
        builder.add(timestamp + n, chance.choice(KEYS), chance.randbytes(chance.randrange(60)))
    return bytes(builder.build())


def a_past(chance: random.Random) -> Past:
    batches, offset, epoch = [], chance.choice((0, 1000)), 0
    for n in range(chance.randrange(4, 40)):
        count = chance.randrange(1, 8)
        batches.append(a_batch(chance, offset, count, epoch, START_MS + 1000 * n))
        offset += count
        epoch += chance.random() < 0.1
    return Past(tuple(batches))


def another(past: Past, chance: random.Random, from_index: int) -> Past:
    """Another past from one batch on: with the same offsets, epochs and producers, or in another epoch."""
    batches = list(past.batches)
    is_epoch = chance.random() < 0.3
    for n in range(from_index, len(batches)):
        header = read_header(batches[n])
        stamp = header.max_timestamp + 500_000 if header.is_log_append_time else None
        builder = BatchBuilder(
            header.base_offset,
            header.codec,
            header.partition_leader_epoch + is_epoch,
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            log_append_time=stamp,
        )
        for at in range(header.record_count):
            builder.add(header.base_timestamp + 500_000 + at, chance.choice(KEYS), b"another")
        batches[n] = bytes(builder.build())
    return Past(tuple(batches))


def erased(batches: Sequence[bytes], keys: Collection[bytes], end: int) -> list[bytes]:
    """What an order leaves of these batches."""
    data = memoryview(b"".join(batches))
    copier = ErasureCopier(keys_of(keys), end, None, 0, 4096)
    left = b"".join(bytes(part) for part in copier.copy(data, scan_batches(data)))
    left += b"".join(bytes(part) for part in copier.rest())
    found = scan_batches(left)
    return [left[at : at + size] for at, size in zip(found.positions, found.sizes, strict=True)]


def some_keys(chance: random.Random) -> list[bytes]:
    known = [key for key in KEYS if key is not None]
    return chance.sample(known, chance.randrange(1, len(known) + 1))


def orders(chance: random.Random, batches: Sequence[bytes]) -> list[bytes]:
    """Carry some orders out."""
    end = read_header(batches[-1]).next_offset
    found = list(batches)
    for _ in range(chance.randrange(3)):
        found = erased(found, some_keys(chance), chance.randrange(end + 2))
    return found


def compacted(chance: random.Random, batches: Sequence[bytes]) -> list[bytes]:
    """Leave some batches out, as a compaction does, but neither the first nor the last."""
    if chance.random() < 0.7:
        return list(batches)
    inner = [one for one in batches[1:-1] if chance.random() < 0.5]
    return [*batches[:1], *inner, *batches[1:][-1:]]


def archived(chance: random.Random, batches: Sequence[bytes]) -> Archive:
    """An archive of these batches in objects of any size, a part of which may have expired."""
    block_bytes = chance.choice((200, 1000, 1 << 20))
    made = Archive(
        MemoryStore(SystemThreads()),
        seed=chance.randrange(1 << 20),
        block_bytes=block_bytes,
        producer_snapshot=b"",
    )
    at = 0
    while at < len(batches):
        some = batches[at : at + chance.choice((1, 3, 10, len(batches)))]
        made.add_log(b"".join(some))
        at += len(some)
    if chance.random() < 0.2:
        made.drop_before(read_header(batches[chance.randrange(len(batches))]).base_offset)
    return made


def local_of(chance: random.Random, folder: Path, batches: Sequence[bytes]) -> LocalLog:
    config = LogConfig(remote_storage_enable=True, index_interval_bytes=150)
    log = LocalLog.open(folder, TIP, config, world=make_world(ManualClock(START_MS)))
    log.truncation.restart_at(read_header(batches[0]).base_offset)
    for one in batches:
        if chance.random() < 0.2:
            log.appender.roll()
        log.appender.append_raw(memoryview(bytearray(one)))
    return log


async def on_thread(job: Callable[..., T], /, *args: object) -> T:
    return await asyncio.to_thread(job, *args)


def fit(log: LocalLog, archive: Archive) -> None:
    """Compare the log with the archive that a recovery took over."""
    reader = RemoteReader(archive.store, make_world(), threads=1, cache_bytes=1 << 22)

    async def read(offset: int, end_offset: int) -> tuple[bytes, int]:
        found = await asyncio.wrap_future(reader.read(TIP, archive.manifest_key, offset, 400, end_offset))
        return b"".join(found.data), found.next_offset

    async def run() -> None:
        end: ArchiveEnd = await asyncio.wrap_future(reader.archive_end(TIP, archive.manifest_key))
        remote: CatalogEntry = end.entry
        wanted: Awaitable[bool] = fit_to_archive(log, remote, end, read, on_thread, lambda: True)
        assert await wanted

    try:
        asyncio.run(run())
    finally:
        reader.close()


@pytest.mark.parametrize("seed", range(CASES))
def test_a_log_of_the_archive_s_past_is_kept_whatever_was_erased_on_either_side(
    seed: int, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    past = a_past(chance)
    reaches = chance.randrange(1, len(past.batches))
    begins = chance.randrange(reaches + 1)
    archive = archived(chance, orders(chance, past.batches[:reaches]))
    ours = compacted(chance, orders(chance, past.batches[begins:]))
    log = local_of(chance, tmp_path / "flights-3", ours)
    fit(log, archive)
    assert log.log_end_offset == past.end
    left = [run.file.read(0, run.size) for run in log.runs.runs_from(0)]
    assert b"".join(left) == b"".join(ours)


@pytest.mark.parametrize("seed", range(CASES))
def test_a_log_of_another_past_begins_anew_though_one_side_has_erased(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    past = a_past(chance)
    reaches = chance.randrange(1, len(past.batches))
    parts = chance.randrange(reaches)
    begins = chance.randrange(reaches)
    theirs: Sequence[bytes] = past.batches[:reaches]
    ours: Sequence[bytes] = another(past, chance, parts).batches[begins:]
    if chance.random() < 0.5:
        ours = orders(chance, ours)
    else:
        theirs = orders(chance, theirs)
    archive = archived(chance, theirs)
    log = local_of(chance, tmp_path / "flights-3", ours)
    fit(log, archive)
    end = read_header(past.batches[reaches - 1]).next_offset
    assert (log.local_log_start_offset, log.log_end_offset) == (end, end)


@pytest.mark.parametrize("seed", range(20))
def test_a_log_that_ends_before_its_archive_begins_where_that_ends(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    past = a_past(chance)
    ends = chance.randrange(1, len(past.batches))
    begins = chance.randrange(ends)
    archive = archived(chance, orders(chance, past.batches))
    log = local_of(chance, tmp_path / "flights-3", orders(chance, past.batches[begins:ends]))
    fit(log, archive)
    assert (log.local_log_start_offset, log.log_end_offset) == (past.end, past.end)
