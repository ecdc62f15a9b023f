"""Data of the cluster pages: each request is shared by all viewers, and a hanging one hides no other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, TypeVar, cast

import pytest

from service.base.clock import ManualClock
from service.base.errors import StorageError
from service.client.admin_models import ClusterInfo, NodeInfo
from service.client.broker_health_queries import BrokerAnswer
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
        self.views: dict[int, ViewFacts | None] = {1: ViewFacts(1, 500, 9000), 2: ViewFacts(2, 500, 9000)}
        self.silence: str | None = None
        self.fenced: dict[int, set[int]] = {}
        """By broker: those that are fenced, as it knows"""
        self.quorum: QuorumInfo | Exception | None = QuorumInfo(
            1, 3, 9, (MetadataReplica(1, None, 9, 5, 5),), (MetadataReplica(2, None, 9, 5, 5),)
        )

    def describe(self) -> ClusterInfo:
        if self.is_away:
            raise StorageError("away")
        self.looks += 1
        return self._cluster(1)

    def _cluster(self, at: int) -> ClusterInfo:
        fenced = self.fenced.get(at, set())
        nodes = (NodeInfo(1, "a", 1, None, 1 in fenced), NodeInfo(2, "b", 1, "east", 2 in fenced))
        return ClusterInfo("c", 1, nodes)

    def ask_broker(self, broker: NodeInfo, *, is_alone: bool) -> BrokerAnswer:
        assert not is_alone
        at = broker.node_id
        if self.is_away or (at == 2 and self.silence is not None):
            return BrokerAnswer(at, silence=self.silence or "away")
        return BrokerAnswer(at, view=self.views[at], cluster=self._cluster(at))

    def ask(self, question: Callable[[Any], Any], *, is_for_controllers: bool = False) -> Any:
        assert is_for_controllers == (question in (ask_quorum, ask_moving))
        if question is ask_quorum:
            if isinstance(self.quorum, Exception):
                raise self.quorum
            return self.quorum
        if question is ask_moving:
            return (ReassignmentInfo("t", 0, (1, 2), (2,), ()),)
        self.counts += 1
        self.clock.advance(self.took_ms)
        return PartitionSummary(1, self.counts, 0, 0, 0, 0, 0, 0, NOBODY, ())


def on_a_loop(scenario: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(scenario)
    def run(**fixtures: Any) -> None:
        asyncio.run(scenario(**fixtures))

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
        ClusterDesk(cast("KafkaDesk", kafka), clock, call, str, tuple),
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
    kafka.views[1], kafka.silence = ViewFacts(1, 12_000, 9000), "refused"
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
async def test_the_cluster_is_shown_as_the_broker_with_the_newest_metadata_knows_it() -> None:
    kafka, desk, _ = made()
    kafka.views[1] = ViewFacts(1, 12_000, 9000)
    kafka.fenced[2] = {1}
    found = await desk.find()
    assert [one.state for one in found.nodes] == ["fenced", "ok"]
    assert "broker 1 is down: the controller has fenced it" in [one.words for one in found.findings]
    assert not found.is_stale


class Hanging:
    """Calls of which those of some brokers do not come back."""

    def __init__(self) -> None:
        self.brokers: set[int] = set()
        self.is_named = True

    def call(self, question: Callable[[], T], /) -> asyncio.Future[T]:
        args = getattr(question, "args", ())
        is_describe = getattr(question, "__name__", "") == "describe"
        if (args and args[0].node_id in self.brokers) or (is_describe and not self.is_named):
            return asyncio.get_running_loop().create_future()
        return call(question)


@on_a_loop
async def test_a_broker_that_hangs_hides_no_answer_of_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_desk, "WAIT_S", 0.05)
    clock, hanging = ManualClock(), Hanging()
    kafka = Kafka(clock)
    desk = ClusterDesk(cast("KafkaDesk", kafka), clock, hanging.call, str, tuple)

    async def words() -> list[str]:
        clock.advance(cluster_desk.AGE_MS)
        return [one.words for one in (await desk.find()).findings]

    await desk.find()
    hanging.brokers, hanging.is_named = {1}, False
    assert [await words() for _ in range(3)] == [[], [], []], "its last answer stands for some seconds"
    assert await words() == ["broker 1 does not answer: no answer for 6 s"]
    kafka.fenced[2] = {1}
    assert await words() == ["broker 1 is down: the controller has fenced it"]


@on_a_loop
async def test_an_answer_that_does_not_come_is_waited_for_once() -> None:
    clock = ManualClock()
    kept: TtlCache[int] = TtlCache(lambda _: asyncio.get_running_loop().create_future(), clock, 1_000)
    await kept.get(int, 0.01)
    clock.advance(2_000)
    async with asyncio.timeout(5):
        found = await kept.get(int, 2)
    assert found.is_querying


@on_a_loop
async def test_a_query_that_waited_long_is_asked_again_soon_where_that_is_said() -> None:
    clock, asked = ManualClock(), 0

    def slow() -> int:
        nonlocal asked
        asked += 1
        clock.advance(3_000)
        return asked

    kept: TtlCache[int] = TtlCache(call, clock, 1_000, most_pause_ms=2_000)
    assert (await kept.get(slow, 5)).value == 1
    clock.advance(1_999)
    assert (await kept.get(slow, 5)).value == 1
    clock.advance(1)
    assert (await kept.get(slow, 5)).value == 2


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
