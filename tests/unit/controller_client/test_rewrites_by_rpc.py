"""Rewrites and erasures by CommitCatalog: as every catalog has them, in few requests, refused by name."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError, StorageError
from service.base.types import TopicIdPartition
from service.controller_client.remote_log_catalog import RpcCatalog, error_response, response_of
from service.controller_client.rewrite_messages import erased_of, erasures_of, rewrites_of
from service.remote.catalog import (
    IN_BUCKET,
    CatalogCommit,
    CatalogEntry,
    CatalogResult,
    ErasedPlace,
    Erasure,
    NodeCatalog,
    RewriteAnswer,
    RewriteIntent,
    RewriteKind,
)
from service.wire.catalog import (
    MAX_COMMITS,
    MAX_ERASED_PLACES,
    MAX_ERASURES_IN_REQUEST,
    CatalogErasure,
    CatalogRewrite,
    CommitCatalogRequest,
    CommitCatalogResponse,
    ErasedNote,
    LoadedPartition,
    LoadedTopic,
)
from tests.support.virtual_loop import run_virtually
from tests.unit.controller_client.test_remote_log_catalog import KINDS, Setting, catalog_of

TOPIC = UUID(int=7)
TIP = TopicIdPartition(TOPIC, "events", 0)
INTENT = RewriteIntent(UUID(int=31), 0, 9, RewriteKind.MERGE, 3, 60)
ENTRY = CatalogEntry(1, "m1", 3, 0, 10, 4, 500)
ORDER_ID = UUID(int=41)
ORDER = Erasure(ORDER_ID, f"erase/{ORDER_ID}.json.gz", 900, 77, 3, (TOPIC,), 60)


def places(count: int, leader_epoch: int = 3) -> list[ErasedPlace]:
    return [ErasedPlace(TOPIC, number, leader_epoch) for number in range(count)]


def node_catalog(kind: str) -> tuple[Setting, Any]:
    setting = Setting(kind)
    catalog: NodeCatalog = setting.catalog  # type: ignore[assignment]
    return setting, catalog


@KINDS
def test_a_rewrite_begins_is_committed_and_is_gone(kind: str) -> None:
    async def scenario() -> None:
        setting, catalog = node_catalog(kind)
        assert await catalog.begin_rewrite(TIP, INTENT) is RewriteAnswer.BUSY, "there is no chain"
        await catalog.commit([CatalogCommit(TIP, 0, ENTRY)])
        assert await catalog.begin_rewrite(TIP, INTENT) is RewriteAnswer.BEGUN
        assert await catalog.begin_rewrite(TIP, INTENT) is RewriteAnswer.BEGUN
        assert catalog.rewrite(TOPIC, 0) == INTENT
        other = INTENT._replace(rewrite_id=UUID(int=32))
        assert await catalog.begin_rewrite(TIP, other) is RewriteAnswer.BUSY
        merged = CatalogCommit(TIP, 1, ENTRY._replace(version=2, segments=1), INTENT.rewrite_id)
        assert await catalog.commit([merged]) == [CatalogResult.COMMITTED]
        assert catalog.rewrite(TOPIC, 0) is None
        again = CatalogCommit(TIP, 2, ENTRY._replace(version=3, segments=1), INTENT.rewrite_id)
        assert await catalog.commit([again]) == [CatalogResult.NO_INTENT]
        assert await catalog.begin_rewrite(TIP, other) is RewriteAnswer.BEGUN
        await catalog.give_up_rewrite(TIP, INTENT.rewrite_id)
        assert catalog.rewrite(TOPIC, 0) == other
        await catalog.give_up_rewrite(TIP, other.rewrite_id)
        assert catalog.rewrite(TOPIC, 0) is None
        setting.store.leader_epochs[TOPIC, 0] = 4
        assert await catalog.begin_rewrite(TIP, other) is RewriteAnswer.FENCED
        stranger = TIP._replace(topic_id=UUID(int=9))
        assert await catalog.begin_rewrite(stranger, other) is RewriteAnswer.UNKNOWN_PARTITION

    run_virtually(scenario())


@KINDS
def test_an_order_starts_is_noted_done_and_removed(kind: str) -> None:
    async def scenario() -> None:
        _, catalog = node_catalog(kind)
        await catalog.start_erasure(ORDER)
        await catalog.start_erasure(ORDER)
        assert dict(catalog.erasures()) == {ORDER_ID: ORDER}
        with pytest.raises(RequestError, match="is not done") as refused:
            await catalog.finish_erasure(ORDER_ID, 80)
        assert refused.value.code is ErrorCode.invalid_request
        await catalog.note_erased(ORDER_ID, places(4), 1)
        await catalog.note_erased(ORDER_ID, places(4, leader_epoch=2), IN_BUCKET)
        assert dict(catalog.erased(ORDER_ID)) == {(TOPIC, number): {1} for number in range(4)}
        await catalog.note_erased(ORDER_ID, places(4), IN_BUCKET)
        await catalog.finish_erasure(ORDER_ID, 80)
        assert catalog.erasures()[ORDER_ID].done_ms == 80
        await catalog.remove_erasure(ORDER_ID)
        await catalog.remove_erasure(ORDER_ID)
        assert (dict(catalog.erasures()), dict(catalog.erased(ORDER_ID))) == ({}, {})

    run_virtually(scenario())


def test_a_network_that_loses_doubles_and_delays_leaves_one_outcome() -> None:
    async def scenario() -> None:
        for seed in range(15):
            setting, catalog = node_catalog("rpc")
            await catalog.commit([CatalogCommit(TIP, 0, ENTRY)])
            setting.wire._random = Random(seed)
            setting.wire.fault_share = 0.2
            assert await catalog.begin_rewrite(TIP, INTENT) is RewriteAnswer.BEGUN
            await catalog.give_up_rewrite(TIP, INTENT.rewrite_id)
            await catalog.start_erasure(ORDER)
            await catalog.note_erased(ORDER_ID, places(4), 1)
            await catalog.note_erased(ORDER_ID, places(4), IN_BUCKET)
            await catalog.finish_erasure(ORDER_ID, 80)
            assert catalog.erasures()[ORDER_ID].done_ms == 80, f"seed {seed}"

    run_virtually(scenario())


def test_notes_of_ten_thousand_partitions_are_a_few_requests() -> None:
    async def scenario() -> None:
        catalog, answers = catalog_of(lambda request: response_of([], 5))
        await catalog.note_erased(ORDER_ID, places(10_000), 4)
        assert [len(erased_of(one)[0].places) for one in answers.asked] == [MAX_ERASED_PLACES] * 2
        answers.asked.clear()
        await asyncio.gather(*(catalog.note_erased(ORDER_ID, [one], 4) for one in places(10_000)))
        assert len(answers.asked) <= 4
        told = [one for request in answers.asked for note in erased_of(request) for one in note.places]
        assert sorted(told) == places(10_000)

    run_virtually(scenario())


def test_notes_of_many_orders_are_in_several_requests() -> None:
    async def scenario() -> None:
        catalog, answers = catalog_of(lambda request: response_of([], 5))
        ids = [UUID(int=number) for number in range(1, MAX_ERASURES_IN_REQUEST + 6)]
        await asyncio.gather(*(catalog.note_erased(one, places(2), 4) for one in ids))
        assert len(answers.asked) <= 3
        assert all(len(one.erased) <= MAX_ERASURES_IN_REQUEST for one in answers.asked)
        assert {note.erasure_id for one in answers.asked for note in one.erased} == {*ids}

    run_virtually(scenario())


class Slow:
    """Answers that come when they are let through."""

    def __init__(self, *outcomes: Any) -> None:
        self.outcomes = list(outcomes)
        self.free = asyncio.Event()
        self.asked: list[CommitCatalogRequest] = []

    async def ask(self, api_key: int, message: Any, *, timeout_ms: int, inner_key: int | None = None) -> Any:
        self.asked.append(message)
        await self.free.wait()
        outcome = self.outcomes.pop(0) if self.outcomes else response_of([], 5)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def slow_catalog(*outcomes: Any) -> tuple[RpcCatalog, Slow]:
    catalog, _ = catalog_of(None)
    slow = Slow(*outcomes)
    catalog._controllers = slow
    return catalog, slow


def test_a_failure_is_raised_to_those_whose_notes_were_in_the_request() -> None:
    async def scenario() -> None:
        lost = RequestError(ErrorCode.request_timed_out)
        catalog, slow = slow_catalog(lost)
        first = asyncio.create_task(catalog.note_erased(ORDER_ID, places(1), 4))
        await asyncio.sleep(0.01)
        later = [asyncio.create_task(catalog.note_erased(ORDER_ID, places(2), 4)) for _ in range(3)]
        await asyncio.sleep(0.01)
        slow.free.set()
        with pytest.raises(StorageError):
            await first
        await asyncio.gather(*later)
        assert len(slow.asked) == 2

    run_virtually(scenario())


def test_a_caller_that_gives_up_does_not_take_the_notes_of_others_along() -> None:
    async def scenario() -> None:
        catalog, slow = slow_catalog()
        first = asyncio.create_task(catalog.note_erased(ORDER_ID, places(1), 4))
        await asyncio.sleep(0.01)
        second = asyncio.create_task(catalog.note_erased(ORDER_ID, places(2), 4))
        third = asyncio.create_task(catalog.note_erased(ORDER_ID, places(3), 4))
        await asyncio.sleep(0.01)
        first.cancel()
        await asyncio.sleep(0.01)
        assert len(slow.asked) == 2
        second.cancel()
        await asyncio.sleep(0.01)
        slow.free.set()
        await third
        assert sorted(erased_of(slow.asked[-1])[0].places) == places(3)
        assert [one.cancelled() for one in (first, second)] == [True, True]

    run_virtually(scenario())


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (error_response(ErrorCode.unsupported_version, "level 2"), ErrorCode.unsupported_version),
        (error_response(ErrorCode.policy_violation, "64 orders"), ErrorCode.policy_violation),
        (error_response(ErrorCode.invalid_request, "no keys"), ErrorCode.invalid_request),
        (error_response(ErrorCode.unknown_topic_id, "no topic"), ErrorCode.unknown_topic_id),
        (error_response(ErrorCode.invalid_topic_exception, "internal"), ErrorCode.invalid_topic_exception),
        (error_response(ErrorCode.stale_broker_epoch), None),
        (error_response(ErrorCode.not_controller), None),
        (RequestError(ErrorCode.request_timed_out), None),
    ],
)
def test_a_refusal_is_told_with_its_words_and_all_else_is_unknown(
    answer: Any, code: ErrorCode | None
) -> None:
    async def scenario() -> None:
        catalog, _ = catalog_of(answer)
        with pytest.raises(StorageError if code is None else RequestError) as refused:
            await catalog.start_erasure(ORDER)
        if code is not None:
            error: Any = refused.value
            assert (error.code, error.message) == (code, answer.error_message)

    run_virtually(scenario())


@pytest.mark.parametrize("numbers", [(), (0, 0), (4,), (-1,)])
def test_answers_to_a_rewrite_that_are_none_leave_the_outcome_unknown(numbers: tuple[int, ...]) -> None:
    async def scenario() -> None:
        catalog, _ = catalog_of(replace(response_of([], 5), rewrite_answers=numbers))
        with pytest.raises(StorageError, match="the catalog answers 1 rewrites"):
            await catalog.begin_rewrite(TIP, INTENT)

    run_virtually(scenario())


def request(**what: Any) -> CommitCatalogRequest:
    return CommitCatalogRequest(broker_id=1, broker_epoch=2, **what)


CHANGE = CatalogRewrite(topic_id=TOPIC, partition=0, op=0, rewrite_id=INTENT.rewrite_id, kind=1)
NOTE = ErasedNote(erasure_id=ORDER_ID, broker_id=1, topics=())
WIDE = LoadedTopic(
    topic_id=TOPIC, partitions=(LoadedPartition(partition=0, leader_epoch=3),) * (MAX_ERASED_PLACES + 1)
)


@pytest.mark.parametrize(
    "asked",
    [
        request(rewrites=(CHANGE,) * (MAX_COMMITS + 1)),
        request(rewrites=(replace(CHANGE, op=2),)),
        request(rewrites=(replace(CHANGE, kind=3),)),
        request(rewrites=(replace(CHANGE, kind=0),)),
        request(erased=(NOTE,) * (MAX_ERASURES_IN_REQUEST + 1)),
        request(erased=(replace(NOTE, topics=(WIDE,)),)),
        request(erasures=(CatalogErasure(op=2, id=ORDER_ID),) * (MAX_ERASURES_IN_REQUEST + 1)),
        request(erasures=(CatalogErasure(op=3, id=ORDER_ID),)),
        request(erasures=(CatalogErasure(op=-1, id=ORDER_ID),)),
    ],
)
def test_a_request_beyond_its_bounds_is_refused(asked: CommitCatalogRequest) -> None:
    def read() -> None:
        rewrites_of(asked, lambda topic_id: None)
        erased_of(asked)
        erasures_of(asked)

    with pytest.raises(RequestError) as refused:
        read()
    assert refused.value.code is ErrorCode.invalid_request


def test_an_older_controller_that_answers_nothing_about_a_rewrite_is_no_answer() -> None:
    async def scenario() -> None:
        catalog, _ = catalog_of(CommitCatalogResponse(error_code=ErrorCode.none, metadata_offset=5))
        with pytest.raises(StorageError):
            await catalog.begin_rewrite(TIP, INTENT)

    run_virtually(scenario())
