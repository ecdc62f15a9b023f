"""Reads of a chain that was merged, and lost records to erasures: each reader sees what is left."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from service.base.threads import SystemThreads
from service.inspect.fsck import fsck
from service.records.batch import CompressionType
from service.records.builder import BatchBuilder
from service.records.decode import iter_records
from service.records.erasure import ErasureKeys, hash_key
from service.remote.format.keys import HeadKey
from service.remote.format.manifest import ManifestLimits
from service.remote.reading.reader import RemoteReader
from service.remote.stores.memory_store import MemoryStore
from service.remote.stores.store import ObjectStore
from service.spark.schema import ReadColumn
from tests.support.rewritten import Rewriter, without_offsets
from tests.support.transactional_log import random_log
from tests.support.world import make_world
from tests.unit.remote.archive import TIP, TOPIC_ID, Archive
from tests.unit.spark.bucket import START_MS, Bucket, options_of

KEY = HeadKey(TOPIC_ID, TIP.partition)
SECRET = bytes(range(16))
CODECS = (CompressionType.NONE, CompressionType.GZIP, CompressionType.ZSTD, CompressionType.LZ4)


@contextmanager
def reading(store: ObjectStore) -> Iterator[RemoteReader]:
    reader = RemoteReader(store, make_world(seed=5), threads=2, cache_bytes=4 << 20, chunk_bytes=2_000)
    try:
        yield reader
    finally:
        reader.close()


def run_of(rewriter: Rewriter, rng: random.Random) -> tuple[int, int]:
    """The borders of a run of one to four segments of a page, or of the manifest itself."""
    group = rng.choice(rewriter.groups())
    first = rng.randrange(len(group))
    run = group[first : first + rng.randint(1, 4)]
    return run[0].base_offset, run[-1].last_offset


@pytest.mark.parametrize("seed", range(12))
def test_transactions_are_known_of_what_is_left(seed: int) -> None:
    rng = random.Random(seed)
    log = random_log(rng, 120)
    archive = Archive(MemoryStore(SystemThreads()), limits=ManifestLimits(entries=4, page_refs=2))
    ends = sorted(rng.sample([end for end, _ in log.history[1:-1]], 14))
    for end in [*ends, log.end_offset]:
        archive.add_transactions(log, end)
    rewriter = Rewriter(archive.store, KEY, seed, block_bytes=400)
    end = log.end_offset
    gone: set[int] = set()
    markers = {one.base_offset for one in log.batches if one.is_commit is not None}
    for _ in range(6):
        base, last = run_of(rewriter, rng)
        if rng.random() < 0.4:
            rewriter.merge(base, last)
            continue
        lost = {n for n in range(base, last + 1) if rng.random() < rng.choice([0.1, 0.9])} - markers
        rewriter.erase(base, last, without_offsets(*lost))
        gone |= lost
    report = fsck(archive.store)
    assert [one for one in report.errors if one.where.startswith("data/")] == []
    assert report.records == end - len(gone)
    key = rewriter.manifest().stored_key or ""
    with reading(archive.store) as reader:
        for _ in range(40):
            first = rng.randrange(end)
            bound = rng.randint(first + 1, end)
            found = reader.aborted(TIP, key, first, bound).result(20)
            possible = log.overlapping(first, bound)
            there = {one.producer_id for one in log.batches if first <= one.last_offset < bound}
            assert {*found.rows} <= {*possible}
            assert {row for row in possible if row.producer_id in there} <= {*found.rows}
        at, seen = 0, []
        while at < end:
            got = reader.read(TIP, key, at, rng.randint(1, 3_000)).result(20)
            seen += [
                one.offset for data in got.data for one in iter_records(bytes(data), include_control=True)
            ]
            assert got.next_offset > at
            at = got.next_offset
        assert seen == [n for n in range(end) if n not in gone]
        archive_end = reader.archive_end(TIP, key).result(20)
        assert archive_end.entry.end_offset == end


def batch(rng: random.Random, base: int, keys: list[bytes | None]) -> bytes:
    builder = BatchBuilder(base, rng.choice(CODECS), 0)
    for number, key in enumerate(keys):
        builder.add(START_MS + 10 * (base + number) + rng.randrange(10), key, b"value %d" % (base + number))
    return bytes(builder.build())


@pytest.mark.parametrize("keeps_all", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_brokers_and_spark_read_what_an_erasure_of_keys_leaves(seed: int, keeps_all: bool) -> None:
    """Compressed and plain batches, erased by the kernel; an order ends within the log."""
    rng = random.Random(seed)
    bucket = Bucket(limits=ManifestLimits(entries=4, page_refs=2))
    bucket.topic("events")
    key_of: dict[int, bytes | None] = {}
    for _ in range(11):
        batches = []
        base = bucket.end("events")
        for _ in range(rng.randint(1, 5)):
            names = [rng.choice([None, *(b"key-%d" % n for n in range(6))]) for _ in range(rng.randint(1, 6))]
            key_of.update({base + n: name for n, name in enumerate(names)})
            batches.append(batch(rng, base, names))
            base += len(names)
        bucket.add("events", 0, batches)
    end = bucket.end("events")
    times = times_of(bucket, end)
    until = rng.randint(end // 2, end)
    erased = {b"key-1", b"key-4"} if seed % 3 else {name for name in key_of.values() if name is not None}
    hashes = b"".join(sorted(hash_key(SECRET, name) for name in erased))
    keys = ErasureKeys.of(SECRET, hashes)
    place = HeadKey(bucket.topic_id("events"), 0)
    rewriter = Rewriter(bucket.store, place, seed, block_bytes=600)
    for one in rewriter.segments():
        rewriter.erase_keys(one.base_offset, one.last_offset, keys, until, keeps_all=keeps_all)
    base, last = run_of(rewriter, rng)
    rewriter.merge(base, last)
    left = [n for n in range(end) if key_of[n] not in erased or n >= until]

    report = fsck(copy_of(bucket.store))
    assert [one for one in report.errors if one.where.startswith("data/")] == []
    assert report.records == len(left)

    tip = TIP._replace(topic_id=place.topic_id, topic="events", partition=0)
    key = rewriter.manifest().stored_key or ""
    with reading(bucket.store) as reader:
        for start in (0, *(rng.randrange(end) for _ in range(8))):
            at, seen = start, []
            while at < end:
                got = reader.read(tip, key, at, rng.randint(1, 2_000)).result(20)
                seen += [one.offset for data in got.data for one in iter_records(bytes(data))]
                at = got.next_offset
            assert [n for n in seen if n >= start] == [n for n in left if n >= start]
        for _ in range(20):
            stamp = START_MS + rng.randrange(10 * end)
            newer = [n for n in left if times[n] >= stamp]
            found = reader.offset_for_timestamp(tip, key, stamp).result(20)
            assert (found and (found.timestamp, found.offset)) == (
                (times[newer[0]], newer[0]) if newer else None
            )
    for options in ({}, {"fetchBytes": "1m", "batchRows": "7"}):
        assert spark_offsets(bucket, **options) == left
    begin = rng.randrange(end)
    where = f"offset >= {begin}"
    assert spark_offsets(bucket, where=where) == [n for n in left if n >= begin]


def copy_of(store: MemoryStore) -> MemoryStore:
    """The same objects in a store that may be listed."""
    made = MemoryStore(SystemThreads())
    for info in MemoryStore.list(store, ""):
        made.put(info.key, store.get(info.key, max_size=1 << 30))
    return made


def times_of(bucket: Bucket, end: int) -> dict[int, int]:
    place = HeadKey(bucket.topic_id("events"), 0)
    found = {}
    for one in Rewriter(bucket.store, place).segments():
        for record in iter_records(bytes(bucket.store.get_range(one.key, 0, one.log_length))):
            found[record.offset] = record.timestamp
    assert len(found) == end
    return found


def spark_offsets(bucket: Bucket, where: str | None = None, **options: str) -> list[int]:
    """The offsets that tasks of Spark read, with the bytes of each record, in the order of the splits."""
    more = {} if where is None else {"where": where}
    read = options_of(subscribe="events", **options, **more)
    pytest.importorskip("pyarrow", reason="pyarrow is not installed: make spark")
    from service.spark.read.split_reader import read_split

    found: list[int] = []
    columns = (ReadColumn("offset", nullable=False), ReadColumn("value", nullable=True))
    for split in bucket.plan(subscribe="events", **options, **more):
        for rows in read_split(bucket.store, split, read, columns):
            for offset, value in zip(
                rows.column("offset").to_pylist(), rows.column("value").to_pylist(), strict=True
            ):
                assert value == b"value %d" % offset
                found.append(offset)
    return sorted(found)
