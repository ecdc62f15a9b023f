"""Aborted transactions of cold reads: which rows, from how many objects, damaged ones refused by name."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from service.base.errors import CorruptionError
from service.base.threads import SystemThreads
from service.base.types import Buffer
from service.records.txn_rows import ROW, AbortedEntry, encode_row
from service.remote.format.manifest import SegmentEntry
from service.remote.format.segment_object import OpenSegment
from service.remote.reading.aborted import AbortedIndex, AbortedRows, AbortedSearch, Indexes, TooManyRows
from service.remote.reading.object_reader import open_footer_of
from service.remote.reading.reader import RemoteReader
from service.remote.stores.memory_store import MemoryStore
from tests.support.transactional_log import TransactionalLog, random_log
from tests.support.world import make_world
from tests.unit.remote.archive import TIP, Archive, index_of


class CountingStore(MemoryStore):
    """Counts ranged reads by key."""

    def __init__(self) -> None:
        super().__init__(SystemThreads())
        self.ranges: Counter[str] = Counter()

    def get_range(self, key: str, start: int, length: int) -> Buffer:
        self.ranges[key] += 1
        return super().get_range(key, start, length)


class World:
    """An archive of transactions and a reader."""

    def __init__(self) -> None:
        self.store = CountingStore()
        self.archive = Archive(self.store)
        self.reader = self.new_reader()

    def new_reader(self) -> RemoteReader:
        return RemoteReader(
            self.store, make_world(seed=5), threads=2, cache_bytes=4 << 20, chunk_bytes=64 << 10
        )

    def cold(self) -> None:
        """Begin anew with an empty cache."""
        self.reader.close()
        self.reader = self.new_reader()
        self.store.ranges.clear()

    def start(self, fetch_offset: int, bound: int) -> Future[AbortedRows]:
        return self.reader.aborted(TIP, self.archive.manifest_key, fetch_offset, bound)

    def aborted(self, fetch_offset: int, bound: int) -> AbortedRows:
        return self.start(fetch_offset, bound).result(20)

    def read(self, offset: int, max_bytes: int = 1 << 20) -> int:
        return self.reader.read(TIP, self.archive.manifest_key, offset, max_bytes).result(20).next_offset


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.reader.close()


def two_segments(world: World, *, is_older: bool = False) -> TransactionalLog:
    """7 begins at 0 and is aborted at 6, in the second segment; 8 at 1 to 3; 9 from 7 to 8."""
    log = TransactionalLog()
    log.write(7)
    log.write(8, 2)
    log.end(8, is_commit=False)
    log.plain(2)
    log.end(7, is_commit=False)
    log.write(9)
    log.end(9, is_commit=False)
    world.archive.add_transactions(log, 4, is_older=is_older)
    world.archive.add_transactions(log, 9, is_older=is_older)
    return log


OF_8 = AbortedEntry(8, 1, 3, 0)
OF_7 = AbortedEntry(7, 0, 6, 7)
OF_9 = AbortedEntry(9, 7, 8, 9)


@pytest.mark.parametrize("is_older", [False, True])
@pytest.mark.parametrize(
    ("fetch_offset", "bound", "expected"),
    [
        (0, 1, [OF_7]),
        (0, 4, [OF_8, OF_7]),
        (0, 9, [OF_8, OF_7, OF_9]),
        (4, 7, [OF_7]),
        (4, 8, [OF_7, OF_9]),
        (7, 9, [OF_9]),
    ],
)
def test_rows_are_those_that_overlap_the_range_also_with_a_marker_in_a_later_segment(
    world: World, is_older: bool, fetch_offset: int, bound: int, expected: list[AbortedEntry]
) -> None:
    two_segments(world, is_older=is_older)
    found = world.aborted(fetch_offset, bound)
    # In this order the markers are; 8 ended before 7, but is not touched by [0, 1).
    assert (found.rows, found.is_complete) == (expected, True)


def test_a_transaction_that_is_open_at_the_archives_end_is_left_to_the_local_index(world: World) -> None:
    log = TransactionalLog()
    log.write(7)
    log.write(8)
    log.end(8, is_commit=False)
    world.archive.add_transactions(log, 3)
    assert world.aborted(0, 3) == ([AbortedEntry(8, 1, 2, 0)], False)
    assert world.aborted(0, 1) == ([], False)


def test_a_range_behind_the_archive_is_left_to_the_local_index(world: World) -> None:
    two_segments(world)
    assert world.aborted(9, 12) == ([], False)
    assert world.aborted(7, 12) == ([OF_9], False)


def test_a_plain_chain_costs_a_read_of_committed_records_nothing(world: World) -> None:
    log = TransactionalLog()
    for _ in range(20):
        log.plain(10)
    for end in (50, 100, 200):
        world.archive.add_transactions(log, end)
    assert all(entry.open_from == -1 for entry in world.archive.manifest.entries)
    offset = 0
    while offset < 200:
        offset = world.read(offset)
    before = world.store.ranges.copy()
    future = world.start(0, 200)
    assert future.done()
    assert future.result() == ([], True)
    assert world.store.ranges == before


def test_an_empty_range_asks_nothing(world: World) -> None:
    two_segments(world)
    world.cold()
    future = world.start(4, 4)
    assert future.done()
    assert future.result() == ([], True)
    assert not world.store.ranges


def test_aborted_rows_cost_one_get_and_then_none(world: World) -> None:
    two_segments(world)
    world.read(4, 1 << 20)
    before = world.store.ranges.total()
    assert world.aborted(4, 9).rows == [OF_7, OF_9]
    assert world.store.ranges.total() == before + 1
    future = world.start(7, 9)
    assert future.done()
    assert world.store.ranges.total() == before + 1


def test_many_reads_of_one_index_are_one_download(world: World) -> None:
    two_segments(world)
    world.read(4, 1 << 20)
    before = world.store.ranges.total()
    started = [world.start(4, 9) for _ in range(20)]
    assert {tuple(one.result(20).rows) for one in started} == {(OF_7, OF_9)}
    assert world.store.ranges.total() == before + 1


def test_a_segment_says_that_nothing_is_open_at_its_end_without_its_snapshot(world: World) -> None:
    log = TransactionalLog()
    log.write(7)
    log.end(7, is_commit=True)
    log.plain()
    world.archive.add_transactions(log, 2)
    world.archive.add_transactions(log, 3)
    assert [entry.open_from for entry in world.archive.manifest.entries] == [2, -1]
    world.read(0, 1 << 20)
    before = world.store.ranges.total()
    assert world.aborted(0, 2) == ([], True)
    assert world.store.ranges.total() == before


def test_a_million_aborted_transactions_cost_one_get_and_a_search(world: World) -> None:
    """Rows of a segment are found by bisection; those that are not asked for are never decoded."""
    log = TransactionalLog()
    for _ in range(3_000):
        log.write(7)
        log.end(7, is_commit=False)
    world.archive.add_transactions(log, 6_000)
    next_offset = world.read(3_000, 1_000)
    before = world.store.ranges.total()
    found = world.aborted(3_000, next_offset)
    assert world.store.ranges.total() == before + 1
    assert found.rows == log.overlapping(3_000, next_offset)
    assert found.is_complete


def test_very_many_rows_are_looked_at_elsewhere(world: World) -> None:
    """More than a turn of the loop should look at: even with all in memory the answer comes from the pool."""
    log = TransactionalLog()
    log.write(1)
    for _ in range(2_000):
        log.write(7)
        log.end(7, is_commit=False)
    log.end(1, is_commit=False)
    world.archive.add_transactions(log, log.end_offset)
    assert world.aborted(0, 1).rows == [log.rows[-1]]
    assert len(world.aborted(0, 4_000).rows) == 2_001
    search, store = AbortedSearch(0, 4_000), world.archive.store
    index = AbortedIndex(index_of(log, 0, log.end_offset), 0, log.end_offset - 1)

    def opened(entry: SegmentEntry) -> OpenSegment:
        return OpenSegment(entry, open_footer_of(store, entry))

    indexes = Indexes(opened, lambda segment: index, lambda segment: b"")
    with pytest.raises(TooManyRows):
        search.go_on(world.archive.manifest, world.archive.load, indexes)
    search.most_rows = None
    assert len(search.go_on(world.archive.manifest, world.archive.load, indexes).rows) == 2_001


def sound(count: int = 3_000) -> list[AbortedEntry]:
    return [AbortedEntry(7, 2 * i, 2 * i + 1, 2 * i + 2) for i in range(count)]


def test_sound_rows_are_taken() -> None:
    rows = sound()
    index = AbortedIndex(b"".join(map(encode_row, rows)), 0, 6_000)
    assert list(index.ended_from(0)) == rows
    assert list(index.ended_from(3_000)) == rows[1_500:]
    assert list(AbortedIndex(b"", 5, 4).ended_from(0)) == []


@pytest.mark.parametrize("at", [0, 1, 1023, 1024, 2999])
@pytest.mark.parametrize(
    "wrong",
    [
        lambda row: row._replace(producer_id=-1),
        lambda row: row._replace(first_offset=-1),
        lambda row: row._replace(first_offset=row.last_offset),
        lambda row: row._replace(last_offset=row.last_offset + 50_000),
        lambda row: row._replace(first_offset=0, last_offset=max(row.last_offset - 2, 0)),
        lambda row: row._replace(last_stable_offset=row.last_offset + 2),
        lambda row: row._replace(last_stable_offset=-1),
    ],
)  # fmt: skip
def test_rows_that_cannot_be_are_refused(at: int, wrong) -> None:  # type: ignore[no-untyped-def]
    rows = sound()
    rows[at] = wrong(rows[at])
    with pytest.raises(CorruptionError, match="transaction index"):
        AbortedIndex(b"".join(map(encode_row, rows)), 0, 6_000)


def test_torn_rows_and_unknown_versions_are_refused() -> None:
    data = b"".join(map(encode_row, sound(3)))
    with pytest.raises(CorruptionError, match="whole rows"):
        AbortedIndex(data[:-1], 0, 6)
    with pytest.raises(CorruptionError, match="row 1, of version 1"):
        AbortedIndex(data[: ROW.size] + b"\0\1" + data[ROW.size + 2 :], 0, 6)
    with pytest.raises(CorruptionError, match="row 0"):
        AbortedIndex(data, 2, 6)


@pytest.mark.parametrize("seed", range(8))
def test_a_damaged_index_is_refused_by_the_name_of_its_object(world: World, seed: int) -> None:
    two_segments(world)
    entry = world.archive.manifest.entries[1]
    data = bytearray(world.store.get(entry.key, max_size=1 << 20))
    rng = random.Random(seed)
    begin = data.index(encode_row(OF_7))
    data[begin + rng.randrange(2 * ROW.size)] ^= 1 << rng.randrange(8)
    world.store.put(entry.key, bytes(data))
    world.cold()
    with pytest.raises(CorruptionError, match=entry.key):
        world.aborted(4, 9)


def test_an_index_of_another_segment_is_refused_by_name(world: World) -> None:
    log = TransactionalLog()
    log.write(7)
    log.end(7, is_commit=False)
    log.write(7)
    log.end(7, is_commit=False)
    world.archive.add_transactions(log, 2)
    entry = world.archive.add_transactions(log, 4, rows=encode_row(log.rows[0]))
    with pytest.raises(CorruptionError, match=entry.key):
        world.aborted(2, 4)


@pytest.mark.parametrize("seed", range(30))
def test_any_range_of_any_log_over_several_segments_has_the_rows_that_a_scan_finds(seed: int) -> None:
    rng = random.Random(seed)
    log = random_log(rng, 120)
    borders = [batch.last_offset + 1 for batch in log.batches]
    ends = sorted(rng.sample(borders, rng.randint(1, 8)))
    world = World()
    try:
        for end in ends:
            world.archive.add_transactions(log, end, is_older=rng.random() < 0.3)
        if rng.random() < 0.3:
            world.archive.drop_before(rng.randrange(ends[-1]))
        start, archived = world.archive.manifest.start_offset, ends[-1]
        for _ in range(40):
            fetch_offset = rng.randrange(start, archived)
            bound = rng.choice([border for border in borders if border > fetch_offset])
            found = world.aborted(fetch_offset, bound)
            expected = log.overlapping(fetch_offset, bound)
            inside = [entry for entry in world.archive.manifest.entries if entry.base_offset < bound]
            covered = [entry for entry in inside if entry.last_offset >= fetch_offset]
            begin, end = covered[0].base_offset, covered[-1].last_offset + 1
            if found.is_complete and not log.has_transactions(begin, end):
                assert found.rows == []
            elif found.is_complete:
                assert found.rows == expected
            else:
                assert found.rows == [row for row in expected if row.last_offset < archived]
                assert (
                    bound > archived
                    or any(first < bound for first in log.open_at(archived).values())
                    or (world.archive.manifest.entries[-1].open_from < 0)
                )
    finally:
        world.reader.close()


@pytest.mark.parametrize("seed", range(10))
def test_a_read_ends_before_any_bound_although_the_archive_goes_on(seed: int) -> None:
    rng = random.Random(seed)
    log = random_log(rng, 60)
    world = World()
    try:
        borders = [batch.last_offset + 1 for batch in log.batches]
        for end in sorted({*rng.sample(borders, 3), borders[-1]}):
            world.archive.add_transactions(log, end)
        for _ in range(40):
            offset, bound = rng.randrange(borders[-1]), rng.choice(borders)
            got = world.reader.read(TIP, world.archive.manifest_key, offset, 1 << 20, bound).result(20)
            first = next(batch.base_offset for batch in log.batches if batch.last_offset >= offset)
            if bound <= first:
                assert b"".join(got.data) == b""
            else:
                assert first <= offset < got.next_offset <= bound
                wanted = [b.data for b in log.batches if first <= b.base_offset < got.next_offset]
                assert b"".join(got.data) == b"".join(wanted)
    finally:
        world.reader.close()
