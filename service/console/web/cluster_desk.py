"""Data of the cluster page: nodes, quorum and reassignments at once, partitions once they are counted.

Each of the four is queried by itself, so a quorum that does not answer does not delay the nodes. All
partitions are read a page at a time on a thread, at most a twentieth of the time while the page is requested,
and not otherwise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any, Final

from service.base.clock import Clock
from service.client.admin_models import ClusterInfo
from service.client.broker_health_queries import AnswersOfBrokers, ask_answers, is_own, with_answers
from service.client.cluster_health import (
    PartitionSummary,
    QuorumInfo,
    ReassignmentInfo,
    is_alone,
    nodes_of,
    partitions_of,
    voters_of,
    with_idle_brokers,
    with_states,
)
from service.client.cluster_health_queries import (
    ask_moving,
    ask_partitions,
    ask_quorum,
    is_without_leader,
    why_unanswered,
)
from service.console.web.history import NodeSample
from service.console.web.kafka_desk import KafkaDesk
from service.console.web.pages import cluster
from service.console.web.ttl_cache import Cached, Call, TtlCache
from service.health.facts import ClusterFacts, ListenerFacts, UnansweredFacts
from service.health.findings import Finding
from service.health.judge import judge, seconds
from service.health.sightings import Sightings

AGE_MS: Final = 1_500
WAIT_S: Final = 1.5
"""Longest wait for the first answer of a query."""
LATE_MS: Final = 5_000
"""Age of the last answer of the quorum, above which it is said to be silent."""
COUNT_AGE_MS: Final = 3_000
COUNT_WAIT_S: Final = 0.5


class ClusterDesk:
    """Reader of one cluster's health. Owned by the event loop; `call` runs queries on threads."""

    def __init__(
        self,
        kafka: KafkaDesk,
        clock: Clock,
        call: Call,
        error_text: Callable[[BaseException], str],
        pool: Executor,
        samples: Callable[[], Sequence[NodeSample]],
    ) -> None:
        """`pool` asks several brokers at the same time; `samples` are those of the HTTP listeners."""
        self._kafka = kafka
        self._error_text = error_text
        self._brokers: TtlCache[ClusterInfo] = TtlCache(call, clock, AGE_MS)
        self._quorum: TtlCache[QuorumInfo | None] = TtlCache(call, clock, AGE_MS)
        self._moving: TtlCache[tuple[ReassignmentInfo, ...]] = TtlCache(call, clock, AGE_MS)
        self._partitions: TtlCache[PartitionSummary] = TtlCache(call, clock, COUNT_AGE_MS)
        self._answers: TtlCache[AnswersOfBrokers] = TtlCache(call, clock, AGE_MS)
        self._ask_answers = partial(ask_answers, pool=pool)
        self._samples = samples
        self._clock = clock
        self._sightings = Sightings()

    async def find(self) -> cluster.ClusterPage:
        """Return all data known now."""
        brokers, quorum, moving, answers = await asyncio.gather(
            self._brokers.get(self._kafka.describe, WAIT_S),
            self._quorum.get(lambda: self._kafka.ask(ask_quorum), WAIT_S),
            self._moving.get(lambda: self._kafka.ask(ask_moving), WAIT_S),
            self._answers.get(lambda: self._kafka.ask(self._ask_answers), WAIT_S),
        )
        info = brokers.value
        if info is None or brokers.problem is not None:
            facts = ClusterFacts(silence=self._why(brokers))
            return cluster.ClusterPage(problem=self._why(brokers), findings=self._judged(facts))
        known = moving.value or ()
        counted = await self._partitions.get(
            lambda: self._kafka.ask(lambda one: ask_partitions(one, known, cluster.MOST_ILL)), COUNT_WAIT_S
        )
        alone = quorum.value is None and quorum.problem is None and not quorum.is_querying and is_alone(info)
        partitions = None if counted.value is None else with_idle_brokers(counted.value, info.nodes)
        facts = self._facts(info, answers, quorum, moving, counted)
        led = None if quorum.problem is not None else quorum.value
        return cluster.ClusterPage(
            info.cluster_id,
            with_states(nodes_of(info.nodes, quorum.value, info.nodes if alone else ()), facts, led),
            led,
            alone,
            partitions,
            counted.age_ms,
            None if moving.problem is not None else moving.value,
            self._judged(facts),
            is_stale=facts.is_stale,
        )

    def _facts(
        self,
        info: ClusterInfo,
        answers: Cached[AnswersOfBrokers],
        quorum: Cached[QuorumInfo | None],
        moving: Cached[tuple[ReassignmentInfo, ...]],
        counted: Cached[PartitionSummary],
    ) -> ClusterFacts:
        """Return what the last answers say; what was answered once and is not any more is not known."""
        silence = None
        unanswered = []
        if quorum.problem is not None:
            if is_without_leader(quorum.problem):
                silence = why_unanswered(quorum.problem)
            else:
                unanswered.append(UnansweredFacts("the quorum", self._why(quorum)))
        elif quorum.is_querying and quorum.age_ms > LATE_MS:
            silence = f"no answer for {seconds(quorum.age_ms)}"
        for what, one in (("reassignments", moving), ("partitions", counted), ("brokers", answers)):
            if one.problem is not None and silence is None:
                unanswered.append(UnansweredFacts(what, self._why(one)))
        found = answers.value or AnswersOfBrokers(None, ())
        facts = ClusterFacts(
            found.view,
            voters=None if silence is not None else voters_of(quorum.value),
            quorum_silence=silence,
            partitions=partitions_of(counted.value),
            unanswered=tuple(unanswered),
        )
        return with_answers(facts, info.nodes, found.answers)

    def _judged(self, facts: ClusterFacts) -> tuple[Finding, ...]:
        """Return the findings, with those that HTTP listeners told, and those about the listeners."""
        samples = self._samples()
        told = [
            one
            for sample in samples
            if sample.between is not None
            for one in sample.between.now.health.get("findings", ())
            if is_own(one)
        ]
        facts = facts._replace(
            told=(*facts.told, *told),
            listening=sum(one.between is not None for one in samples),
            listeners=tuple(
                ListenerFacts(one.node_id, address_of(one.url), one.problem)
                for one in samples
                if one.url is not None and one.problem is not None and one.node_id is not None
            ),
        )
        now_ms = self._clock.now_ms()
        return self._sightings.dated(judge(facts, now_ms), now_ms)

    def _why(self, result: Cached[Any]) -> str:
        return "no answer yet" if result.problem is None else self._error_text(result.problem)


def address_of(url: str) -> str:
    """Return the host and port of a listener's URL."""
    return url.partition("://")[2]
