"""An order that is cancelled while a leader carries it out in the bucket: what was not begun stays."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from service.tiering.rewriting.rewriter import RewriteOutcome
from service.tiering.rewriting.rules import Rule
from tests.unit.tiering.test_bucket_work import (
    GONE,
    ORDER,
    Work,
    archived,
    give,
    keys_in_the_bucket,
    order_of,
    tell,
)
from tests.unit.tiering.world import World


class Cancelling:
    """The node's worker; an order is cancelled once it has written the first run anew, or been refused."""

    def __init__(self, world: World, outcome: RewriteOutcome | None = None) -> None:
        self.world = world
        self.outcome = outcome
        self.spans: list[tuple[int, int]] = []

    def running(self, topic_id: UUID, partition: int) -> UUID | None:
        return self.world.manager.rewriting.rewriter.running(topic_id, partition)

    async def rewrite(
        self, topic_id: UUID, partition: int, base_offset: int, last_offset: int, rule: Rule
    ) -> RewriteOutcome:
        self.spans.append((base_offset, last_offset))
        worker = self.world.manager.rewriting.rewriter
        done = self.outcome or await worker.rewrite(topic_id, partition, base_offset, last_offset, rule)
        self.world.catalog.orders.pop(ORDER, None)
        return done


@pytest.mark.parametrize("outcome", [None, RewriteOutcome.REFUSED], ids=["done", "refused"])
def test_nothing_more_is_written_anew_for_an_order_that_is_cancelled(
    tmp_path: Path, outcome: RewriteOutcome | None
) -> None:
    """The catalog does not refuse it: another order of the topic is open."""
    world = archived(tmp_path)
    other = order_of(b"nobody")._replace(id=UUID(int=71))
    give(world, other)
    world.catalog.orders[other.id] = world.catalog.orders.pop(ORDER)._replace(id=other.id, key=other.key)
    give(world, order_of(GONE))
    tell(world, 1)
    writer = Cancelling(world, outcome)
    Work(world, writer).round()
    assert writer.spans == [(4, 7)]
    assert ORDER not in world.catalog.orders
    assert keys_in_the_bucket(world).count(GONE) == (1 if outcome is None else 3)
