"""A store that fails for a while, under a clock that only the pauses move."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from service.base.clock import Clock, ManualClock
from service.base.disk import SystemDisk
from service.base.errors import ConfigError, CorruptionError, StorageError
from service.base.threads import SystemThreads
from service.base.world import World
from service.remote.stores.errors import (
    CredentialsExpired,
    CredentialsMissing,
    ObjectNotFound,
    ObjectTruncated,
    StoreRefused,
    StoreThrottled,
    StoreUnavailable,
)
from service.remote.stores.memory_store import MemoryStore
from service.remote.stores.retry_policy import RetryPolicy
from service.remote.stores.retrying_store import RetryingStore, open_retrying_store
from service.remote.stores.store import ObjectInfo
from tests.support.world import WORLD


class Failing(MemoryStore):
    """A `MemoryStore` each call of which asks `fault` first; listings ask it for each object."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(SystemThreads())
        self.clock = clock
        self.calls: list[tuple[float, str]] = []
        self.fault: Callable[[], StorageError | CorruptionError | None] = lambda: None

    def asked(self, name: str) -> None:
        self.calls.append((self.clock.monotonic_ms() / 1000, name))
        error = self.fault()
        if error is not None:
            raise error

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        for info in super().list(prefix):
            self.asked("list")
            yield info


def _asking(name: str) -> Any:
    def call(self: Failing, *args: Any, **kwargs: Any) -> Any:
        self.asked(name)
        return getattr(MemoryStore, name)(self, *args, **kwargs)

    return call


for _name in ("put", "put_stream", "get", "get_range", "get_suffix", "head", "delete", "put_if_absent"):
    setattr(Failing, _name, _asking(_name))


class Sleeping(SystemThreads):
    """Threads that sleep as `sleep` says."""

    def __init__(self, sleep: Callable[[float], None]) -> None:
        self.sleep = sleep  # type: ignore[method-assign, assignment]


class Even(random.Random):
    """Chance that never surprises."""

    def random(self) -> float:
        return 0.5


def world(clock: Clock, sleep: Callable[[float], None]) -> World:
    return World(clock, SystemDisk(), Sleeping(sleep), Even())


class Bench:
    """A patient store over a failing one; pauses move the clock."""

    def __init__(self, patience: RetryPolicy | None = None) -> None:
        self.clock = ManualClock(0)
        self.below = Failing(self.clock)
        self.pauses: list[float] = []
        self.patience = patience or RetryPolicy()
        self.store = RetryingStore(self.below, self.patience, world(self.clock, self._sleep))

    def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.clock.advance(max(1, round(seconds * 1000)))

    @property
    def now_s(self) -> float:
        return self.clock.monotonic_ms() / 1000

    def fails_until(self, end_s: float, error: type[StorageError] = StoreUnavailable) -> None:
        self.below.fault = lambda: error("k: away") if self.now_s < end_s else None


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.store.put("k", b"0123456789")
    bench.below.calls.clear()
    return bench


READS: dict[str, Callable[[RetryingStore], object]] = {
    "get": lambda store: store.get("k", max_size=10),
    "get_range": lambda store: store.get_range("k", 2, 3),
    "get_suffix": lambda store: store.get_suffix("k", 3),
    "head": lambda store: store.head("k").size,
    "put": lambda store: store.put("k", b"0123456789"),
    "list": lambda store: [info.key for info in store.list("")],
}


@pytest.mark.parametrize("call", READS.values(), ids=READS)
@pytest.mark.parametrize("error", [StoreUnavailable, StoreThrottled])
def test_a_store_away_for_a_minute_fails_nothing(
    bench: Bench, call: Callable[[RetryingStore], object], error: type[StorageError]
) -> None:
    wanted = call(bench.store)
    bench.below.calls.clear()
    bench.fails_until(60, error)
    assert call(bench.store) == wanted
    assert 60 <= bench.now_s <= 81
    assert len(bench.below.calls) <= 9


def test_a_timeout_error_names_its_duration_and_last_cause(bench: Bench) -> None:
    bench.below.fault = lambda: StoreUnavailable(f"k: no answer ({len(bench.below.calls)})")
    with pytest.raises(StoreUnavailable) as e:
        bench.store.get("k", max_size=10)
    tries = len(bench.below.calls)
    assert str(e.value) == f"k: no answer ({tries}) (given up after {tries} tries in 180 s)"
    assert bench.below.calls[-1][0] == pytest.approx(180, abs=0.1)


