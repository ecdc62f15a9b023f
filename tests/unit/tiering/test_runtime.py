"""The manager as the node runs it: on a live loop, with threads that hang, slow quorums, and a stop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from service.base.clock import SystemClock
from service.base.errors import InvariantError, RequestError, StorageError
from service.base.threads import SystemThreads
from service.remote.catalog import CatalogCommit, CatalogEntry, CatalogResult, Tombstone
from service.remote.stores.errors import StoreUnavailable
from service.remote.stores.memory_store import MemoryStore
from service.tiering.commits import CommitQueue
from service.tiering.metrics import TieringMetrics
from service.tiering.offload_pool import OffloadPool, Stalled
from service.tiering.prefix_fence import ForeignOwner, claim_prefix
from service.tiering.shared_objects import read_topics
from tests.support.waiting import until
from tests.unit.hot.logs import TIP
from tests.unit.tiering.world import CLUSTER, SETTINGS, Fault, MemoryCatalog, World, once

LIVE_SETTINGS = SETTINGS._replace(
    copier_threads=2, interval_ms=10, backoff_initial_ms=1, backoff_max_ms=5, grace_ms=0, topics_debounce_ms=1
)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path, partitions=3, settings=LIVE_SETTINGS)
    world.clock = SystemClock()  # type: ignore[assignment]
    world.reboot()
    yield world
    world.do(world.manager.stop())


def test_a_running_manager_follows_what_is_sealed_and_stops_when_told(world: World) -> None:
    async def scenario() -> None:
        task = world.manager.start()
        for _ in range(3):
            world.fill(2)
            world.manager.scheduler.wake()
            await until(lambda: all(world.lag(one) == 0 for one in world.replicas))
        await until(lambda: "topics.json" in world.stored_keys())
        assert not task.done()
        await world.manager.stop()
        assert task.cancelled()

    world.do(scenario())
    assert [world.entry(one).segments for one in world.replicas] == [6, 6, 6]
    world.check()


def test_an_outage_of_the_store_is_outlived(world: World) -> None:
    async def scenario() -> None:
        world.store.decide = lambda operation, key: Fault.FAIL
        world.fill(2)
        world.manager.start()
        await until(lambda: world.manager.metrics.task_errors.total() > 10)
        world.store.decide = lambda operation, key: Fault.PASS
        await until(lambda: all(world.lag(one) == 0 for one in world.replicas))

    world.do(scenario())
    world.check()


def test_a_bug_in_the_background_ends_the_task_loudly(world: World) -> None:
    def broken(operation: str, key: str) -> Fault:
        raise InvariantError("a bug")

    async def scenario() -> None:
        world.store.decide = broken
        world.fill(1)
        task = world.manager.start()
        with pytest.raises(ExceptionGroup) as caught:
            await task
        assert caught.group_contains(InvariantError)

    world.do(scenario())


def test_stopping_in_the_middle_of_an_upload_leaves_an_orphan_at_most(world: World) -> None:
    uploading, go_on = threading.Event(), threading.Event()

    def hang(operation: str, key: str) -> Fault:
        if operation == "put_stream":
            uploading.set()
            go_on.wait(20)
        return Fault.PASS

    async def scenario() -> None:
        world.store.decide = hang
        world.fill(1)
        world.manager.start()
        await asyncio.get_running_loop().run_in_executor(None, uploading.wait, 20)
        asyncio.get_running_loop().call_later(0.05, go_on.set)
        await world.manager.stop()

    world.do(scenario())
    assert all(world.entry(one) is None for one in world.replicas)
    world.check()
    world.store.decide = lambda operation, key: Fault.PASS
    world.reboot()
    world.run()
    assert [world.lag(one) for one in world.replicas] == [0, 0, 0]


def test_an_upload_that_hangs_is_given_up_and_the_others_go_on(tmp_path: Path) -> None:
    world = World(tmp_path, partitions=2, settings=LIVE_SETTINGS._replace(copier_threads=1, watchdog_ms=50))
    world.clock = SystemClock()  # type: ignore[assignment]
    world.reboot()
    go_on = threading.Event()
    hangs = once("put_stream", Fault.PASS, "/0/")

    def decide(operation: str, key: str) -> Fault:
        if operation == "put_stream" and "/0/" in key and armed:
            armed.clear()
            go_on.wait(20)
        return hangs(operation, key)

    armed = [True]

    async def scenario() -> None:
        world.store.decide = decide
        world.fill(1)
        world.manager.start()
        await until(lambda: all(world.lag(one) == 0 for one in world.replicas))
        go_on.set()
        await world.manager.stop()

    world.do(scenario())
    assert world.manager.metrics.stalled_calls >= 1
    world.check()


def test_a_slow_call_that_still_moves_bytes_is_left_alone() -> None:
    async def scenario() -> None:
        metrics = TieringMetrics()
        pool = OffloadPool(SystemThreads(), 1, 400, metrics)
        pause = threading.Event()

        def slow(progress):  # type: ignore[no-untyped-def]
            for _ in range(10):
                pause.wait(0.05)
                progress.advance(1)
            return "done"

        assert await pool.watch(slow) == "done"
        with pytest.raises(Stalled):
            await pool.run(pause.wait, 5)
        pause.set()
        await pool.close(1000)
        assert metrics.stalled_calls == 1

    asyncio.run(scenario())


class SlowCatalog:
    def __init__(self) -> None:
        self.calls: list[int] = []
        self.answer: BaseException | None = None
        self.answers = asyncio.Event()

    async def commit(self, commits: Sequence[CatalogCommit]) -> list[CatalogResult]:
        self.calls.append(len(commits))
        await self.answers.wait()
        if self.answer is not None:
            raise self.answer
        return [CatalogResult.COMMITTED for _ in commits]

    def entry(self, topic_id: object, partition: int) -> None:
        return None

    def tombstones(self) -> Mapping[UUID, Tombstone]:
        return {}

    async def forget_topics(self, topic_ids: Collection[UUID]) -> None:
        raise AssertionError("nothing was deleted")


def commit_of(partition: int) -> CatalogCommit:
    return CatalogCommit(TIP._replace(partition=partition), 0, CatalogEntry(1, "m", 0, 0, 9, 1, 1))


def test_commits_that_arrive_during_a_call_go_together_with_the_next() -> None:
    async def scenario() -> None:
        catalog = SlowCatalog()
        queue = CommitQueue(catalog)
        answers = [asyncio.create_task(queue.commit(commit_of(0)))]
        await until(lambda: catalog.calls)
        answers += [asyncio.create_task(queue.commit(commit_of(n))) for n in range(1, 30)]
        await asyncio.sleep(0)
        catalog.answers.set()
        assert set(await asyncio.gather(*answers)) == {CatalogResult.COMMITTED}
        assert catalog.calls == [1, 29]

    asyncio.run(scenario())


def test_a_quorum_that_does_not_answer_is_an_unknown_outcome_and_a_bug_stays_a_bug() -> None:
    async def scenario() -> None:
        catalog = SlowCatalog()
        catalog.answers.set()
        queue = CommitQueue(catalog)
        for answer in (TimeoutError(), RequestError(ErrorCode.not_controller), StorageError("no quorum")):
            catalog.answer = answer
            with pytest.raises(StorageError):
                await queue.commit(commit_of(0))
        catalog.answer = ValueError("bug")
        with pytest.raises(ValueError, match="bug"):
            await queue.commit(commit_of(0))

    asyncio.run(scenario())


def test_a_prefix_belongs_to_one_cluster() -> None:
    store = MemoryStore(SystemThreads())
    claim_prefix(store, "mine")
    claim_prefix(store, "mine")
    with pytest.raises(ForeignOwner, match="belongs to cluster mine"):
        claim_prefix(store, "yours")


def test_topics_json_holds_the_topics_of_the_image(tmp_path: Path) -> None:
    world = World(tmp_path, partitions=2)
    world.run()
    topics = read_topics(world.bucket)
    assert topics.cluster_id == CLUSTER
    assert [(row.name, row.topic_id, row.partitions) for row in topics.topics] == [
        ("events", world.topic_ids["events"], 2)
    ]
    world.metadata_offset = 77
    world.manager.maintenance.topics_changed()
    world.run()
    assert read_topics(world.bucket).metadata_offset == 1, "quiet first"
    world.clock.advance(world.settings.topics_debounce_ms)
    world.store.decide = once("put", Fault.FAIL, "topics.json")
    world.run()
    world.clock.advance(world.settings.backoff_max_ms)
    world.run()
    assert read_topics(world.bucket).metadata_offset == 77


def test_the_catalog_of_the_tests_obeys_the_rule(tmp_path: Path) -> None:
    catalog = MemoryCatalog()
    assert asyncio.run(catalog.commit([commit_of(0)])) == [CatalogResult.UNKNOWN_PARTITION]
    catalog.leader_epochs[TIP.topic_id, 0] = 0
    assert asyncio.run(catalog.commit([commit_of(0)])) == [CatalogResult.COMMITTED]
    catalog.decide = once("commit", Fault.FAIL)
    with pytest.raises(StoreUnavailable):
        asyncio.run(catalog.commit([commit_of(0)]))
