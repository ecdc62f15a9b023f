"""The controller on a real log: what is answered when, and to whom."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError, StorageError
from service.metadata.controller.requests import AlterConfig, AlterResource, CreateTopic, DeleteTopic
from service.metadata.delta import MetadataDelta
from service.metadata.image import MetadataImage
from service.metadata.raft.log import MetadataLog
from service.remote.catalog import CatalogCommit, CatalogResult
from tests.unit.metadata.controllers import (
    AnyConfig,
    catalog_commit,
    create,
    join,
    make_controller,
    registration,
    running,
)


class HeldExecutor(ThreadPoolExecutor):
    """Counts flushes, and holds them back while told to."""

    def __init__(self) -> None:
        super().__init__(2)
        self.flushes = 0
        self.held: list[Any] | None = None

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        if getattr(fn, "__func__", None) is MetadataLog.flush:
            self.flushes += 1
            if self.held is not None:
                future: Future[Any] = Future()
                self.held.append((future, fn, args))
                return future
        return super().submit(fn, *args, **kwargs)

    def release(self) -> None:
        held, self.held = self.held or [], None
        for future, fn, args in held:
            future.set_result(fn(*args))


def test_exactly_one_of_concurrent_creates_of_a_topic_succeeds(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as controller:
            await join(controller)
            answers = await asyncio.gather(*(controller.create_topics([CreateTopic("t")]) for _ in range(20)))
            codes = [answer[0].error for answer in answers]
            assert codes.count(ErrorCode.none) == 1
            assert codes.count(ErrorCode.topic_already_exists) == 19

    asyncio.run(scenario())


def test_requests_in_flight_share_an_fsync_and_none_is_answered_before_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        executor = HeldExecutor()
        async with running(tmp_path, log_io=executor) as controller:
            await join(controller)
            executor.held, before = [], executor.flushes
            tasks = [asyncio.create_task(controller.create_topics([CreateTopic(f"t{i}")])) for i in range(50)]
            refused = asyncio.create_task(controller.create_topics([CreateTopic("t0")]))
            for _ in range(20 * len(tasks)):  # turns enough for each of them to be decided
                await asyncio.sleep(0)
            assert not any(task.done() for task in tasks)
            assert not refused.done(), "it rests on a topic that is not committed"
            assert "t0" not in controller.image.topics_by_name
            executor.release()
            await asyncio.gather(*tasks, refused)
            assert executor.flushes - before == 2
            assert len(controller.image.topics_by_name) == 50
        executor.shutdown()

    asyncio.run(scenario())


def test_listeners_see_each_change_once_before_its_requester_does(tmp_path: Path) -> None:
    seen: list[tuple[int, set[str], set[UUID]]] = []

    def listener(before: MetadataImage, after: MetadataImage, delta: MetadataDelta) -> None:
        assert before.offset < after.offset
        new = set(after.topics_by_name) - set(before.topics_by_name)
        seen.append((after.offset, new, delta.topics))

    async def scenario() -> None:
        async with running(tmp_path) as controller:
            await join(controller)
            controller.publisher.subscribe(listener)
            topic_id = await create(controller, "a")
            assert seen == [(controller.image.offset, {"a"}, {topic_id})]
            await controller.delete_topics([DeleteTopic("a")])
            assert len(seen) == 2
            assert seen[1][1:] == (set(), set())

    asyncio.run(scenario())


def test_a_fenced_leader_cannot_commit_a_manifest(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as controller:
            catalog = controller.catalog
            epoch = await join(controller)
            topic_id = await create(controller, "t")
            assert await catalog.commit([catalog_commit(topic_id, 0, 1, 0)]) == [CatalogResult.COMMITTED]
            await controller.brokers.fence(1, epoch)
            assert await catalog.commit([catalog_commit(topic_id, 0, 2, 0)]) == [CatalogResult.FENCED]
            await join(controller)
            assert await catalog.commit([catalog_commit(topic_id, 0, 2, 0)]) == [CatalogResult.FENCED]
            assert await catalog.commit([catalog_commit(topic_id, 0, 2, 2)]) == [CatalogResult.COMMITTED]
            entry = catalog.entry(topic_id, 0)
            assert entry is not None
            assert entry.version == 2

    asyncio.run(scenario())


def test_one_of_two_catalog_commits_of_a_version_succeeds_and_is_idempotent(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as controller:
            catalog = controller.catalog
            await join(controller)
            topic_id = await create(controller, "t", 2)
            mine, yours = catalog_commit(topic_id, 0, 1, 0), catalog_commit(topic_id, 0, 1, 0, end_offset=50)
            answers = await asyncio.gather(catalog.commit([mine]), catalog.commit([yours]))
            assert answers == [[CatalogResult.COMMITTED], [CatalogResult.VERSION_CONFLICT]]
            offset = controller.image.offset
            assert await catalog.commit([mine]) == [CatalogResult.COMMITTED]
            assert controller.image.offset == offset
            both = [catalog_commit(topic_id, 1, 1, 0), catalog_commit(topic_id, 1, 2, 0)]
            assert await catalog.commit(both) == [CatalogResult.COMMITTED] * 2
            unknown = [catalog_commit(UUID(int=5), 0, 1, 0), catalog_commit(topic_id, 2, 1, 0)]
            assert await catalog.commit(unknown) == [CatalogResult.UNKNOWN_PARTITION] * 2
            broken = CatalogCommit(mine.tip, 1, mine.entry._replace(version=5))
            with pytest.raises(RequestError) as refused:
                await catalog.commit([broken])
            assert refused.value.code is ErrorCode.invalid_request

    asyncio.run(scenario())


def test_deleting_a_topic_takes_its_configs_and_catalog_entries_along(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as controller:
            await join(controller)
            topic_id = await create(controller, "a.b", 3)
            change = AlterResource(2, "a.b", (AlterConfig("retention.ms", 0, "1000"),))
            await controller.incremental_alter_configs([change])
            await controller.catalog.commit([catalog_commit(topic_id, p, 1, 0) for p in (0, 2)])
            assert len(controller.image.remote) == 2
            deltas: list[MetadataDelta] = []
            controller.publisher.subscribe(lambda before, after, delta: deltas.append(delta))
            await controller.delete_topics([DeleteTopic(topic_id=topic_id)])
            assert deltas[0].remote == {(topic_id, 0), (topic_id, 2)}
            assert deltas[0].deleted_topics[topic_id].name == "a.b"
            image = controller.image
            assert (len(image.remote), len(image.configs), len(image.topics_by_id)) == (0, 0, 0)
            assert await create(controller, "a_b") != topic_id, "the name it would collide with is gone"

    asyncio.run(scenario())


def test_producer_id_blocks_never_overlap(tmp_path: Path) -> None:
    async def scenario() -> list[int]:
        async with running(tmp_path) as controller:
            epoch = await join(controller)
            blocks = await asyncio.gather(*(controller.allocate_producer_ids(1, epoch) for _ in range(5)))
            return [block.first for block in blocks]

    first = asyncio.run(scenario())
    again = asyncio.run(scenario())
    assert sorted(first + again) == list(range(0, 10_000, 1000))


def test_only_one_live_process_has_a_broker_id(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as controller:
            epoch = await join(controller)
            with pytest.raises(RequestError) as refused:
                await controller.brokers.register(registration())
            assert refused.value.code is ErrorCode.duplicate_broker_registration
            await controller.brokers.fence(1, epoch)
            assert await join(controller) > epoch

    asyncio.run(scenario())


def test_a_change_beyond_the_limits_writes_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, rules=AnyConfig()) as controller:
            await join(controller)
            await create(controller, "t")
            offset = controller.image.offset
            with pytest.raises(RequestError) as too_many:
                await controller.create_topics([CreateTopic(f"x{i}", 1) for i in range(5001)])
            assert too_many.value.code is ErrorCode.policy_violation
            long = (("cleanup.policy", "delete," * 4600),)
            with pytest.raises(RequestError) as too_large:
                await controller.create_topics([CreateTopic(f"y{i}", 1, configs=long) for i in range(300)])
            assert too_large.value.code is ErrorCode.record_list_too_large
            assert controller.image.offset == offset
            assert await create(controller, "and-goes-on")

    asyncio.run(scenario())


def test_a_failed_flush_of_the_log_stops_the_controller(tmp_path: Path) -> None:
    class BrokenDisk(HeldExecutor):
        def release(self) -> None:
            held, self.held = self.held or [], None
            for future, _, _ in held:
                future.set_exception(StorageError("no space left on device"))

    async def scenario() -> None:
        executor = BrokenDisk()
        fatal: list[tuple[str, BaseException]] = []
        controller = make_controller(
            tmp_path, log_io=executor, on_fatal=lambda what, e: fatal.append((what, e))
        )
        await controller.start()
        await join(controller)
        executor.held = []
        tasks = [asyncio.create_task(controller.create_topics([CreateTopic(f"t{i}")])) for i in range(3)]
        await asyncio.sleep(0.02)
        executor.release()
        for answer in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(answer, StorageError)
        assert len(fatal) == 1
        with pytest.raises(StorageError, match="no space left"):
            await controller.create_topics([CreateTopic("late")])
        assert len(controller.image.topics_by_name) == 0
        await controller.close()
        executor.shutdown()

    asyncio.run(scenario())


def test_a_stopped_controller_says_so(tmp_path: Path) -> None:
    async def scenario() -> None:
        controller = make_controller(tmp_path)
        with pytest.raises(RequestError) as early:
            await controller.create_topics([CreateTopic("t")])
        await controller.start()
        await controller.close()
        with pytest.raises(RequestError) as late:
            await controller.create_topics([CreateTopic("t")])
        assert early.value.code is late.value.code is ErrorCode.not_controller

    asyncio.run(scenario())


def test_fencing_a_broker_with_many_partitions_takes_several_batches(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as controller:
            epoch = await join(controller)
            for name in ("a", "b"):
                await create(controller, name, 5500)
            await controller.brokers.fence(1, epoch)
            epoch = await controller.brokers.register(registration())
            assert epoch == controller.image.offset, "its own record's offset"
            await controller.brokers.unfence(1, epoch)
            fenced = controller.image
            registered = await controller.brokers.register(registration(2))
            assert registered == fenced.offset + 1
        async with running(tmp_path) as controller:
            for topic in controller.image.topics_by_name.values():
                assert {(p.leader, p.leader_epoch) for p in topic.partitions.values()} == {(1, 2)}

    asyncio.run(scenario())


def test_an_archive_is_given_up_only_while_its_topic_says_so(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path, rules=AnyConfig()) as controller:
            catalog = controller.catalog
            await join(controller)
            topic_id = await create(controller, "t")

            async def switch(on: str, delete: str) -> None:
                changes = (
                    AlterConfig("remote.storage.enable", 0, on),
                    AlterConfig("remote.log.delete.on.disable", 0, delete),
                )
                await controller.incremental_alter_configs([AlterResource(2, "t", changes)])

            first = catalog_commit(topic_id, 0, 1, 0)
            nothing = first.entry._replace(version=2, end_offset=0, segments=0, size_bytes=0)
            given_up = CatalogCommit(first.tip, 1, nothing)
            assert await catalog.commit([first]) == [CatalogResult.COMMITTED]
            for on, delete in (("true", "false"), ("false", "false"), ("true", "true")):
                await switch(on, delete)
                assert await catalog.commit([given_up]) == [CatalogResult.VERSION_CONFLICT]
            await switch("false", "true")
            assert await catalog.commit([given_up]) == [CatalogResult.COMMITTED]
            await switch("true", "false")
            assert await catalog.commit([given_up]) == [CatalogResult.COMMITTED], "that is what is there"
            assert catalog.entry(topic_id, 0) == nothing

    asyncio.run(scenario())
