"""Memory of cold reads, and repeated downloads."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from service.remote.reading.chunk_cache import ChunkCache, Slot
from service.remote.reading.read_ahead import IDLE_MS
from tests.unit.remote.test_reader import CHUNK, TIP, World, settle, until

BLOCK = CHUNK // 4


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.store.gate.set()
    world.reader.close()


def budget_of(cache_bytes: int) -> int:
    return cache_bytes - cache_bytes // 8


def with_cache(world: World, cache_bytes: int) -> int:
    world.reader.close()
    world.reader = world.new_reader(cache_bytes=cache_bytes)
    return budget_of(cache_bytes)


def test_64_readers_download_hardly_more_than_they_are_served(world: World) -> None:
    readers = 64
    with_cache(world, readers * 2 * BLOCK)
    entries = [world.archive.add_segment(24) for _ in range(readers)]
    at = [entry.base_offset for entry in entries]
    served = 0
    for _ in range(24):
        for n, entry in enumerate(entries):
            if at[n] <= entry.last_offset:
                read = world.reader.read(TIP, world.archive.manifest_key, at[n], 1_000).result(20)
                served += sum(map(len, read.data))
                at[n] = read.next_offset
    assert all(position == entry.last_offset + 1 for position, entry in zip(at, entries, strict=True))
    assert world.reader.stats().downloads.downloaded_bytes <= 1.3 * served


def test_a_read_that_took_too_long_keeps_no_chunk_for_a_stream_that_is_forgotten(world: World) -> None:
    first, second = (world.archive.add_segment(60) for _ in range(2))
    world.store.gate.clear()
    reads = [world.start(first.base_offset, 1_000)]
    world.clock.advance(IDLE_MS + 1)
    reads.append(world.start(second.base_offset, 1_000))
    world.store.gate.set()
    for read in reads:
        assert read.result(20).data
    settle(world)
    slots = set(world.reader._downloads._chunks._slots.values())
    assert sum(slot.readers for slot in slots) == 1


def test_clients_that_take_nothing_leave_room_for_the_next_one(world: World) -> None:
    budget = with_cache(world, 64 * CHUNK)
    entries = [world.archive.add_segment(60) for _ in range(65)]
    kept = []
    for entry in entries[:64]:
        share = world.reader.share()
        assert share > 0
        future = world.reader.read(TIP, world.archive.manifest_key, entry.base_offset, share)
        kept.append(future.result(20))
        held = world.reader.stats().downloads
        assert held.cached_bytes + held.in_flight_bytes <= budget
        assert held.sending_bytes <= budget // 2 + CHUNK
    settle(world)
    offset, got = entries[64].base_offset, bytearray()
    while offset <= entries[64].last_offset:
        share = world.reader.share()
        assert share > 0
        read = world.reader.read(TIP, world.archive.manifest_key, offset, share).result(20)
        got += b"".join(read.data)
        offset = read.next_offset
        read.hold.release()
    assert got == world.archive.log[world.archive.position_of(entries[64].base_offset) :]
    assert all(read.data for read in kept)


def test_a_small_slice_does_not_keep_its_chunk_in_memory(world: World) -> None:
    world.archive.add_segment(60)
    read = world.start(0, 1).result(20)
    size = sum(map(len, read.data))
    assert size < BLOCK
    assert world.reader.stats().downloads.sending_bytes == size


def test_memory_of_a_response_is_released_when_it_is_sent_or_dropped(world: World) -> None:
    world.archive.add_segment(60)
    before = world.reader.share()
    read = world.start(0).result(20)
    assert world.reader.share() < before
    read.hold.release()
    read.hold.release()
    assert world.reader.share() == before
    assert b"".join(read.data), "bytes live as long as somebody has them"
    future = world.start(0)
    future.result(20)
    assert world.reader.share() < before
    del future
    gc.collect()
    assert world.reader.share() == before


def test_memory_of_a_read_is_released_without_garbage_collection(world: World) -> None:
    """That looks rarely in a node, and chunks are large."""
    world.archive.add_segment(60)
    gc.collect()
    gc.disable()
    try:
        world.store.gate.clear()
        future = world.start(0)
        world.store.gate.set()
        read = future.result(20)
        settle(world)
        gone = weakref.ref(future)
        del future
        until(lambda: gone() is None)
        before = world.reader.stats().downloads.sending_bytes
        assert before
        del read
        until(lambda: world.reader.stats().downloads.sending_bytes == 0)
    finally:
        gc.enable()


def test_a_download_waits_for_room_and_goes_when_a_response_is_out(world: World) -> None:
    with_cache(world, 8 * CHUNK)
    entries = [world.archive.add_segment(60) for _ in range(24)]
    kept: list[Any] = []
    for entry in entries:
        future = world.reader.read(TIP, world.archive.manifest_key, entry.base_offset, CHUNK)
        kept.append(
            future.result(20)
        )  # none of them asks for its share: each has at least one chunk all the same
        settle(world)
    for read in kept:
        read.hold.release()
    assert world.reader.stats().downloads.sending_bytes == 0
    assert world.reader.stats().downloads.in_flight_bytes == 0


def slot(name: str, size: int = 10) -> Slot:
    return Slot(name, (name,), size)


def test_consumed_chunks_are_evicted_first_and_wanted_ones_last() -> None:
    cache = ChunkCache(40)
    wanted, idle, consumed, newest = (slot(name) for name in ("wanted", "idle", "consumed", "newest"))
    for one in (wanted, idle, consumed, newest):
        cache.put(one)
    cache.move(None, wanted, consumed=False)
    cache.mark_consumed(consumed)
    gone = []
    for name in ("a", "b", "c"):
        extra = slot(name)
        cache.put(extra)
        cache.move(None, extra, consumed=False)
        gone.append([one.chunk for one in (wanted, idle, consumed, newest) if not one.is_cached])
    assert gone == [["consumed"], ["idle", "consumed"], ["idle", "consumed", "newest"]]


def test_evicted_chunks_stay_accounted_while_they_are_held() -> None:
    cache = ChunkCache(20)
    held = slot("held")
    cache.put(held)
    cache.hold(held)
    cache.clear()
    assert (cache.cached_bytes, cache.used_bytes, cache.sending_bytes) == (0, 10, 10)
    cache.release([held], 0)
    assert cache.used_bytes == cache.sending_bytes == 0


@pytest.mark.parametrize("seed", range(20))
def test_the_account_is_right_after_whatever_happens(seed: int) -> None:
    rng, cache = random.Random(seed), ChunkCache(1_000)
    slots = [slot(str(n), rng.randrange(1, 200)) for n in range(30)]
    holds: list[tuple[list[Slot], int]] = []
    at: list[Slot | None] = [None] * 6
    flying: list[int] = []
    for _ in range(600):
        one = rng.choice(slots)
        match rng.randrange(7):
            case 0 if not one.is_cached:
                cache.put(one)
            case 1:
                cache.hold(one)
                copied = rng.randrange(50)
                cache.copy(copied)
                holds.append(([one], copied))
            case 2 if holds:
                cache.release(*holds.pop(rng.randrange(len(holds))))
            case 3:
                stream, after = rng.randrange(6), rng.choice([None, one])
                cache.move(at[stream], after, consumed=rng.random() < 0.5)
                at[stream] = after
            case 4:
                flying.append(rng.randrange(100))
                cache.reserve(flying[-1])
            case 5 if flying:
                cache.unreserve(flying.pop())
            case _:
                cache.get(one.keys[0])
        held = {id(s): s for chunks, _ in holds for s in chunks}.values()
        kept = {id(s): s for s in (*held, *(s for s in slots if s.is_cached))}.values()
        copies = sum(copied for _, copied in holds)
        assert cache.used_bytes == sum(s.size for s in kept) + copies + sum(flying)
        assert cache.sending_bytes == sum(s.size for s in held) + copies
        assert cache.wanted_bytes == sum(s.size for s in slots if s.is_cached and s.readers)
        if not holds and not flying:
            assert cache.used_bytes <= 1_000
