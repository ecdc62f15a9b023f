"""The catalog by CommitCatalog: the contract of every catalog, batches, barriers, refusals, odd answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError, StorageError
from service.base.types import TopicIdPartition
from service.controller_client.remote_log_catalog import (
    Registration,
    RpcCatalog,
    batches,
    change_of,
    commits_of,
    error_response,
    response_of,
    result_of,
)
from service.remote.catalog import (
    Catalog,
    CatalogCommit,
    CatalogEntry,
    CatalogResult,
    Erasure,
    RewriteIntent,
    Tombstone,
)
from service.wire.apis import ApiKey
from service.wire.catalog import MAX_COMMITS, CommitCatalogRequest, CommitCatalogResponse
from service.wire.errors import UnsupportedVersion
from tests.support.virtual_loop import run_virtually
from tests.unit.tiering.catalogs import ImageCatalog, Wire, rpc_catalog
from tests.unit.tiering.world import CatalogView, Fault, MemoryCatalog, once

TOPIC = UUID(int=7)


def tip(partition: int = 0) -> TopicIdPartition:
    return TopicIdPartition(TOPIC, "events", partition)


def entry(version: int = 1, epoch: int = 3, start: int = 0, end: int = 10) -> CatalogEntry:
    return CatalogEntry(version, f"manifest-{version}", epoch, start, end, 1, 500)


def commit(version: int = 1, partition: int = 0, **more: int) -> CatalogCommit:
    return CatalogCommit(tip(partition), version - 1, entry(version, **more))


class Setting:
    """One catalog of each kind over the same dictionary."""

    def __init__(self, kind: str) -> None:
        self.store = MemoryCatalog() if kind == "memory" else ImageCatalog()
        self.store.leader_epochs = {(TOPIC, partition): 3 for partition in range(4)}
        view = CatalogView(self.store)
        self.wire = Wire(self.store, Random(3))
        self.catalog: Catalog = rpc_catalog(view, self.wire) if kind == "rpc" else view


KINDS = pytest.mark.parametrize("kind", ["memory", "controller", "rpc"])


@KINDS
def test_commits_are_answered_in_order_each_by_the_rule(kind: str) -> None:
    async def scenario() -> None:
        setting = Setting(kind)
        stranger = CatalogCommit(TopicIdPartition(UUID(int=9), "gone", 0), 0, entry())
        results = await setting.catalog.commit(
            [commit(1), commit(1, 1, epoch=2), commit(2, 2), stranger, commit(1, 3)]
        )
        assert results == [
            CatalogResult.COMMITTED,
            CatalogResult.FENCED,
            CatalogResult.VERSION_CONFLICT,
            CatalogResult.UNKNOWN_PARTITION,
            CatalogResult.COMMITTED,
        ]
        assert setting.catalog.entry(TOPIC, 0) == entry(1)
        assert setting.catalog.entry(TOPIC, 1) is None

    run_virtually(scenario())


@KINDS
def test_the_same_commit_again_is_committed_again(kind: str) -> None:
    async def scenario() -> None:
        setting = Setting(kind)
        assert await setting.catalog.commit([commit(1)]) == [CatalogResult.COMMITTED]
        assert await setting.catalog.commit([commit(1)]) == [CatalogResult.COMMITTED]
        setting.store.leader_epochs[TOPIC, 0] = 4
        assert await setting.catalog.commit([commit(1)]) == [CatalogResult.COMMITTED]  # it was
        assert await setting.catalog.commit([commit(2)]) == [CatalogResult.FENCED]
        assert len(setting.store.history) == 1

    run_virtually(scenario())


@KINDS
def test_tombstones_are_seen_and_forgotten(kind: str) -> None:
    async def scenario() -> None:
        setting = Setting(kind)
        setting.store.buried = {
            UUID(int=number): Tombstone(UUID(int=number), "old", 1, 5) for number in range(1, 1202)
        }
        assert len(setting.catalog.tombstones()) == 1201
        await setting.catalog.forget_topics([UUID(int=number) for number in range(2, 1202)])
        assert list(setting.catalog.tombstones()) == [UUID(int=1)]
        await setting.catalog.forget_topics([])

    run_virtually(scenario())


def test_a_lost_answer_is_asked_for_again_and_counts_once() -> None:
    async def scenario() -> None:
        setting = Setting("rpc")
        setting.store.decide = once("commit", Fault.LIE)
        assert await setting.catalog.commit([commit(1)]) == [CatalogResult.COMMITTED]
        assert (setting.wire.served, len(setting.store.history)) == (2, 1)

    run_virtually(scenario())


def test_a_network_that_loses_doubles_and_delays_commits_each_once() -> None:
    async def scenario() -> None:
        for seed in range(30):
            setting = Setting("rpc")
            setting.wire._random = Random(seed)
            setting.wire.fault_share = 0.2
            for version in range(1, 15):
                assert await setting.catalog.commit([commit(version, end=10 * version)]) == [
                    CatalogResult.COMMITTED
                ]
            assert [one.entry.version for one in setting.store.history] == list(range(1, 15)), f"seed {seed}"

    run_virtually(scenario())


class Answers:
    """A queue to a controller that answers what it is told to."""

    def __init__(self, answer: Any | Callable[[CommitCatalogRequest], Any]) -> None:
        self.answer = answer
        self.asked: list[CommitCatalogRequest] = []

    async def ask(self, api_key: int, message: Any, *, timeout_ms: int, inner_key: int | None = None) -> Any:
        assert api_key == ApiKey.COMMIT_CATALOG
        self.asked.append(message)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer(message) if callable(self.answer) else self.answer


class View:
    def __init__(self, offset: int = 0) -> None:
        self.offset = offset
        self.waited: list[int] = []

    def entry(self, topic_id: UUID, partition: int) -> CatalogEntry | None:
        return None

    def tombstones(self) -> dict[UUID, Tombstone]:
        return {}

    def rewrite(self, topic_id: UUID, partition: int) -> RewriteIntent | None:
        return None

    def erasures(self) -> dict[UUID, Erasure]:
        return {}

    def erased(self, erasure_id: UUID) -> dict[tuple[UUID, int], frozenset[int]]:
        return {}

    async def reached(self, offset: int) -> None:
        self.waited.append(offset)
        while self.offset < offset:
            await asyncio.sleep(0.01)


def catalog_of(answer: Any, view: View | None = None) -> tuple[RpcCatalog, Answers]:
    answers = Answers(answer)
    return RpcCatalog(answers, view or View(1000), lambda: Registration(4, 44), timeout_ms=300), answers


def all_committed(request: CommitCatalogRequest) -> CommitCatalogResponse:
    return response_of([CatalogResult.COMMITTED] * len(request.commits), 77)


def test_a_request_has_at_most_500_commits_and_no_partition_twice() -> None:
    many = [commit(1, partition) for partition in range(1_200)]
    assert [len(batch) for batch in batches(many)] == [500, 500, 200]
    twice = [commit(1, 0), commit(1, 1), commit(2, 0), commit(2, 1), commit(3, 1)]
    assert [len(batch) for batch in batches(twice)] == [2, 2, 1]
    assert [one for batch in batches(twice) for one in batch] == twice
    assert list(batches([])) == []

    async def scenario() -> None:
        catalog, answers = catalog_of(all_committed)
        assert await catalog.commit(many) == [CatalogResult.COMMITTED] * 1_200
        assert [len(one.commits) for one in answers.asked] == [500, 500, 200]
        assert {(one.broker_id, one.broker_epoch) for one in answers.asked} == {(4, 44)}

    run_virtually(scenario())


def test_a_commit_returns_once_the_image_has_it() -> None:
    async def scenario() -> None:
        view = View()
        catalog, _ = catalog_of(all_committed, view)
        asyncio.get_running_loop().call_later(0.1, setattr, view, "offset", 77)
        await catalog.commit([commit(1)])
        assert view.offset == 77

    run_virtually(scenario())


def test_an_image_that_lags_for_long_does_not_hide_the_result() -> None:
    async def scenario() -> None:
        catalog, _ = catalog_of(all_committed, View(0))
        assert await catalog.commit([commit(1)]) == [CatalogResult.COMMITTED]

    run_virtually(scenario())


def test_a_barrier_is_an_empty_request_and_ends_when_the_image_is_there() -> None:
    async def scenario() -> None:
        view = View(77)
        catalog, answers = catalog_of(all_committed, view)
        assert await catalog.barrier() == 77
        assert (answers.asked[0].commits, view.waited) == ((), [77])
        late, _ = catalog_of(all_committed, View(0))
        with pytest.raises(StorageError, match="not reached offset 77"):
            await late.barrier()
        fenced, _ = catalog_of(error_response(ErrorCode.stale_broker_epoch))
        with pytest.raises(StorageError, match="stale_broker_epoch"):
            await fenced.barrier()

    run_virtually(scenario())


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (RequestError(ErrorCode.request_timed_out), StorageError),
        (UnsupportedVersion("Kafka's controller"), StorageError),
        (error_response(ErrorCode.stale_broker_epoch), StorageError),
        (error_response(ErrorCode.invalid_request), RequestError),
        (CommitCatalogResponse(error_code=999), StorageError),  # type: ignore[arg-type]
        (response_of([], 5), StorageError),
        (response_of([CatalogResult.COMMITTED] * 2, 5), StorageError),
        (CommitCatalogResponse(error_code=ErrorCode.none, results=(9,)), StorageError),
        (CommitCatalogResponse(error_code=ErrorCode.none, results=(-1,)), StorageError),
    ],
)
def test_answers_that_are_none_leave_the_outcome_unknown(answer: Any, error: type[Exception]) -> None:
    async def scenario() -> None:
        catalog, _ = catalog_of(answer)
        with pytest.raises(error):
            await catalog.commit([commit(1)])

    run_virtually(scenario())


def test_the_controllers_side_reads_what_the_brokers_wrote() -> None:
    commits = [commit(version, version) for version in range(1, 4)]
    request = CommitCatalogRequest(broker_id=1, broker_epoch=2, commits=tuple(map(change_of, commits)))
    assert commits_of(request, {TOPIC: "events"}.get) == commits
    assert commits_of(request, lambda topic_id: None)[0].tip == TopicIdPartition(TOPIC, "", 1)
    over = CommitCatalogRequest(
        broker_id=1, broker_epoch=2, commits=tuple(map(change_of, commits[:1])) * (MAX_COMMITS + 1)
    )
    with pytest.raises(RequestError) as caught:
        commits_of(over, {TOPIC: "events"}.get)
    assert caught.value.code is ErrorCode.invalid_request


def test_results_have_fixed_numbers() -> None:
    assert [result_of(number).value for number in range(5)] == [
        "committed",
        "fenced",
        "version-conflict",
        "unknown-partition",
        "no-intent",
    ]
