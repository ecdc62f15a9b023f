"""Data of the cluster page: nodes, quorum and reassignments at once, partitions once they are counted.

Each of the four is queried by itself, so a quorum that does not answer does not delay the nodes. All
partitions are read a page at a time on a thread, at most a twentieth of the time while the page is requested,
and not otherwise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar

from service.base.clock import Clock
from service.client.admin_models import ClusterInfo
from service.client.cluster_health import (
    PartitionSummary,
    QuorumInfo,
    ReassignmentInfo,
    is_alone,
    nodes_of,
    with_idle_brokers,
)
from service.client.cluster_health_queries import ask_moving, ask_partitions, ask_quorum
from service.console.web.kafka_desk import KafkaDesk
from service.console.web.pages import cluster
from service.console.web.ttl_cache import Remembered, Told

T = TypeVar("T")

AGE_MS: Final = 1_500
WAIT_S: Final = 1.5
"""Longest wait for the first answer of a query."""
COUNT_AGE_MS: Final = 3_000
COUNT_WAIT_S: Final = 0.5


class Call(Protocol):
    """Runs a query on a thread."""

    def __call__(self, question: Callable[[], T], /) -> asyncio.Future[T]: ...


class ClusterDesk:
    """Reader of one cluster's health. Owned by the event loop; `call` runs queries on threads."""

    def __init__(
        self, kafka: KafkaDesk, clock: Clock, call: Call, words_of: Callable[[BaseException], str]
    ) -> None:
        self._kafka = kafka
        self._words_of = words_of
        self._brokers: Remembered[ClusterInfo] = Remembered(call, clock, AGE_MS)
        self._quorum: Remembered[QuorumInfo | None] = Remembered(call, clock, AGE_MS)
        self._moving: Remembered[tuple[ReassignmentInfo, ...]] = Remembered(call, clock, AGE_MS)
        self._partitions: Remembered[PartitionSummary] = Remembered(call, clock, COUNT_AGE_MS)

    async def find(self) -> cluster.Cluster:
        """Return all data known now."""
        brokers, quorum, moving = await asyncio.gather(
            self._brokers.told(self._kafka.describe, WAIT_S),
            self._quorum.told(lambda: self._kafka.ask(ask_quorum), WAIT_S),
            self._moving.told(lambda: self._kafka.ask(ask_moving), WAIT_S),
        )
        info = brokers.value
        if info is None or brokers.problem is not None:
            return cluster.Cluster(problem=self._why(brokers))
        known = moving.value or ()
        counted = await self._partitions.told(
            lambda: self._kafka.ask(lambda one: ask_partitions(one, known, cluster.MOST_ILL)), COUNT_WAIT_S
        )
        alone = quorum.value is None and quorum.problem is None and not quorum.is_asking and is_alone(info)
        partitions = counted.value
        return cluster.Cluster(
            info.cluster_id,
            nodes_of(info.nodes, quorum.value, info.nodes if alone else ()),
            None if quorum.problem is not None else quorum.value,
            alone,
            None if partitions is None else with_idle_brokers(partitions, info.nodes),
            counted.age_ms,
            None if moving.problem is not None else moving.value,
            tuple(
                f"{what}: {self._why(one)}"
                for what, one in (
                    ("The quorum", quorum), ("Reassignments", moving), ("Partitions", counted),
                )
                if one.problem is not None or (one.value is None and one.is_asking and one is not counted)
            ),
        )  # fmt: skip

    def _why(self, told: Told[Any]) -> str:
        return "no answer yet" if told.problem is None else self._words_of(told.problem)
