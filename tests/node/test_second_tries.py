"""Hedged reads: reads that hang, a store that fails, and the threads that they use."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from service.remote.reading.hedge import LEAST_MS, MOST_MS, Hedge
from service.remote.stores.errors import (
    AccessRefused,
    AccountRefused,
    ObjectAsleep,
    ReaderClosed,
    StoreThrottled,
    StoreUnavailable,
)
from tests.unit.remote.slow_store import SlowStore
from tests.unit.remote.test_reader import World, settle, until


class TwoClients(World):
    """A reader with two clients of one bucket; `store` is the one that is asked first."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.reader.close()
        self.second = SlowStore(self.store.inner)
        self.reader = self.new_reader(second_store=self.second, **options)

    def wait_for(self, future: Future[Any]) -> Any:
        """The result, while the clock goes on."""

        def done() -> bool:
            self.clock.advance(10)
            return future.done()

        until(done)
        return future.result()


@pytest.fixture
def world() -> Iterator[TwoClients]:
    world = TwoClients()
    yield world
    world.store.gate.set()
    world.second.gate.set()
    world.reader.close()


def test_a_read_whose_connection_died_is_brought_by_the_second_client(world: TwoClients) -> None:
    world.archive.add_segment(20)
    world.store.gate.clear()
    future = world.start(0)
    until(lambda: world.store.arrived() == 1)
    assert world.second.arrived() == 0, "not before it takes long"
    assert b"".join(world.wait_for(future).data)
    downloads = world.reader.stats().downloads
    assert downloads.hedges == downloads.hedges_won >= 3, "manifest, footer and chunk"


def test_the_slower_of_two_downloads_is_discarded(world: TwoClients) -> None:
    world.archive.add_segment(20)
    world.store.gate.clear()
    first = world.wait_for(world.start(0))
    world.store.gate.set()
    settle(world)
    downloads = world.reader.stats().downloads
    assert downloads.in_flight_bytes == 0
    assert downloads.cached_bytes == downloads.downloaded_bytes
    again = world.start(0)
    assert again.done()
    assert again.result().data == first.data


def test_threads_in_calls_that_are_dead_do_not_keep_others_from_being_read(world: TwoClients) -> None:
    entries = [world.archive.add_segment(10) for _ in range(9)]
    world.store.gate.clear()
    futures = [world.start(entry.base_offset, 1) for entry in entries[:3]]
    for future in futures:
        world.wait_for(future)
    assert world.reader.stats().downloads.busy_threads <= 3 + 2, "the pool is bounded"
    world.store.gate.set()
    for entry in entries[3:]:
        assert world.start(entry.base_offset, 1).result(20).data


def test_a_second_try_that_fails_leaves_it_to_the_first(world: TwoClients) -> None:
    world.archive.add_segment(20)

    def fail(key: str, data: bytes) -> bytes:
        raise StoreUnavailable("the second client fails")

    world.second.interfere = fail
    world.store.gate.clear()
    future = world.start(0)
    until(lambda: world.store.arrived() == 1)

    def asked() -> bool:
        world.clock.advance(10)
        return world.second.arrived() == 1

    until(asked)
    assert not future.done()
    world.store.gate.set()
    assert world.wait_for(future).data


def test_if_both_tries_fail_the_first_error_is_raised() -> None:
    world = TwoClients(attempts=1)
    world.archive.add_segment(20)
    errors = {"first": "one", "second": "two"}

    def failing(name: str) -> Any:
        def fail(key: str, data: bytes) -> bytes:
            raise StoreUnavailable(errors[name])

        return fail

    world.store.interfere, world.second.interfere = failing("first"), failing("second")
    world.second.gate.clear()
    world.store.gate.clear()
    future = world.start(0)

    def both() -> bool:
        world.clock.advance(10)
        return world.second.arrived() == 1

    until(both)
    world.store.gate.set()
    until(lambda: world.reader.stats().downloads.busy_threads == 1)  # the one of the second try
    assert not future.done()
    world.second.gate.set()
    with pytest.raises(StoreUnavailable, match="one"):
        future.result(20)
    world.reader.close()


