"""Leaders of a mixed cluster's partitions: replicas in an order, and the first of them elected."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from kio.schema.errors import ErrorCode

from service.wire.api import ApiKey, request_module
from tests.support.mixed import Mixed
from tests.support.replicas import states, wait_in_sync

Orders = Mapping[int, Sequence[int]]
"""by partition, its replicas: the first shall lead"""


def rotated(brokers: Sequence[int], partitions: int, by: int) -> dict[int, list[int]]:
    """Each broker leads some of the partitions, and others with another `by`."""
    return {
        index: [brokers[(index + by + place) % len(brokers)] for place in range(len(brokers))]
        for index in range(partitions)
    }


async def in_sync(cluster: Mixed, topic: str) -> None:
    await asyncio.to_thread(wait_in_sync, cluster, topic)


async def reorder(cluster: Mixed, topic: str, orders: Orders) -> None:
    """The replicas of the topic's partitions are these, in this order, and all in sync."""
    module = request_module(ApiKey.ALTER_PARTITION_REASSIGNMENTS)
    partitions = tuple(
        module.ReassignablePartition(partition_index=index, replicas=tuple(order))
        for index, order in orders.items()
    )
    message = module.AlterPartitionReassignmentsRequest(
        topics=(module.ReassignableTopic(name=topic, partitions=partitions),), timeout=timedelta(seconds=4)
    )
    await cluster.change(ApiKey.ALTER_PARTITION_REASSIGNMENTS, message, _errors_of_reassignment)
    for left in reversed(range(200)):
        found = await asyncio.to_thread(states, cluster.asked, topic)
        if all(sorted(found[index].replicas) == sorted(order) for index, order in orders.items()):
            break
        assert left, found
        await asyncio.sleep(0.1)
    await in_sync(cluster, topic)


async def prefer(cluster: Mixed, topic: str, leaders: Mapping[int, int]) -> None:
    """The first replicas, which are these, lead, as all brokers that run say."""
    module = request_module(ApiKey.ELECT_LEADERS)
    for left in reversed(range(100)):
        wrong = [
            index
            for member in cluster.brokers.values()
            if member.is_running
            for index, state in (await asyncio.to_thread(states, member, topic)).items()
            if index in leaders and state.leader != leaders[index]
        ]
        if not wrong:
            return
        assert left, f"{topic}: {wrong} are not led by {leaders}"
        message = module.ElectLeadersRequest(
            election_type=0,
            topic_partitions=(module.TopicPartitions(topic=topic, partitions=tuple(sorted(set(wrong)))),),
            timeout=timedelta(seconds=4),
        )
        await cluster.change(ApiKey.ELECT_LEADERS, message, _errors_of_election)
        await asyncio.sleep(0.1)


async def lead(cluster: Mixed, topic: str, orders: Orders) -> None:
    """Replicas are in this order, in sync, and the first of each lead."""
    await reorder(cluster, topic, orders)
    await prefer(cluster, topic, {index: order[0] for index, order in orders.items()})


def _errors_of_reassignment(answer: Any) -> list[tuple[ErrorCode, Any]]:
    each = [(one.error_code, one) for topic in answer.responses for one in topic.partitions]
    return [(answer.error_code, answer.error_message), *each]


def _errors_of_election(answer: Any) -> list[tuple[ErrorCode, Any]]:
    each = [
        (one.error_code, one)
        for topic in answer.replica_election_results
        for one in topic.partition_result
        if one.error_code is not ErrorCode.election_not_needed
    ]
    return [(answer.error_code, answer), *each]
