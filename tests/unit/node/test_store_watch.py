"""Watch over the clients of the object store: a problem is asked about again, and not said for ever."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

from service.base.clock import ManualClock
from service.node.store_watch import StoreWatch, WatchedClient
from service.remote.metrics import StoreMetrics
from service.remote.stores.counted_store import CountedStore, NodeStore
from service.remote.stores.errors import ObjectNotFound, StoreUnavailable


class Answering:
    """A store that answers, but not while it is away."""

    def __init__(self) -> None:
        self.is_away = False
        self.asked = 0

    def head(self, key: str) -> Any:
        assert key == "cluster.json"
        self.asked += 1
        raise StoreUnavailable("refused") if self.is_away else ObjectNotFound(key)

    def get(self, key: str, *, max_size: int) -> bytes:
        raise StoreUnavailable("refused")


def test_a_client_that_nobody_uses_hears_that_the_store_is_back_and_that_it_is_away() -> None:
    clock, store = ManualClock(), Answering()
    read, tiering = StoreMetrics(), StoreMetrics()
    clients = {one: CountedStore(cast("NodeStore", store), one, clock) for one in (read, tiering)}

    async def later(watch: StoreWatch, ms: int) -> None:
        clock.advance(ms)
        await watch.check()

    async def scenario(pool: ThreadPoolExecutor) -> None:
        watched = (WatchedClient(tiering, clients[tiering], True), WatchedClient(read, clients[read], False))
        watch = StoreWatch(watched, clock, pool)
        began_ms = clock.now_ms()
        try:
            clients[read].get("data/1", max_size=9)
        except StoreUnavailable:
            assert (read.problem, read.since_ms) == ("refused", began_ms)
        await later(watch, 5_000)
        assert store.asked == 0, "it has called just now"
        await later(watch, 1)
        assert (store.asked, read.problem, read.since_ms) == (1, None, None), "the store is back"
        store.is_away = True
        await later(watch, 5_000)
        assert (store.asked, tiering.problem, read.problem) == (2, "refused", None)
        since_ms = clock.now_ms()
        await later(watch, 60_000)
        assert (store.asked, tiering.since_ms, read.problem) == (3, since_ms, None), "nobody reads"
        store.is_away = False
        await later(watch, 5_001)
        assert (store.asked, tiering.problem, tiering.since_ms) == (4, None, None)

    with ThreadPoolExecutor(1) as pool:
        asyncio.run(scenario(pool))
