"""A panic within obstore is one failed call, which may be made again."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from typing import Any

import pytest
from obstore.store import MemoryStore

from service.base.clock import ManualClock
from service.base.disk import SystemDisk
from service.base.threads import SystemThreads
from service.base.types import Buffer
from service.base.world import World
from service.remote.stores.errors import StoreUnavailable
from service.remote.stores.obstore_store import ObstoreStore, StoreOptions

SIZE = 12 << 20


class OnTheCallersThread(Executor):
    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = Future[Any]()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as e:
            future.set_exception(e)
        return future


class OneThread(SystemThreads):
    """No threads but the caller's, so that the parts of an upload are made where obstore asks for them."""

    def pool(self, name: str, size: int, *, nice: int = 0) -> Executor:
        return OnTheCallersThread()


def test_a_panic_is_a_call_that_failed() -> None:
    world = World(ManualClock(), SystemDisk(), OneThread(), random.Random(0), os.environ)
    client = MemoryStore()
    store = ObstoreStore(lambda _: client, StoreOptions(), "memory", world)
    store.put("old", b"x" * 100)

    def parts() -> Iterator[Buffer]:
        yield b"x" * (SIZE - 100)
        yield store.get_range("old", 0, 100)

    with pytest.raises(StoreUnavailable, match="Cannot start a runtime from within a runtime"):
        store.put_stream("new", parts(), SIZE)
    assert [one.key for one in store.list("")] == ["old"]
    store.put_stream("new", iter([b"x" * SIZE]), SIZE)
