"""The desk of groups: one list for all who ask, and groups that are looked at again by themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, TypeVar, cast

import pytest

from service.base.errors import StorageError
from service.console.web import group_desk, group_sampler
from service.console.web.group_desk import GroupDesk
from service.console.web.kafka_desk import KafkaDesk
from service.console.web.lags import LEAST_STEP_MS, MOST_GROUPS
from service.groups.admin_models import (
    CONSUMER,
    GroupInfo,
    GroupRow,
    GroupSummary,
    Listing,
    PartitionProgress,
)
from service.groups.admin_queries import list_groups

T = TypeVar("T")
NAMES = tuple(f"g{n:02d}" for n in range(MOST_GROUPS + 4))


class Clock:
    """Each look at it is a step later than the one before."""

    def __init__(self, step_ms: int) -> None:
        self.ms, self.step_ms = 0, step_ms

    def monotonic_ms(self) -> int:
        self.ms += self.step_ms
        return self.ms


def row(name: str) -> GroupRow:
    return GroupRow(name, 1, "Stable", CONSUMER, "consumer")


class Kafka:
    """A cluster with groups that are always one further behind."""

    def __init__(self) -> None:
        self.lists, self.looks, self.is_away = 0, 0, False

    def ask(self, question: Callable[[Any], Any]) -> Any:
        if self.is_away:
            raise StorageError("away")
        if question is list_groups:
            self.lists += 1
            return Listing(tuple(row(name) for name in NAMES))
        if "GroupSampler" in question.__qualname__:
            return {name: GroupSummary(row(name), 2, 7) for name in NAMES[:1]}
        self.looks += 1
        return GroupInfo(
            GroupRow("g", 1, "Stable", CONSUMER, "consumer"), "uniform", 1, 1, (),
            (PartitionProgress("t", 0, 0, self.looks, None),),
        )  # fmt: skip


def on_a_loop(scenario: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(scenario)
    def run(**fixtures: Any) -> None:
        asyncio.run(scenario(**fixtures))

    return run


def call(question: Callable[[], T], /) -> asyncio.Future[T]:
    async def answer() -> T:
        return question()

    return asyncio.ensure_future(answer())


def desk(kafka: Kafka, step_ms: int = 1) -> GroupDesk:
    return GroupDesk(cast("KafkaDesk", kafka), cast("Any", Clock(step_ms)), call, str)


@on_a_loop
async def test_concurrent_views_share_one_list_of_groups() -> None:
    kafka = Kafka()
    found = desk(kafka)
    pages = await asyncio.gather(*(found.find_groups("", n) for n in range(20)))
    assert {one.total for one in pages} == {len(NAMES)}
    await found.find_groups("g1", 1)
    assert kafka.lists == 1


@on_a_loop
async def test_the_list_has_members_and_lag_and_sorts_by_lag() -> None:
    page = await desk(Kafka()).find_groups("", 1, "lag")
    assert page.summaries[NAMES[0]].lag == 7
    assert NAMES[1] not in page.summaries
    assert page.rows[0].group_id == NAMES[0]
    assert (await desk(Kafka()).find_groups("", 1, "nonsense")).sort == "id"


@on_a_loop
async def test_every_groups_lag_has_a_past_before_anybody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_sampler, "EVERY_S", 0)
    monkeypatch.setattr(group_sampler, "_COST_FACTOR", 0)
    found = desk(Kafka(), group_sampler.LEAST_STEP_MS)
    sampling = asyncio.ensure_future(found.sampler.run())
    try:
        while len(found.sampler.history(NAMES[0])) < 3:
            assert not sampling.done()
            await asyncio.sleep(0)
    finally:
        sampling.cancel()
    page = await found.find_group(NAMES[0], 1)
    assert [lag for _, lag in page.past][:3] == [7, 7, 7]


@on_a_loop
async def test_a_cluster_that_is_away_is_said_and_asked_again() -> None:
    kafka = Kafka()
    found = desk(kafka)
    kafka.is_away = True
    assert (await found.find_groups("", 1)).problem == "away"
    assert (await found.find_group("g00", 1)).status == 503
    kafka.is_away = False
    assert (await found.find_groups("", 1)).problem is None
    assert (await found.find_group("nobody", 1)).status == 404


@on_a_loop
async def test_a_group_that_was_looked_at_gets_a_past_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_desk, "SAMPLE_S", 0)
    kafka = Kafka()
    found = desk(kafka, LEAST_STEP_MS)
    await found.find_group("g00", 1)
    watching = asyncio.ensure_future(found.run())
    try:
        while kafka.looks < 10:
            assert not watching.done()
            await asyncio.sleep(0)
        kafka.is_away = True
        for _ in range(20):
            await asyncio.sleep(0)
        assert not watching.done()
        kafka.is_away = False
        page = await found.find_group("g00", 1)
        assert [lag for _, lag in page.lags["t", 0]][:10] == list(range(1, 11))
    finally:
        watching.cancel()


@on_a_loop
async def test_unwatched_groups_are_not_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_desk, "SAMPLE_S", 0)
    kafka = Kafka()
    found = desk(kafka)
    for name in NAMES:
        await found.find_group(name, 1)
    monkeypatch.setattr(group_desk, "WATCHED_MS", -1)
    watching = asyncio.ensure_future(found.run())
    try:
        for _ in range(20):
            await asyncio.sleep(0)
        assert kafka.looks == len(NAMES)
    finally:
        watching.cancel()
