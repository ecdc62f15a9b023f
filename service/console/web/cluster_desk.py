"""Data of the cluster page: brokers, quorum and reassignments at once, partitions once they are counted.

Each broker, the quorum and the reassignments are queried by themselves, side by side, and waited for once:
what does not answer delays nothing else, and becomes a finding. The cluster is shown as the broker with the
newest metadata knows it. All partitions are read a page at a time on a thread, at most a twentieth of the
time while the page is requested, and not otherwise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from service.base.clock import Clock
from service.base.errors import FirnError, StorageError
from service.client.admin_models import ClusterInfo, NodeInfo
from service.client.broker_health_queries import BrokerAnswer, is_own, with_answers
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
from service.health.facts import ClusterFacts, ListenerFacts, UnansweredFacts, ViewFacts
from service.health.findings import Finding
from service.health.judge import judge, seconds
from service.health.sightings import Sightings

AGE_MS: Final = 1_500
WAIT_S: Final = 1.5
"""Longest wait for the first answer of a query."""
MOST_PAUSE_MS: Final = 3_000
"""Longest time between two queries, however long one takes: health is told in seconds."""
LATE_MS: Final = 5_000
"""Age of the last answer of the quorum or of a broker, above which it is said to be silent."""
COUNT_AGE_MS: Final = 3_000
COUNT_WAIT_S: Final = 0.5


class HeardAnswer(NamedTuple):
    """Answer of a broker, `age_ms` old."""

    answer: BrokerAnswer
    age_ms: int

    @property
    def metadata_age_ms(self) -> int:
        """Return how old the metadata are that the answer is made of, as far as the broker tells."""
        view = self.answer.view
        return self.age_ms + (0 if view is None else view.age_ms or 0)


class KnownCluster(NamedTuple):
    """A cluster as somebody knows it: `info` None where nobody does, and `problem` says why if that is known.
    `view`: age of that knowledge; `answers`: those of the brokers that were asked."""

    info: ClusterInfo | None
    problem: BaseException | None
    view: ViewFacts | None
    answers: Sequence[BrokerAnswer]


class ClusterDesk:
    """Reader of one cluster's health. Owned by the event loop; `call` runs queries on threads of its own, of
    which there should be more than brokers that hang."""

    def __init__(
        self,
        kafka: KafkaDesk,
        clock: Clock,
        call: Call,
        error_text: Callable[[BaseException], str],
        samples: Callable[[], Sequence[NodeSample]],
    ) -> None:
        """`samples` are those of the HTTP listeners."""
        self._kafka = kafka
        self._call = call
        self._error_text = error_text
        self._brokers: TtlCache[ClusterInfo] = TtlCache(call, clock, AGE_MS, MOST_PAUSE_MS)
        self._quorum: TtlCache[QuorumInfo | None] = TtlCache(call, clock, AGE_MS, MOST_PAUSE_MS)
        self._moving: TtlCache[tuple[ReassignmentInfo, ...]] = TtlCache(call, clock, AGE_MS, MOST_PAUSE_MS)
        self._partitions: TtlCache[PartitionSummary] = TtlCache(call, clock, COUNT_AGE_MS)
        self._known: tuple[NodeInfo, ...] = ()
        self._answers: dict[int, TtlCache[BrokerAnswer]] = {}
        self._samples = samples
        self._clock = clock
        self._sightings = Sightings()

    async def find(self) -> cluster.ClusterPage:
        """Return all data known now."""
        heard, quorum, moving = await asyncio.gather(
            self.hear(),
            self._quorum.get(lambda: self._kafka.ask(ask_quorum, is_for_controllers=True), WAIT_S),
            self._moving.get(lambda: self._kafka.ask(ask_moving, is_for_controllers=True), WAIT_S),
        )
        info = heard.info
        if info is None:
            why = self._why(heard.problem)
            return cluster.ClusterPage(problem=why, findings=self._judged(ClusterFacts(silence=why)))
        known = moving.value or ()
        counted = await self._partitions.get(
            lambda: self._kafka.ask(lambda one: ask_partitions(one, known, cluster.MOST_ILL)), COUNT_WAIT_S
        )
        alone = quorum.value is None and quorum.problem is None and not quorum.is_querying and is_alone(info)
        partitions = None if counted.value is None else with_idle_brokers(counted.value, info.nodes)
        facts = self._facts(heard, info, quorum, moving, counted)
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
            info=info,
        )

    async def hear(self) -> KnownCluster:
        """Ask all brokers that are known, side by side, and any of them for the cluster."""
        named, answers = await asyncio.gather(
            self._brokers.get(self._kafka.describe, WAIT_S), self._ask_brokers()
        )
        if not answers and named.value is not None:
            self._know(named.value)
            answers = await self._ask_brokers()
        told = [one for one in answers if one.answer.cluster is not None]
        if told:
            newest = min(told, key=lambda one: one.metadata_age_ms).answer
            info, view = newest.cluster, newest.view
        else:
            info, view = (named.value if named.problem is None else None), None
        if info is not None:
            self._know(info)
        return KnownCluster(info, named.problem, view, [one.answer for one in answers])

    def _know(self, info: ClusterInfo) -> None:
        """Remember which brokers there are to ask: those that are fenced do not answer."""
        self._known = info.nodes
        alive = {one.node_id for one in info.nodes if not one.is_fenced}
        self._answers = {node_id: one for node_id, one in self._answers.items() if node_id in alive}

    async def _ask_brokers(self) -> list[HeardAnswer]:
        """Return what the known brokers answer in time, or have answered a moment ago."""
        found = await asyncio.gather(*(self._ask_broker(one) for one in self._known if not one.is_fenced))
        return [one for one in found if one is not None]

    async def _ask_broker(self, broker: NodeInfo) -> HeardAnswer | None:
        found = self._answers.get(broker.node_id)
        if found is None:
            found = self._answers[broker.node_id] = TtlCache(self._call, self._clock, AGE_MS, MOST_PAUSE_MS)
        is_alone = len(self._known) == 1
        got = await found.get(partial(self._kafka.ask_broker, broker, is_alone=is_alone), WAIT_S)
        if got.value is None:
            return None
        if got.is_querying and got.age_ms > LATE_MS and got.value.silence is None:
            words = f"no answer for {seconds(got.age_ms)}"
            return HeardAnswer(BrokerAnswer(broker.node_id, silence=words), got.age_ms)
        return HeardAnswer(got.value, got.age_ms)

    async def brokers(self) -> list[tuple[NodeInfo, BrokerAnswer | None]]:
        """Return all brokers with what each answered, None for a fenced one or one that has not yet. Raises
        `FirnError` and `OSError` where no broker answers."""
        heard = await self.hear()
        if heard.info is None:
            if isinstance(heard.problem, FirnError | OSError):
                raise heard.problem
            raise StorageError("no answer yet")
        answers = {one.node_id: one for one in heard.answers}
        return [(one, answers.get(one.node_id)) for one in heard.info.nodes]

    def _facts(
        self,
        heard: KnownCluster,
        info: ClusterInfo,
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
                unanswered.append(UnansweredFacts("the quorum", self._why(quorum.problem)))
        elif quorum.is_querying and quorum.age_ms > LATE_MS:
            silence = f"no answer for {seconds(quorum.age_ms)}"
        for what, problem in (("reassignments", moving.problem), ("partitions", counted.problem)):
            if problem is not None and silence is None:
                unanswered.append(UnansweredFacts(what, self._why(problem)))
        facts = ClusterFacts(
            heard.view,
            voters=None if silence is not None else voters_of(quorum.value),
            quorum_silence=silence,
            partitions=partitions_of(counted.value),
            unanswered=tuple(unanswered),
        )
        return with_answers(facts, info.nodes, heard.answers)

    def _judged(self, facts: ClusterFacts) -> tuple[Finding, ...]:
        """Return the findings, with those that HTTP listeners told and brokers did not, and those about the
        listeners."""
        samples = self._samples()
        known = {(one.anchor, one.subject) for one in facts.told}  # the numbers in their words may differ
        told = [
            one
            for sample in samples
            if sample.between is not None
            for one in sample.between.now.health.get("findings", ())
            if is_own(one) and (one.anchor, one.subject) not in known
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

    def _why(self, problem: BaseException | None) -> str:
        return "no answer yet" if problem is None else self._error_text(problem)


def address_of(url: str) -> str:
    """Return the host and port of a listener's URL."""
    return url.partition("://")[2]
