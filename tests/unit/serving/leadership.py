"""A broker of three with one led, one offline and one foreign partition, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from kio.schema.errors import ErrorCode

from tests.support.one_of_three import ME, OTHER, TOPIC, OneOfThree, one_of_three, partition, topic

NONE, NOT_LEADER = ErrorCode.none, ErrorCode.not_leader_or_follower
STORAGE, UNKNOWN = ErrorCode.kafka_storage_error, ErrorCode.unknown_topic_or_partition
MINE, OFFLINE, THEIRS, NOWHERE = 0, 1, 2, 9
"""partitions of the topic, by who has them"""
SPREAD = (topic(), partition(MINE, ME), partition(OFFLINE, ME), partition(THEIRS, OTHER))


def run(folder: Path, scenario: Callable[[OneOfThree], Awaitable[None]], *records: Any) -> None:
    async def whole() -> None:
        async with asyncio.timeout(30), one_of_three(folder, *(records or SPREAD)) as node:
            offline = node.broker.replicas.get(TOPIC, OFFLINE)
            if not records and offline is not None:
                node.broker.replicas.take_offline(offline.tip, "the disk is gone")
            await scenario(node)

    asyncio.run(whole())


async def produced(node: OneOfThree, number: int, **how: Any) -> ErrorCode:
    answer = await node.produce(number, **how)
    return ErrorCode(answer.responses[0].partition_responses[0].error_code)


async def fetched(node: OneOfThree, number: int, **how: Any) -> ErrorCode:
    answer = await node.fetch(number, **how)
    return ErrorCode(answer.responses[0].partitions[0].error_code)
