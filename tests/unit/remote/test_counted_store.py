"""Calls of a store are counted by kind, and the last one tells whether it is reachable."""

from __future__ import annotations

import pytest

from service.base.clock import ManualClock
from service.base.threads import SystemThreads
from service.remote.metrics import StoreMetrics
from service.remote.stores.counted_store import LIST_PAGE, CountedStore
from service.remote.stores.errors import ObjectNotFound, StoreRefused
from service.remote.stores.memory_store import MemoryStore


class Away(MemoryStore):
    """A store that takes its time, and that an operator can lock."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(SystemThreads())
        self._clock = clock
        self.is_locked = False

    def verifies_uploads(self) -> bool:
        return False

    def get(self, key: str, *, max_size: int) -> bytes:
        self._clock.advance(300)
        if self.is_locked:
            raise StoreRefused("403")
        return super().get(key, max_size=max_size)


def counted() -> tuple[Away, StoreMetrics, CountedStore]:
    clock = ManualClock()
    store, metrics = Away(clock), StoreMetrics()
    return store, metrics, CountedStore(store, metrics, clock)


def test_calls_are_counted_with_time_and_bytes() -> None:
    _, metrics, store = counted()
    store.put("a", b"12345")
    assert store.get("a", max_size=10) == b"12345"
    assert store.get_range("a", 1, 2) == b"23"
    assert metrics.calls["put"].sent_bytes == 5
    assert metrics.calls["get"].received_bytes == 5
    assert metrics.calls["get"].time.snapshot().total == pytest.approx(0.3)
    assert metrics.calls["get_range"].received_bytes == 2
    assert metrics.problem is None


def test_a_missing_object_is_no_problem_and_a_refusal_is() -> None:
    inner, metrics, store = counted()
    with pytest.raises(ObjectNotFound):
        store.get("a", max_size=10)
    assert metrics.problem is None
    inner.is_locked = True
    with pytest.raises(StoreRefused):
        store.get("a", max_size=10)
    assert metrics.problem == "403"
    assert metrics.calls["get"].errors == {"ObjectNotFound": 1, "StoreRefused": 1}
    inner.is_locked = False
    inner.put("a", b"1")
    store.get("a", max_size=10)
    assert metrics.problem is None


def test_a_listing_is_counted_by_the_page() -> None:
    inner, metrics, store = counted()
    for number in range(LIST_PAGE + 5):
        inner.put(f"data/{number:06}", b"")
    assert [one.key for one in store.list("data")] == [f"data/{n:06}" for n in range(LIST_PAGE + 5)]
    assert metrics.calls["list"].time.snapshot().observed == 2
