"""Retention of the local tier, partition by partition."""

from __future__ import annotations

import asyncio
import logging

from service.base.errors import StorageError
from service.broker.broker import Broker

log = logging.getLogger(__name__)


async def retention_loop(broker: Broker) -> None:
    """Every ``log.retention.check.interval.ms``, for as long as the task lives.

    A disk that refuses one partition's deletion does not keep the others waiting: it is logged and tried
    again.
    """
    while True:
        await asyncio.sleep(broker.config.log_retention_check_interval_ms / 1000)
        for partition in broker.replicas:
            try:
                partition.apply_retention(broker.clock.now_ms())
            except StorageError as e:
                log.error("retention of %s: %s", partition.tip, e)
            # One partition at a time: renaming a thousand files must not hold up a request.
            await asyncio.sleep(0)
