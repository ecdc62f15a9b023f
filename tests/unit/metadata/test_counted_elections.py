"""Elections, as the records of the metadata log tell them."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from service.metadata.delta import MetadataDelta
from service.metadata.image import MetadataImage
from service.metadata.records import PartitionChangeRecord, PartitionRecord, TopicRecord

TOPIC = UUID(int=7)


def led_by_one() -> MetadataImage:
    """Image of one partition of brokers 1, 2 and 3; 1 and 2 are in sync, 1 leads."""
    delta = MetadataDelta(MetadataImage())
    delta.replay(TopicRecord(name="t", topic_id=TOPIC))
    delta.replay(
        PartitionRecord(
            partition_id=0, topic_id=TOPIC, replicas=(1, 2, 3), isr=(1, 2), leader=1, leader_epoch=0,
            partition_epoch=0, directories=(), removing_replicas=(), adding_replicas=(),
        )
    )  # fmt: skip
    assert delta.elections == (0, 0), "a new partition is no election"
    return delta.build(1, 1, 0)


def counted(*changes: PartitionChangeRecord) -> tuple[int, int]:
    delta = MetadataDelta(led_by_one())
    for change in changes:
        delta.replay(change)
    return delta.elections


def change(
    isr: tuple[int, ...] | None = None, leader: int = -2, recovery: int = -1, **more: Any
) -> PartitionChangeRecord:
    return PartitionChangeRecord(
        partition_id=0, topic_id=TOPIC, isr=isr, leader=leader, leader_recovery_state=recovery, **more
    )


@pytest.mark.parametrize(
    ("changes", "elections"),
    [
        pytest.param([change(isr=(1,))], (0, 0), id="the ISR shrinks"),
        pytest.param([change(leader=1)], (0, 0), id="the same leader again"),
        pytest.param([change(leader=-1)], (0, 0), id="no leader"),
        pytest.param([change(leader=2, isr=(2,))], (1, 0), id="another one in sync"),
        pytest.param([change(leader=-1), change(leader=1)], (1, 0), id="the same after none"),
        pytest.param([change(leader=3, isr=(3,), recovery=1)], (1, 1), id="unclean"),
        pytest.param(
            [change(leader=-1, isr=(), eligible_leader_replicas=(2,)), change(leader=2, isr=(2,))],
            (1, 0),
            id="an eligible one",
        ),
        pytest.param(
            [change(leader=3, isr=(3,), recovery=1), change(leader=-1), change(leader=2, isr=(2,))],
            (2, 2),
            id="unclean again before it has recovered",
        ),
        pytest.param(
            [change(leader=4, isr=(4,), replicas=(4,), adding_replicas=())],
            (1, 0),
            id="a reassignment is done",
        ),
    ],
)
def test_elections_are_counted_and_unclean_ones_besides(
    changes: list[PartitionChangeRecord], elections: tuple[int, int]
) -> None:
    assert counted(*changes) == elections
