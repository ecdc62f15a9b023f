"""Partitions of a world whose store refuses some keys, for tests."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID, uuid4

from service.base.types import TopicIdPartition
from tests.unit.tiering.world import Fault, Replica, World

DAY_MS = 86_400_000
PATIENCE_MS = 30_000
"""The longest pause after failures."""


def rounds(world: World, number: int = 12) -> None:
    """Let time pass and do what is due, long enough for every task to be tried again and again."""
    for _ in range(number):
        world.clock.advance(PATIENCE_MS)
        world.run()


def tier(world: World, topic: str, partition: int = 0, topic_id: UUID | None = None) -> Replica:
    return world.add(TopicIdPartition(topic_id or uuid4(), topic, partition))


def refused(*parts: str, operation: str | None = None) -> Callable[[str, str], Fault]:
    """403 for every key with one of `parts` in it, as long as it lasts."""

    def decide(called: str, key: str) -> Fault:
        hit = any(part in key for part in parts) and operation in (None, called)
        return Fault.REFUSE if hit else Fault.PASS

    return decide
