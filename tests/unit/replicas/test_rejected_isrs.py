"""Log of ISR changes that the controller rejects: what the metadata has overtaken is no warning."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from service.base.clock import ManualClock
from service.base.types import TopicIdPartition
from service.replicas.alter_partition_manager import AlterPartitionManager
from service.wire.api import ApiKey, response_module
from tests.unit.replication.leaders import LAG_MS, NOW_MS, Cluster

TIP = TopicIdPartition(UUID(int=7), "orders", 0)


class Controller:
    """A controller that rejects each ISR with one error."""

    def __init__(self, error: ErrorCode) -> None:
        self._error = error

    async def ask(self, api_key: int, message: Any, *, timeout_ms: int, inner_key: int | None = None) -> Any:
        module = response_module(ApiKey.ALTER_PARTITION)
        partition = module.PartitionData(
            partition_index=0, error_code=self._error, leader_id=1, leader_epoch=5, partition_epoch=50
        )
        topic = module.TopicData(topic_id=TIP.topic_id, partitions=(partition,))
        return module.AlterPartitionResponse(
            throttle_time=timedelta(), error_code=ErrorCode.none, topics=(topic,)
        )


@pytest.mark.parametrize(
    ("error", "level"),
    [
        (ErrorCode.ineligible_replica, logging.INFO),
        (ErrorCode.invalid_update_version, logging.INFO),
        (ErrorCode.fenced_leader_epoch, logging.INFO),
        (ErrorCode.new_leader_elected, logging.INFO),
        (ErrorCode.unknown_topic_id, logging.INFO),
        (ErrorCode.invalid_request, logging.WARNING),
        (ErrorCode.unknown_server_error, logging.WARNING),
    ],
)
def test_an_isr_that_the_metadata_has_overtaken_is_no_warning(
    caplog: pytest.LogCaptureFixture, error: ErrorCode, level: int
) -> None:
    caplog.set_level(logging.INFO, "service.replicas")
    asyncio.run(propose(Controller(error), caplog))
    first = caplog.records[0]
    assert (first.levelno, first.getMessage()) == (
        level,
        f"controller rejected the ISR of {TIP}: {error.name}",
    )


async def propose(controller: Controller, caplog: pytest.LogCaptureFixture) -> None:
    """Have a leader propose that broker 3 joins its ISR, until something is logged."""
    cluster = Cluster((1, 2))
    cluster.append(10)
    cluster.fetch(2, 10)
    cluster.fetch(3, 10)
    assert cluster.leader.proposal is not None
    clock = ManualClock(NOW_MS + LAG_MS)
    manager = AlterPartitionManager(
        1, lambda: 101, controller, clock, lambda _: cluster.leader, lambda _: None
    )
    manager.propose(TIP)
    running = asyncio.create_task(manager.run())
    async with asyncio.timeout(10):
        while not caplog.records:
            await asyncio.sleep(0)
    running.cancel()
