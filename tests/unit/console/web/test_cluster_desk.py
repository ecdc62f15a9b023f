"""Data of the cluster pages: each request is shared by all viewers, and a hanging one hides no other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from functools import wraps
from typing import Any, TypeVar, cast

import pytest

from service.base.clock import ManualClock
from service.base.errors import StorageError
from service.client.admin_models import ClusterInfo, NodeInfo
from service.client.broker_health_queries import AnswersOfBrokers, BrokerAnswer, ask_answers
from service.client.cluster_health import (
    BrokerLoad,
    MetadataReplica,
    PartitionSummary,
    QuorumInfo,
    ReassignmentInfo,
)
from service.client.cluster_health_queries import ask_moving, ask_quorum
from service.console.web import cluster_desk
from service.console.web.cluster_desk import ClusterDesk
from service.console.web.kafka_desk import KafkaDesk
from service.console.web.ttl_cache import TtlCache
from service.health.facts import ViewFacts

T = TypeVar("T")
NOBODY: dict[int, BrokerLoad] = {}


class Kafka:
    """A cluster of two brokers that takes `took_ms` to count its partitions."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.took_ms = 0
        self.counts = self.looks = 0
        self.is_away = False
        self.view: ViewFacts | None = ViewFacts(1, 500, 9000)
        self.silence: str | None = None
        self.quorum: QuorumInfo | Exception | None = QuorumInfo(
            1, 3, 9, (MetadataReplica(1, None, 9, 5, 5),), (MetadataReplica(2, None, 9, 5, 5),)
        )

    def describe(self) -> ClusterInfo:
        if self.is_away:
            raise StorageError("away")
        self.looks += 1
        return ClusterInfo("c", 1, (NodeInfo(1, "a", 1, None, False), NodeInfo(2, "b", 1, "east", False)))

    def ask(self, question: Callable[[Any], Any]) -> Any:
        if question is ask_quorum:
            if isinstance(self.quorum, Exception):
                raise self.quorum
            return self.quorum
        if question is ask_moving:
            return (ReassignmentInfo("t", 0, (1, 2), (2,), ()),)
        if getattr(question, "func", None) is ask_answers:
            return AnswersOfBrokers(self.view, (BrokerAnswer(1), BrokerAnswer(2, silence=self.silence)))
        self.counts += 1
        self.clock.advance(self.took_ms)
        return PartitionSummary(1, self.counts, 0, 0, 0, 0, 0, 0, NOBODY, ())


def on_a_loop(scenario: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    @wraps(scenario)
    def run() -> None:
        asyncio.run(scenario())

    return run


def call(question: Callable[[], T], /) -> asyncio.Future[T]:
    async def answer() -> T:
        return question()

    return asyncio.ensure_future(answer())


def made() -> tuple[Kafka, ClusterDesk, ManualClock]:
    clock = ManualClock()
    kafka = Kafka(clock)
    return (
        kafka,
        ClusterDesk(cast("KafkaDesk", kafka), clock, call, str, cast("Executor", None), tuple),
        clock,
    )


@on_a_loop
async def test_concurrent_views_share_one_request() -> None:
    kafka, desk, clock = made()
    pages = await asyncio.gather(*(desk.find() for _ in range(20)))
    assert (kafka.looks, kafka.counts) == (1, 1)
    assert {one.partitions is not None for one in pages} == {True}
    assert [(one.node_id, one.roles) for one in pages[0].nodes] == [
        (1, ("broker", "controller")), (2, ("broker",)),
    ]  # fmt: skip
    assert pages[0].partitions is not None
    assert pages[0].partitions.shares == {1: BrokerLoad(), 2: BrokerLoad()}
    clock.advance(cluster_desk.COUNT_AGE_MS)
    await desk.find()
    assert (kafka.looks, kafka.counts) == (2, 2)
    assert pages[0].findings == ()


@on_a_loop
async def test_a_walk_that_takes_long_is_walked_seldom() -> None:
    kafka, desk, clock = made()
    kafka.took_ms = 4_000
    for _ in range(10):
        found = await desk.find()
        clock.advance(7_000)
    assert kafka.counts == 1
    assert found.age_ms == 9 * 7_000
    clock.advance(20 * kafka.took_ms)
    await desk.find()
    assert kafka.counts == 2


@on_a_loop
async def test_a_quorum_that_does_not_answer_hides_nothing_else() -> None:
    kafka, desk, clock = made()
    kafka.quorum = TimeoutError("timed out")
    found = await desk.find()
    assert [one.words for one in found.findings] == [
        "the quorum does not answer: no answer in time: is there a majority of the controllers?"
    ]
    assert [one.state for one in found.nodes] == ["unknown", "unknown"], "nobody vouches for them"
    assert (len(found.nodes), found.quorum, found.is_alone) == (2, None, False)
    assert found.partitions is not None
    assert found.moving is not None
    kafka.quorum = None
    clock.advance(cluster_desk.AGE_MS)
    assert (await desk.find()).findings == ()


@on_a_loop
async def test_a_cluster_that_is_away_is_said_and_asked_again() -> None:
    kafka, desk, clock = made()
    await desk.find()
    kafka.is_away = True
    clock.advance(cluster_desk.AGE_MS)
    found = await desk.find()
    assert found.problem == "away"
    assert [one.words for one in found.findings] == ["the cluster does not answer: away"]
    kafka.is_away = False
    clock.advance(cluster_desk.AGE_MS)
    assert (await desk.find()).problem is None


@on_a_loop
async def test_stale_metadata_and_a_silent_broker_are_found_with_since_when() -> None:
    kafka, desk, clock = made()
    kafka.view, kafka.silence = ViewFacts(1, 12_000, 9000), "refused"
    found = await desk.find()
    assert [one.words for one in found.findings] == [
        "broker 2 does not answer: refused",
        "node 1: no controller has confirmed its metadata for 12 s: they are stale",
    ]
    assert [one.state for one in found.nodes] == ["unknown", "does not answer"]
    assert found.is_stale
    began_ms = clock.now_ms()
    clock.advance(5000)
    first = (await desk.find()).findings[0]
    assert first.since_ms == began_ms, "when it was first seen"


@on_a_loop
async def test_a_hanging_request_is_awaited_once_and_the_old_answer_stays() -> None:
    clock, answers = ManualClock(), asyncio.get_running_loop().create_future
    asked: list[asyncio.Future[int]] = []

    def ask(question: Callable[[], int]) -> asyncio.Future[int]:
        asked.append(answers())
        return asked[-1]

    kept: TtlCache[int] = TtlCache(ask, clock, 1_000)
    first = await kept.get(int, 0)
    assert (first.value, first.is_querying, first.problem) == (None, True, None)
    asked[0].set_result(7)
    assert (await kept.get(int, 5)).value == 7
    clock.advance(1_000)
    waiting = [asyncio.ensure_future(kept.get(int, 0.01)) for _ in range(5)]
    waiting[0].cancel()
    found = await asyncio.gather(*waiting[1:])
    assert {(one.value, one.age_ms, one.is_querying) for one in found} == {(7, 1_000, True)}
    assert len(asked) == 2
    asked[1].set_exception(ValueError("a bug"))
    with pytest.raises(ValueError, match="a bug"):
        await kept.get(int, 5)
