"""A store that is asked again for a given time, less often where it throttles.

For jobs that should outlive a store that is away for a minute or two. What a call is repeated for is
`StoreUnavailable` in all its kinds; a refusal, an object that is not there and damage are told at once.
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
from service.remote.stores.patience import Patience, RequestRate
from service.remote.stores.s3_access import S3Access
from service.remote.stores.store import ObjectInfo, ObjectStore, Tagged

log = logging.getLogger(__name__)

TOLD_EVERY_MS: Final = 30_000
"""A store that is away is worth a line in the log now and then, not one for each call."""
_SHORT: Final = 5.0
_T = TypeVar("_T")


class RequestBudget:
    """`RequestRate` for the threads of a process that ask one store. Thread-safe."""

    def __init__(self, patience: Patience, world: World) -> None:
        self._rate = RequestRate(patience)
        self._world = world
        self._lock = world.threads.lock()
        self._told_ms: int | None = None

    def enter(self, until_s: float) -> float:
        """Wait until a request may go, but no longer than `until_s`; returns when it goes."""
        while True:
            now = _now_s(self._world)
            with self._lock:
                wait = self._rate.wait_s(now)
            if wait <= 0 or now >= until_s:
                return now
            self._world.threads.sleep(min(wait, until_s - now))

    def left(self, began_s: float, error: BaseException | None) -> None:
        """A request that went at `began_s` has ended."""
        with self._lock:
            if isinstance(error, StoreThrottled):
                self._rate.throttled(began_s, _now_s(self._world), self._world.random.random())
            elif not isinstance(error, StoreUnavailable):
                self._rate.answered(began_s)

    def tell(self, message: str) -> None:
        """A line in the log, unless there was one just now."""
        now = self._world.clock.monotonic_ms()
        with self._lock:
            if self._told_ms is not None and now - self._told_ms < TOLD_EVERY_MS:
                return
            self._told_ms = now
        log.warning("%s", message)


class PatientStore:
    """`ObjectStore` over another one, all threads of which share `budget`. Thread-safe.

    Repeated are reads and `put`, which puts the same again. What cannot be repeated without knowing whether
    it was done (`put_if_absent`, `put_if_match`), whose data is gone (`put_stream`) or what nobody waits for
    (`delete`) is tried once.
    """

    def __init__(
        self,
        store: ObjectStore,
        patience: Patience,
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
        """A listing that breaks off is begun again behind what was given already."""
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
        """A listing behind `last`, its first object fetched already."""
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
                    self._budget.tell(f"{e}; trying again for up to {self._patience.timeout_s:.0f} s")
            except BaseException as e:
                self._budget.left(began, e)
                raise
            else:
                self._budget.left(began, None)
                return result
            self._world.threads.sleep(pause)

    def _pause_s(self, error: StorageError, failures: int, first: float) -> float | None:
        """None where it is enough.

        Expired credentials are renewed by now, so the second try is at once. Where the store throttles, the
        budget makes everybody wait.
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


def open_patient_store(
    url: str,
    *,
    world: World,
    endpoint: str | None = None,
    region: str | None = None,
    access: S3Access | None = None,
    timeout_s: float | None = None,
) -> ObjectStore:
    """`open_store` with patience; a folder is opened as it is, its errors do not heal by waiting.

    All stores that are opened of one bucket in one world share one budget of requests: a process has one
    world, and one that was forked makes its own.
    """
    patience = Patience() if timeout_s is None else Patience(timeout_s=timeout_s)
    # One request at a time is ours to repeat: time would not bound what obstore repeats within a call.
    options = StoreOptions(
        max_retries=0, first_byte_timeout_s=20.0, request_timeout_s=max(_SHORT, min(60.0, patience.timeout_s))
    )
    store = open_store(url, world=world, endpoint=endpoint, region=region, access=access, options=options)
    parts = urlsplit(url)
    if parts.scheme == "file":
        return store
    return PatientStore(store, patience, world, _shared_budget(endpoint, parts.netloc, world))


@lru_cache(maxsize=64)
def _shared_budget(_endpoint: str | None, _bucket: str, world: World) -> RequestBudget:
    return RequestBudget(Patience(), world)


def _now_s(world: World) -> float:
    return world.clock.monotonic_ms() / 1000
