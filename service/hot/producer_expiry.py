"""Expiry of producers that have not written for long, in all logs of a node."""

from __future__ import annotations

from collections.abc import Iterable

from service.base.slices import Slice
from service.hot.log import LocalLog


async def expire(logs: Iterable[LocalLog], expiration_ms: int, now_ms: int) -> None:
    """Forget producers that were idle for ``producer.id.expiration.ms``, in slices of the loop."""
    piece = Slice()
    for log in tuple(logs):
        if len(log.producers) or log.producers.guards is not None:
            log.producers.expiration_ms = expiration_ms
            await piece.go_on(log.producers.expire(now_ms))
