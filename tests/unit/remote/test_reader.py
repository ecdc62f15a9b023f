"""The cold reader over a store that may be slow, failing or lying."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from service.base.clock import ManualClock
from service.base.errors import CorruptionError, RequestError
from service.base.threads import SystemThreads
from service.records.batch import iter_headers, read_header
from service.records.compaction import empty_batch
from service.remote.format.manifest import ManifestLimits
from service.remote.format.segment_object import OpenSegment
from service.remote.reading.object_reader import open_footer_of
from service.remote.reading.reader import RemoteReader
from service.remote.reading.resources import ChunkResource, Guessed, GuessResource
from service.remote.stores.errors import ObjectNotFound, ReaderClosed, StoreUnavailable
from service.remote.stores.memory_store import MemoryStore
from tests.support.world import make_world
from tests.unit.remote.archive import START_MS, TIP, Archive, batch_of
from tests.unit.remote.slow_store import SlowStore

CHUNK = 16 << 10


class World:
    """An archive, the store in front of it, and a reader."""

    def __init__(self) -> None:
        self.store = SlowStore(MemoryStore(SystemThreads()))
        self.archive = Archive(self.store.inner)
        self.clock = ManualClock()
        self.reader = self.new_reader()

    def new_reader(self, **options: Any) -> RemoteReader:
        settings = {"threads": 3, "cache_bytes": 64 * CHUNK, "chunk_bytes": CHUNK, "attempts": 2, **options}
        return RemoteReader(self.store, make_world(self.clock, seed=5), **settings)

    def start(self, offset: int, max_bytes: int = CHUNK) -> Future[Any]:
        return self.reader.read(TIP, self.archive.manifest_key, offset, max_bytes)

    def read(self, offset: int, max_bytes: int = CHUNK) -> bytes:
        return b"".join(self.start(offset, max_bytes).result(20).data)


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.store.gate.set()
    world.reader.close()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.002)


def settle(world: World) -> None:
    def quiet() -> bool:
        downloads = world.reader.stats().downloads
        return downloads.in_flight == 0 and downloads.busy_threads == 0

    until(quiet)


def test_a_reader_that_goes_through_the_log_gets_every_byte_once_and_in_order(world: World) -> None:
    for _ in range(5):
        world.archive.add_segment(40)
    offset, got = 0, bytearray()
    while offset < world.archive.next_offset:
        read = world.start(offset, 5_000).result(20)
        data = b"".join(read.data)
        headers = list(iter_headers(data))
        assert headers[0].base_offset == offset
        assert len(data) <= 5_000
        assert read.next_offset == headers[-1].last_offset + 1
        got += data
        offset = read.next_offset
    assert got == world.archive.log


@pytest.mark.parametrize("offset", [0, 1, 4, 5, 99, 123, 199])
def test_a_read_begins_with_the_batch_that_holds_the_offset(world: World, offset: int) -> None:
    world.archive.add_segment(20)
    world.archive.add_segment(20)
    data = world.read(offset, 2_000)
    start = world.archive.position_of(offset)
    assert data == world.archive.log[start : start + len(data)]
    assert data


@pytest.mark.parametrize("max_bytes", [0, 1, 60])
def test_the_first_batch_comes_whole_even_when_it_is_too_large(world: World, max_bytes: int) -> None:
    world.archive.add_segment(10)
    data = world.read(12, max_bytes)
    assert [header.base_offset for header in iter_headers(data)] == [10]


def test_cached_chunks_are_returned_at_once_as_views(world: World) -> None:
    world.archive.add_segment(30)
    world.read(0)
    settle(world)
    future = world.start(0)
    assert future.done()
    view = future.result().data[0]
    assert isinstance(view, memoryview)
    assert view.readonly
    assert world.start(0).result().data[0].obj is view.obj


def test_many_requests_for_one_chunk_are_one_download(world: World) -> None:
    entry = world.archive.add_segment(20)
    world.store.gate.clear()
    futures = [world.start(offset) for offset in range(50)]
    until(lambda: world.store.arrived() == 1)
    world.store.gate.set()
    for future in futures:
        assert future.result(20).data
    settle(world)
    assert set(world.store.reads.values()) == {1}, world.store.reads
    assert len(world.store.ranges(entry.key)) == 2, "its footer and its one chunk"


def test_a_download_outlives_the_request_that_its_client_gave_up(world: World) -> None:
    world.archive.add_segment(20)
    world.store.gate.clear()
    future = world.start(0)
    assert not future.cancel()
    del future
    world.store.gate.set()
    settle(world)
    assert world.start(0).done()


def test_downloads_run_side_by_side_on_every_thread(world: World) -> None:
    entries = [world.archive.add_segment(10) for _ in range(6)]
    for entry in entries[:3]:
        world.read(entry.base_offset, 1)
    world.store.reads.clear()
    world.store.gate.clear()
    futures = [world.start(entry.base_offset, 1) for entry in entries[3:]]
    until(lambda: world.store.arrived(".seg") == 3)
    world.store.gate.set()
    assert all(future.result(20).data for future in futures)


def test_chunks_are_cut_at_block_borders_near_the_target_size(world: World) -> None:
    entry = world.archive.add_segment(200)
    for offset in range(0, 1000, 5):
        world.read(offset, 1)
    settle(world)
    guess, *chunks, _ = world.store.ranges(entry.key)
    assert guess == (0, CHUNK), "before it was known where blocks end"
    first = chunks[0][0]
    assert CHUNK - 4096 - 700 <= first <= CHUNK
    assert [position for position, _ in chunks] == [first, *(p + n for p, n in chunks)][:-1]
    assert first + sum(length for _, length in chunks) == entry.log_length
    assert all(CHUNK - 4096 - 700 <= length <= CHUNK for _, length in chunks[:-1])


def test_one_budget_bounds_what_is_cached_and_what_is_on_its_way(world: World) -> None:
    world.reader.close()
    world.reader = world.new_reader(threads=8, cache_bytes=4 * CHUNK)
    for _ in range(4):
        world.archive.add_segment(400)
    offsets = random.Random(3).sample(range(0, world.archive.next_offset, 5), 60)
    futures = [world.start(offset, 1) for offset in offsets]
    while not all(future.done() for future in futures):
        downloads = world.reader.stats().downloads
        assert downloads.cached_bytes + downloads.in_flight_bytes <= 4 * CHUNK
    for offset, future in zip(offsets, futures, strict=True):
        assert next(iter_headers(future.result().data[0])).base_offset == offset
    settle(world)
    assert world.reader.stats().downloads.cached_bytes <= 4 * CHUNK
    assert world.store.peak_bytes <= 4 * CHUNK + 8 * 4096, "chunks, and footers on each thread"


def test_a_chunk_larger_than_the_budget_is_served_alone(world: World) -> None:
    world.reader.close()
    world.reader = world.new_reader(cache_bytes=2048)
    world.archive.add_segment(30)
    futures = [world.start(offset, 700) for offset in (0, 60, 100, 140)]
    for offset, future in zip((0, 60, 100, 140), futures, strict=True):
        assert next(iter_headers(future.result(20).data[0])).base_offset == offset


def test_the_oldest_chunks_make_room_for_new_ones(world: World) -> None:
    world.reader.close()
    world.reader = world.new_reader(cache_bytes=4 * CHUNK)
    world.archive.add_segment(400)
    world.read(0, 1)
    for offset in range(500, 2000, 100):
        world.read(offset, 1)
    before = world.store.arrived()
    world.read(0, 1)
    assert world.store.arrived() > before


def test_read_ahead_grows_with_sequential_reads_and_crosses_segments(world: World) -> None:
    entries = [world.archive.add_segment(60) for _ in range(8)]
    read = world.start(0, CHUNK).result(20)
    settle(world)
    assert world.reader.stats().downloads.read_ahead == 0, "one read is no sequence"
    for _ in range(3):
        read = world.start(read.next_offset, CHUNK).result(20)
        settle(world)
    assert read.next_offset < entries[3].base_offset
    assert world.store.ranges(entries[3].key), "the next segments are on their way"
    ahead = world.reader.stats().downloads
    while read.next_offset < world.archive.next_offset:
        future = world.start(read.next_offset, CHUNK)
        read = future.result(20)
        settle(world)
    assert world.reader.stats().downloads.misses - ahead.misses <= 1


def test_reads_at_random_places_read_nothing_ahead(world: World) -> None:
    world.archive.add_segment(400)
    for offset in (1500, 20, 700, 300, 1100):
        world.read(offset, 100)
    settle(world)
    assert world.reader.stats().downloads.read_ahead == 0


def test_a_client_that_asks_again_after_a_time_out_keeps_its_stream(world: World) -> None:
    world.archive.add_segment(400)
    offset = world.start(0, CHUNK).result(20).next_offset
    offset = world.start(offset, CHUNK).result(20).next_offset
    settle(world)
    before = world.reader.stats()
    for _ in range(3):
        again = world.start(offset, CHUNK).result(20)
    assert world.reader.stats().streams == before.streams == 1
    settle(world)
    ahead = world.reader.stats().downloads.read_ahead
    world.start(again.next_offset, CHUNK).result(20)
    settle(world)
    assert world.reader.stats().downloads.read_ahead > ahead


def test_a_result_crosses_chunks_and_segments_that_are_in_memory(world: World) -> None:
    world.archive.add_segment(40)
    world.archive.add_segment(40)
    for offset in range(0, 400, 5):
        world.read(offset, 1)
    settle(world)
    assert world.read(0, 1 << 20) == world.archive.log


def test_a_missing_object_is_an_error_that_names_it_and_nothing_else_suffers(world: World) -> None:
    gone = world.archive.add_segment(10)
    world.archive.add_segment(10)
    world.store.delete([gone.key])
    with pytest.raises(ObjectNotFound, match=gone.key):
        world.start(3).result(20)
    assert world.read(50)


def test_a_missing_manifest_is_an_error(world: World) -> None:
    world.archive.add_segment(10)
    world.store.delete([world.archive.manifest_key])
    with pytest.raises(ObjectNotFound):
        world.start(3).result(20)


def test_the_manifest_of_another_partition_is_refused(world: World) -> None:
    world.archive.add_segment(10)
    other = TIP._replace(partition=TIP.partition + 1)
    key = world.archive.manifest_key
    for future in (
        world.reader.read(other, key, 0, 1),
        world.reader.offset_for_timestamp(other, key, 0),
        world.reader.max_timestamp_offset(other, key),
    ):
        with pytest.raises(CorruptionError, match="not a manifest of"):
            future.result(20)


def test_requests_racing_with_close_all_end() -> None:
    for seed in range(15):
        world = World()
        world.archive.add_segment(60)
        rng = random.Random(seed)
        futures: list[Future[Any]] = []

        def ask(world: World = world, rng: random.Random = rng, futures: list[Future[Any]] = futures) -> None:
            futures.extend(world.start(rng.randrange(300), rng.choice([1, CHUNK])) for _ in range(40))

        asking = threading.Thread(target=ask)
        asking.start()
        time.sleep(rng.random() * 0.003)
        world.reader.close()
        asking.join(20)
        for future in futures:
            error = future.exception(20)
            assert error is None or isinstance(error, ReaderClosed)


def test_a_corrupt_chunk_is_an_error_with_key_and_offsets_and_is_not_kept(world: World) -> None:
    entry = world.archive.add_segment(10)

    def flip(key: str, data: bytes) -> bytes:
        if key == entry.key and len(data) > 4096:
            return data[:3000] + bytes([data[3000] ^ 1]) + data[3001:]
        return data

    world.store.interfere = flip
    with pytest.raises(CorruptionError, match=rf"{entry.key}.*offsets 0 to \d+: wrong checksum"):
        world.start(3).result(20)
    world.store.interfere = lambda key, data: data
    assert world.read(0, 1 << 20) == world.archive.log


def test_a_bit_that_flips_on_the_way_down_costs_a_second_download_and_nothing_else(world: World) -> None:
    entry = world.archive.add_segment(10)
    flips = iter([1])

    def flip(key: str, data: bytes) -> bytes:
        if key == entry.key and len(data) > 4096:
            return data[:3000] + bytes([data[3000] ^ next(flips, 0)]) + data[3001:]
        return data

    world.store.interfere = flip
    assert world.read(0, 1 << 20) == world.archive.log


@pytest.mark.parametrize("cut", [0, 1, 700])
def test_a_store_that_answers_short_is_found_out(world: World, cut: int) -> None:
    entry = world.archive.add_segment(10)
    world.store.interfere = lambda key, data: data[: len(data) // 2 + cut] if key == entry.key else data
    with pytest.raises(CorruptionError, match=entry.key):
        world.start(3).result(20)


def test_a_footer_other_than_the_manifest_names_is_refused(world: World) -> None:
    first, second = world.archive.add_segment(10), world.archive.add_segment(10)
    data = world.store.inner.get(second.key, max_size=1 << 20)
    world.store.put(first.key, data)
    with pytest.raises(CorruptionError, match=first.key):
        world.start(3).result(20)


def test_a_store_that_fails_for_a_while_is_asked_again(world: World) -> None:
    world.archive.add_segment(10)
    asked: set[tuple[str, int]] = set()

    def fail(key: str, data: bytes) -> bytes:
        if (key, len(data)) not in asked:
            asked.add((key, len(data)))
            raise StoreUnavailable("busy")
        return data

    world.store.interfere = fail
    assert world.read(0, 1 << 20) == world.archive.log
    assert world.reader.stats().downloads.retries == 3, "of the manifest, the footer, and the log beside it"


def test_a_segments_data_and_footer_are_downloaded_together(world: World) -> None:
    entry = world.archive.add_segment(10)

    def hold(key: str, data: bytes) -> bytes:
        if key == world.archive.manifest_key:
            world.store.gate.clear()
        return data

    world.store.interfere = hold
    future = world.start(30)
    until(lambda: world.store.arrived() == 3)
    world.store.gate.set()
    assert next(iter_headers(future.result(20).data[0])).base_offset == 30
    assert world.store.ranges(entry.key) == [
        (0, entry.log_length),
        (entry.footer_position, entry.size - entry.footer_position),
    ]


def test_a_part_that_was_not_guessed_is_asked_for(world: World) -> None:
    entry = world.archive.add_segment(60)
    segment = OpenSegment(entry, open_footer_of(world.store, entry))
    last = len(segment.footer.blocks) - 1
    middle = segment.footer.blocks[last // 2]
    begins_late = Guessed(middle.position + 1, bytes(entry.log_length - middle.position - 1))
    ends_early = Guessed(0, bytes(middle.end - 1))
    for guessed, block in ((begins_late, last // 2), (ends_early, last // 2), (ends_early, last)):
        chunk = ChunkResource(segment, block, CHUNK, lambda _: False, guessed)
        assert chunk.guessed() is None
        assert chunk.load(world.store)[0].range.first_block == block
    wrong = ChunkResource(segment, 0, CHUNK, lambda _: False, Guessed(0, bytes(entry.log_length)))
    assert wrong.guessed() is None, "its checksums are not those of the footer"


def test_an_unlikely_byte_range_is_not_guessed(world: World) -> None:
    entry = world.archive.add_segment(10)._replace(base_offset=0, last_offset=99_999, log_length=64 << 20)
    for offset in (1, 50_000, 99_999):
        guess = GuessResource.for_offset(entry, offset, 4 << 20)
        assert guess is not None
        assert guess.position <= (offset << 26) // 100_000 - (1 << 20) or guess.position == 0
        assert guess.position + guess.length >= min((offset << 26) // 100_000 + (1 << 20), 64 << 20)
    assert GuessResource.for_offset(entry, 50_000, 1 << 20) is None
    first = GuessResource.for_offset(entry, 0, 1 << 20)
    assert first is not None
    assert (first.position, first.length) == (0, 1 << 20), "the first block begins where the log does"


def test_a_store_that_keeps_failing_is_given_up_and_comes_back(world: World) -> None:
    world.archive.add_segment(10)

    def fail(key: str, data: bytes) -> bytes:
        raise StoreUnavailable("down")

    world.store.interfere = fail
    with pytest.raises(StoreUnavailable, match="down"):
        world.start(0).result(20)
    world.store.interfere = lambda key, data: data
    assert world.read(0, 1 << 20) == world.archive.log


def test_an_offset_outside_the_manifest_is_out_of_range(world: World) -> None:
    world.archive.add_segment(10)
    world.archive.add_segment(10)
    world.archive.drop_before(50)
    for offset in (49, 100, 1000):
        with pytest.raises(RequestError) as e:
            world.start(offset).result(20)
        assert e.value.code is ErrorCode.offset_out_of_range
    assert next(iter_headers(world.read(50))).base_offset == 50


def test_a_manifest_that_this_process_has_written_is_not_fetched(world: World) -> None:
    world.archive.add_segment(10)
    world.archive.add_segment(10)
    world.read(7)
    settle(world)
    before = world.store.arrived()
    for _ in range(3):
        world.archive.add_segment(10)
        key = world.archive.manifest_key
        world.reader.wrote(key, world.store.inner.get(key, max_size=1 << 20))
        assert world.read(12)
    assert world.store.arrived() == before
    world.reader.wrote("HEAD", b"not one of those that are written once")
    world.archive.add_segment(10)
    world.read(12)
    assert world.store.arrived() == before + 1


def test_pages_are_read_only_when_an_offset_lies_in_them(world: World) -> None:
    world.reader.close()
    world.reader = world.new_reader(cache_bytes=8 << 20)
    world.archive.limits = ManifestLimits(entries=4, page_refs=2)
    for _ in range(40):
        world.archive.add_segment(2)
    assert {ref.level for ref in world.archive.manifest.pages} >= {0, 1, 2}
    world.read(world.archive.next_offset - 1, 1)
    assert world.store.arrived(".json.gz") == 1, "the manifest alone"
    for offset in range(0, world.archive.next_offset, 7):
        start = world.archive.position_of(offset)
        assert world.archive.log.startswith(world.read(offset, 1), start)
    assert max(world.store.reads.values()) == 1


def test_searching_by_time_finds_the_first_record_not_older(world: World) -> None:
    world.archive.limits = ManifestLimits(entries=2, page_refs=2)
    for epoch in range(6):
        world.archive.add_segment(10, epoch=epoch)
    expected = [
        (header.base_offset + i, header.base_timestamp + i, header.partition_leader_epoch)
        for header in iter_headers(world.archive.log)
        for i in range(5)
    ]
    key = world.archive.manifest_key
    for timestamp in (0, START_MS, START_MS + 2, START_MS + 5, START_MS + 31_000, START_MS + 59_004):
        found = world.reader.offset_for_timestamp(TIP, key, timestamp).result(20)
        assert found == next(row for row in expected if row[1] >= timestamp)
    assert world.reader.offset_for_timestamp(TIP, key, START_MS + 59_005).result(20) is None
    later = world.reader.offset_for_timestamp(TIP, key, START_MS, from_offset=133).result(20)
    assert later == expected[133]
    assert world.reader.max_timestamp_offset(TIP, key).result(20) == expected[-1]


@pytest.mark.parametrize(("gone", "offset"), [({3}, 1), ({1, 3}, 5), ({3, 5}, 1), (set(range(6)), None)])
def test_the_newest_record_is_found_though_an_erasure_has_taken_a_newer_one(
    world: World, gone: set[int], offset: int | None
) -> None:
    """What is left of a batch keeps the greatest timestamp that it had."""
    log = bytearray()
    for at, ms in enumerate([30, 70, 40, 90, 20, 50]):
        one = batch_of(at, 1, 10, 0, START_MS + ms)
        log += empty_batch(read_header(one)) if at in gone else one
    world.archive.add_log(bytes(log))
    found = world.reader.max_timestamp_offset(TIP, world.archive.manifest_key).result(20)
    assert (None if found is None else found.offset) == offset


def test_searching_by_time_ignores_what_was_dropped(world: World) -> None:
    world.archive.add_segment(10)
    world.archive.add_segment(10)
    world.archive.drop_before(23)
    found = world.reader.offset_for_timestamp(TIP, world.archive.manifest_key, 0).result(20)
    assert found is not None
    assert found.offset == 23


def reading_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("remote-read")]


def test_closing_resolves_every_request_and_joins_the_threads() -> None:
    world = World()
    for _ in range(4):
        world.archive.add_segment(100)
    world.read(0)
    settle(world)
    world.store.gate.clear()
    futures = [world.start(offset, 10) for offset in range(100, 2000, 20)]
    search = world.reader.offset_for_timestamp(TIP, world.archive.manifest_key, START_MS + 200_000)
    closing = threading.Thread(target=world.reader.close)
    closing.start()
    world.store.gate.set()
    closing.join(20)
    assert not closing.is_alive()
    for future in [*futures, search]:
        assert future.done()
        assert future.exception() is None or isinstance(future.exception(), ReaderClosed)
    assert any(future.exception() for future in futures)
    assert not reading_threads()
    with pytest.raises(ReaderClosed):
        world.start(1900).result(20)


def test_closing_does_not_wait_for_ever_for_a_store_that_hangs() -> None:
    world = World()
    world.archive.add_segment(10)
    world.store.gate.clear()
    future = world.start(0)
    until(lambda: world.store.arrived() == 1)
    world.reader.close(timeout_s=0.05)
    assert isinstance(future.exception(1), ReaderClosed)
    world.store.gate.set()
    until(lambda: not reading_threads())  # the one that was left alone


def test_no_thread_is_started_before_the_first_read() -> None:
    world = World()
    assert not reading_threads()
    world.reader.close()