@pytest.mark.parametrize(
    "error",
    [StoreRefused("no"), ObjectNotFound("k"), ObjectTruncated("short"), CorruptionError("damaged")],
    ids=lambda error: type(error).__name__,
)
def test_permanent_errors_are_raised_without_a_retry(
    bench: Bench, error: StorageError | CorruptionError
) -> None:
    bench.below.fault = lambda: error
    with pytest.raises(type(error)) as e:
        bench.store.get_range("k", 0, 1)
    assert e.value is error
    assert (bench.pauses, len(bench.below.calls)) == ([], 1)


def test_expired_credentials_cost_no_pause_if_they_are_renewed_and_time_if_not(bench: Bench) -> None:
    answers: list[StorageError | None] = [CredentialsExpired("k: expired"), None]
    bench.below.fault = lambda: answers.pop(0)
    assert bench.store.get("k", max_size=10) == b"0123456789"
    assert sum(bench.pauses) == 0
    bench.fails_until(30, CredentialsExpired)
    assert bench.store.get("k", max_size=10) == b"0123456789"
    bench.below.fault = lambda: CredentialsExpired("k: expired")
    with pytest.raises(StoreUnavailable, match=r"^k: expired \(given up after \d+ tries in 180 s\)$"):
        bench.store.get("k", max_size=10)


def test_no_credentials_at_all_are_told_after_seconds(bench: Bench) -> None:
    bench.below.fault = lambda: CredentialsMissing("there are no credentials")
    with pytest.raises(StoreRefused, match=r"there are no credentials \(given up after \d tries in 5 s\)"):
        bench.store.get("k", max_size=10)
    assert bench.now_s == pytest.approx(5, abs=0.1)


def test_a_listing_that_breaks_off_goes_on_behind_what_was_given(bench: Bench) -> None:
    names = [f"many/{n:03d}" for n in range(40)]
    for name in names:
        bench.below.put(name, b"")
    bench.below.calls.clear()
    bench.below.fault = lambda: StoreUnavailable("away") if len(bench.below.calls) in (17, 40) else None
    assert [info.key for info in bench.store.list("many")] == names


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.put_stream("new", iter([b"x"]), 1),
        lambda store: store.put_if_absent("new", b"x"),
        lambda store: store.delete(["k"]),
    ],
    ids=["put_stream", "put_if_absent", "delete"],
)
def test_calls_that_are_not_idempotent_are_not_retried(
    bench: Bench, call: Callable[[RetryingStore], object]
) -> None:
    bench.fails_until(1)
    with pytest.raises(StoreUnavailable):
        call(bench.store)
    assert len(bench.below.calls) == 1
    bench.below.fault = lambda: None
    call(bench.store)


def test_no_patience_is_one_try(bench: Bench) -> None:
    bench.store = RetryingStore(bench.below, RetryPolicy(timeout_s=0), WORLD)
    bench.fails_until(1)
    with pytest.raises(StoreUnavailable, match=r"^k: away$"):
        bench.store.get("k", max_size=10)


def test_a_long_outage_is_a_line_in_the_log_now_and_then(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.fails_until(100)
    with caplog.at_level(logging.WARNING):
        bench.store.get("k", max_size=10)
    said = [record.message for record in caplog.records]
    assert 2 <= len(said) <= 4
    assert said[0] == "k: away; trying again for up to 180 s"


def test_many_threads_together_ask_a_throttling_store_little() -> None:
    """Sixteen threads, in a time of their own that passes a hundred times faster."""
    import time

    class Fast:
        def now_ms(self) -> int:
            return int(time.time() * 100_000)

        def monotonic_ms(self) -> int:
            return int(time.monotonic() * 100_000)

    clock = Fast()
    below = Failing(clock)  # type: ignore[arg-type]
    below.put("k", b"x")
    below.calls.clear()
    begun = clock.monotonic_ms() / 1000
    below.fault = lambda: StoreThrottled("k: 503") if clock.monotonic_ms() / 1000 - begun < 60 else None
    store = RetryingStore(below, RetryPolicy(), world(clock, lambda s: time.sleep(s / 100)))
    failed: list[BaseException] = []

    def read() -> None:
        try:
            assert store.get("k", max_size=1) == b"x"
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=read) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    refused = [at for at, _ in below.calls if at - begun < 60]
    # The first sixteen go before anybody knows; then each pause ends with a request or two.
    assert len(refused) <= 16 + 30, refused


def test_a_folder_is_opened_as_it_is(tmp_path: Any) -> None:
    assert not isinstance(open_retrying_store(tmp_path.as_uri(), world=WORLD), RetryingStore)
    with pytest.raises(ConfigError, match="0 to 86400 s"):
        open_retrying_store("s3://b/p", timeout_s=1e6, world=WORLD)
