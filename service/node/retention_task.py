"""Retention of the local tier, partition by partition."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from service.base.errors import StorageError
from service.base.slices import Slice
from service.hot.retention import MOST_AT_ONCE
from service.serving.request_host import Broker

log = logging.getLogger(__name__)

_LOOK_US: Final = 30
"""At one partition: its oldest segment."""


async def retention_loop(broker: Broker) -> None:
    """Every ``log.retention.check.interval.ms``, for as long as the task lives.

    A disk that refuses one partition's deletion does not keep the others waiting: it is logged and tried
    again.
    """
    piece = Slice()
    while True:
        await asyncio.sleep(broker.config.log_retention_check_interval_ms / 1000)
        for partition in broker.replicas:
            tip = partition.tip
            try:
                # So many segments at a time, and one partition: others' requests come between, and the
                # partition may go with one of them.
                while (
                    broker.replicas.get(tip.topic_id, tip.partition) is partition
                    and partition.archive.apply_retention(
                        broker.clock.now_ms(), may_let_go=broker.replicas.may_let_go()
                    )
                    >= MOST_AT_ONCE
                ):
                    await piece.next_turn()
            except StorageError as e:
                log.error("retention of %s: %s", tip, e)
            if piece.charge(_LOOK_US):
                await piece.next_turn()
