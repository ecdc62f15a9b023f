"""Object store that repeats calls for a given time, and sends less where the store throttles.

For jobs that should outlive a store that is unavailable for a minute or two. Calls are repeated after
`StoreUnavailable` of any kind; a refusal, a missing object and damage are raised at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import chain
from typing import Final, TypeVar
from urllib.parse import urlsplit

from service.base.errors import StorageError
from service.base.types import Buffer
from service.base.world import World
from service.remote.stores.errors import (
    CredentialsExpired,
    CredentialsMissing,
    StoreRefused,
    StoreThrottled,
    StoreUnavailable,
)
from service.remote.stores.obstore_store import StoreOptions, open_store
from service.remote.stores.retry_policy import RequestRate, RetryPolicy
from service.remote.stores.s3_access import S3Access
from service.remote.stores.s3_encryption import S3Encryption
from service.remote.stores.store import ObjectInfo, ObjectStore, Tagged

log = logging.getLogger(__name__)

LOG_INTERVAL_MS: Final = 30_000
"""Least interval of log lines about an unavailable store; not each call logs one."""
_SHORT: Final = 5.0
_T = TypeVar("_T")


class RequestBudget:
    """`RequestRate` shared by the threads of a process that use one store. Thread-safe."""

    def __init__(self, patience: RetryPolicy, world: World) -> None:
        self._rate = RequestRate(patience)
        self._world = world
        self._lock = world.threads.lock()
        self._logged_ms: int | None = None

    def enter(self, until_s: float) -> float:
        """Wait until a request may go, but no longer than `until_s`; return when it goes."""
        while True:
            now = _now_s(self._world)
            with self._lock:
                wait = self._rate.wait_s(now)
            if wait <= 0 or now >= until_s:
                return now
            self._world.threads.sleep(min(wait, until_s - now))

    def left(self, began_s: float, error: BaseException | None) -> None:
        """Record that a request that went at `began_s` has ended."""
        with self._lock:
            if isinstance(error, StoreThrottled):
                self._rate.throttled(began_s, _now_s(self._world), self._world.random.random())
            elif not isinstance(error, StoreUnavailable):
                self._rate.answered(began_s)

    def log_rarely(self, message: str) -> None:
        """Log `message`, unless there was a line just now."""
        now = self._world.clock.monotonic_ms()
        with self._lock:
            if self._logged_ms is not None and now - self._logged_ms < LOG_INTERVAL_MS:
                return
            self._logged_ms = now
        log.warning("%s", message)


class RetryingStore:
    """`ObjectStore` over another one, all threads of which share `budget`. Thread-safe.

    It repeats reads and `put`, which writes the same again. It tries once what cannot be repeated without
    knowing whether it was executed (`put_if_absent`, `put_if_match`), whose data is consumed (`put_stream`)
    or whose result does not matter (`delete`).
    """

    def __init__(
        self,
        store: ObjectStore,
        patience: RetryPolicy,
        world: World,
        budget: RequestBudget | None = None,
    ) -> None:
        self._store = store
        self._patience = patience
        self._world = world
        self._budget = budget or RequestBudget(patience, self._world)

    def put(self, key: str, data: Buffer) -> None:
        self._patiently(lambda: self._store.put(key, data))

    def put_stream(self, key: str, parts: Iterable[Buffer], size: int) -> None:
        self._once(lambda: self._store.put_stream(key, parts, size))

    def get(self, key: str, *, max_size: int) -> bytes:
        return self._patiently(lambda: self._store.get(key, max_size=max_size))

    def get_range(self, key: str, start: int, length: int) -> Buffer:
        return self._patiently(lambda: self._store.get_range(key, start, length))

    def get_suffix(self, key: str, length: int) -> tuple[bytes, int]:
        return self._patiently(lambda: self._store.get_suffix(key, length))

    def head(self, key: str) -> ObjectInfo:
        return self._patiently(lambda: self._store.head(key))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """List, and resume an interrupted listing after the last yielded object."""
        last: bytes | None = None
        while True:
            listing = self._patiently(partial(self._begun, prefix, last))
            try:
                for one in listing:
                    last = one.key.encode()
                    yield one
            except StoreUnavailable as e:
                self._budget.left(_now_s(self._world), e)
            else:
                return

    def _begun(self, prefix: str, last: bytes | None) -> Iterator[ObjectInfo]:
        """Return a listing after the key `last`, its first object fetched already."""
        listing = iter(self._store.list(prefix))
        first = next((one for one in listing if last is None or one.key.encode() > last), None)
        return iter(()) if first is None else chain((first,), listing)

    def delete(self, keys: Sequence[str]) -> None:
        self._once(lambda: self._store.delete(keys))

    def put_if_absent(self, key: str, data: Buffer) -> bool:
        return self._once(lambda: self._store.put_if_absent(key, data))

    def get_tagged(self, key: str, *, max_size: int) -> Tagged:
        return self._patiently(lambda: self._store.get_tagged(key, max_size=max_size))

    def put_if_match(self, key: str, data: Buffer, tag: str) -> None:
        self._once(lambda: self._store.put_if_match(key, data, tag))

    def _once(self, call: Callable[[], _T]) -> _T:
        began = self._budget.enter(_now_s(self._world) + self._patience.timeout_s)
        error: BaseException | None = None
        try:
            return call()
        except StorageError as e:
            error = e
            raise
        finally:
            self._budget.left(began, error)

    def _patiently(self, call: Callable[[], _T]) -> _T:
        first = _now_s(self._world)
        until = first + self._patience.timeout_s
        failures = 0
        while True:
            began = self._budget.enter(until)
            try:
                result = call()
            except (StoreUnavailable, CredentialsMissing) as e:
                self._budget.left(began, e)
                failures += 1
                pause = self._pause_s(e, failures, first)
                if pause is None:
                    raise self._given_up(e, failures, first) from e
                if failures > 1 and not isinstance(e, CredentialsMissing):
                    self._budget.log_rarely(f"{e}; trying again for up to {self._patience.timeout_s:.0f} s")
            except BaseException as e:
                self._budget.left(began, e)
                raise
            else:
                self._budget.left(began, None)
                return result
            self._world.threads.sleep(pause)

    def _pause_s(self, error: StorageError, failures: int, first: float) -> float | None:
        """Return how long to wait; None to stop.

        Expired credentials are renewed by now, so the second attempt is at once. Where the store throttles,
        the budget pauses all threads.
        """
        patience, elapsed = self._patience, _now_s(self._world) - first
        most = patience.missing_credentials_s if isinstance(error, CredentialsMissing) else None
        pause = patience.pause_s(failures, elapsed, self._world.random.random(), timeout_s=most)
        is_renewed = isinstance(error, CredentialsExpired) and failures == 1
        return 0.0 if pause is not None and (is_renewed or isinstance(error, StoreThrottled)) else pause

    def _given_up(self, error: StorageError, failures: int, first: float) -> StorageError:
        tries = f"{failures} tries in {_now_s(self._world) - first:.0f} s"
        kind = StoreRefused if isinstance(error, CredentialsMissing) else StoreUnavailable
        return kind(f"{error} (given up after {tries})" if failures > 1 else str(error))


def open_retrying_store(
    url: str,
    *,
    world: World,
    endpoint: str | None = None,
    region: str | None = None,
    access: S3Access | None = None,
    timeout_s: float | None = None,
    must_exist: bool = False,
    encryption: S3Encryption | None = None,
) -> ObjectStore:
    """Open a store as `open_store` does, with retries; a folder is opened without, as waiting does not cure
    its errors.

    All stores of one bucket in one world share one request budget: a process has one world, and a forked one
    makes its own.
    """
    patience = RetryPolicy() if timeout_s is None else RetryPolicy(timeout_s=timeout_s)
    # Only we repeat requests: the time-out would not bound what obstore repeats within a call.
    options = StoreOptions(
        max_retries=0, first_byte_timeout_s=20.0, request_timeout_s=max(_SHORT, min(60.0, patience.timeout_s))
    )
    store = open_store(
        url,
        world=world,
        endpoint=endpoint,
        region=region,
        access=access,
        encryption=encryption,
        options=options,
        must_exist=must_exist,
    )
    parts = urlsplit(url)
    if parts.scheme == "file":
        return store
    return RetryingStore(store, patience, world, _shared_budget(endpoint, parts.netloc, world))


@lru_cache(maxsize=64)
def _shared_budget(_endpoint: str | None, _bucket: str, world: World) -> RequestBudget:
    return RequestBudget(RetryPolicy(), world)


def _now_s(world: World) -> float:
    return world.clock.monotonic_ms() / 1000
