"""Task that applies local retention, partition by partition."""

from __future__ import annotations

import asyncio
import logging

from service.base.errors import StorageError
from service.base.slices import Slice
from service.hot.retention import MOST_AT_ONCE
from service.serving.request_host import Broker

log = logging.getLogger(__name__)


async def retention_loop(broker: Broker) -> None:
    """Apply retention to all partitions every ``log.retention.check.interval.ms``, until it is cancelled.

    A failed deletion is logged and tried again at the next interval; the other partitions go on.
    """
    piece = Slice()
    while True:
        await asyncio.sleep(broker.config.log_retention_check_interval_ms / 1000)
        for partition in broker.replicas:
            tip = partition.tip
            try:
                # At most `MOST_AT_ONCE` segments a turn: requests run in between, and one may delete the
                # partition.
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
            if piece.is_over():
                await piece.next_turn()