def test_closing_while_two_tries_hang_resolves_the_read() -> None:
    world = TwoClients()
    world.archive.add_segment(20)
    world.store.gate.clear()
    world.second.gate.clear()
    future = world.start(0)

    def both() -> bool:
        world.clock.advance(10)
        return world.second.arrived() == 1

    until(both)
    world.reader.close(timeout_s=0.05)
    assert isinstance(future.exception(1), ReaderClosed)
    world.store.gate.set()
    world.second.gate.set()


def test_a_store_that_throttles_is_asked_for_one_thing_as_often_as_there_are_attempts(
    world: TwoClients,
) -> None:
    world.archive.add_segment(20)

    def slow_down(key: str, data: bytes) -> bytes:
        raise StoreThrottled("503 SlowDown")

    world.store.interfere = slow_down
    with pytest.raises(StoreThrottled):
        world.start(0).result(20)
    assert world.store.arrived() == 2


@pytest.mark.parametrize("kind", [StoreUnavailable, AccountRefused])
def test_a_store_that_fails_is_left_alone_and_everybody_is_told_at_once(
    kind: type[Exception], world: TwoClients
) -> None:
    entries = [world.archive.add_segment(4) for _ in range(30)]
    world.read(0)
    settle(world)

    def fail(key: str, data: bytes) -> bytes:
        raise kind("it does not know this access key")

    world.store.interfere = fail
    for entry in entries[1:10]:
        world.start(entry.base_offset).exception(20)
    until(lambda: world.reader.stats().downloads.store_problem is not None)
    before = world.store.arrived()
    for entry in entries[10:]:
        future = world.start(entry.base_offset)
        assert future.done(), "no thread, no queue, no store"
        with pytest.raises(StoreUnavailable, match=r"as the store fails: .*access key"):
            future.result()
    assert world.store.arrived() == before
    assert world.start(0).result(20).data, "what is in memory is served"
    world.store.interfere = lambda key, data: data
    world.clock.advance(10_000)
    assert world.start(entries[20].base_offset).result(20).data
    assert world.reader.stats().downloads.store_problem is None


@pytest.mark.parametrize("kind", [ObjectAsleep, AccessRefused])
def test_refused_objects_are_logged_once_and_block_no_others(
    kind: type[Exception], world: TwoClients, caplog: pytest.LogCaptureFixture
) -> None:
    entries = [world.archive.add_segment(4) for _ in range(40)]
    refused = {entry.key for entry in entries[1:20]}
    calm = world.store.interfere

    def refuse(key: str, data: bytes) -> bytes:
        if key in refused:
            raise kind(f"{key}: no")
        return data

    world.store.interfere = refuse
    for entry in entries[1:20]:
        assert type(world.start(entry.base_offset).exception(20)) is kind
    assert world.start(entries[20].base_offset).result(20).data, "another object is asked for"
    settle(world)
    before = world.store.arrived()
    for entry in entries[1:20]:
        again = world.start(entry.base_offset)
        assert again.done(), "the store has said no just now"
        assert type(again.exception()) is kind
    assert world.store.arrived() == before
    told = [one.getMessage() for one in caplog.records if "cannot be read" in one.getMessage()]
    assert len(told) == 19
    assert all(sum(key in one for one in told) == 1 for key in refused)
    stats = world.reader.stats().downloads
    assert stats.store_problem is None
    assert set(stats.asleep) == (refused if kind is ObjectAsleep else set())
    world.store.interfere = calm
    world.clock.advance(1_000)
    assert world.start(entries[1].base_offset).result(20).data, "it is asked for again"


def test_the_delay_follows_what_calls_take_within_its_bounds() -> None:
    hedge = Hedge()
    for _ in range(100):
        hedge.record(1)
    assert hedge.delay_ms == LEAST_MS
    for _ in range(100):
        hedge.record(300)
    assert 300 <= hedge.delay_ms <= 400
    for _ in range(100):
        hedge.record(60_000)
    assert hedge.delay_ms == MOST_MS


def test_a_store_that_is_slow_with_everything_is_not_asked_for_everything_twice() -> None:
    hedge = Hedge()
    assert sum(hedge.spend() for _ in range(100)) == 10
    for _ in range(100):
        hedge.record(1_000)
    assert sum(hedge.spend() for _ in range(100)) in (9, 10)
