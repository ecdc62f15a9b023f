"""KIP-848 groups in memory, for tests."""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from service.groups.consumer_config import ConsumerConfig
from tests.support.consumer_groups import Consumer, Consumers, World, partitions_of

E = ErrorCode
NOW = ConsumerConfig(assignment_interval_ms=0)


def consumers(config: ConsumerConfig = NOW, **topics: int) -> Consumers:
    world = World(config)
    for name, partitions in (topics or {"apples": 4}).items():
        world.make_topic(name, partitions)
    return Consumers(world)


def numbers(assignment: Any) -> set[int]:
    return {n for _, n in partitions_of(assignment)}


def settle(*members: Consumer) -> None:
    """Everybody beats until all is where it should be."""
    for _ in range(10):
        for member in members:
            assert member.beat() is None
    assert members[0].consumers.look().state == "Stable"
