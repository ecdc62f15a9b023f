"""Data of the cluster page: nodes, quorum and reassignments at once, partitions once they are counted.

Each of the four is queried by itself, so a quorum that does not answer does not delay the nodes. All
partitions are read a page at a time on a thread, at most a twentieth of the time while the page is requested,
and not otherwise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

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
from service.console.web.ttl_cache import Cached, Call, TtlCache

AGE_MS: Final = 1_500
WAIT_S: Final = 1.5
"""Longest wait for the first answer of a query."""
COUNT_AGE_MS: Final = 3_000
COUNT_WAIT_S: Final = 0.5


class ClusterDesk:
    """Reader of one cluster's health. Owned by the event loop; `call` runs queries on threads."""

    def __init__(
        self, kafka: KafkaDesk, clock: Clock, call: Call, error_text: Callable[[BaseException], str]
    ) -> None:
        self._kafka = kafka
        self._error_text = error_text
        self._brokers: TtlCache[ClusterInfo] = TtlCache(call, clock, AGE_MS)
        self._quorum: TtlCache[QuorumInfo | None] = TtlCache(call, clock, AGE_MS)
        self._moving: TtlCache[tuple[ReassignmentInfo, ...]] = TtlCache(call, clock, AGE_MS)
        self._partitions: TtlCache[PartitionSummary] = TtlCache(call, clock, COUNT_AGE_MS)

    async def find(self) -> cluster.ClusterPage:
        """Return all data known now."""
        brokers, quorum, moving = await asyncio.gather(
            self._brokers.get(self._kafka.describe, WAIT_S),
            self._quorum.get(lambda: self._kafka.ask(ask_quorum), WAIT_S),
            self._moving.get(lambda: self._kafka.ask(ask_moving), WAIT_S),
        )
        info = brokers.value
        if info is None or brokers.problem is not None:
            return cluster.ClusterPage(problem=self._why(brokers))
        known = moving.value or ()
        counted = await self._partitions.get(
            lambda: self._kafka.ask(lambda one: ask_partitions(one, known, cluster.MOST_ILL)), COUNT_WAIT_S
        )
        alone = quorum.value is None and quorum.problem is None and not quorum.is_querying and is_alone(info)
        partitions = counted.value
        return cluster.ClusterPage(
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
                if one.problem is not None or (one.value is None and one.is_querying and one is not counted)
            ),
        )  # fmt: skip

    def _why(self, result: Cached[Any]) -> str:
        return "no answer yet" if result.problem is None else self._error_text(result.problem)
