"""Intents that nobody seems to work on any more: the leader gives them up.

An intent keeps objects from the sweeper, and other rewrites from its partition. It ends with its commit, or
with the partition's next leader epoch; so that a worker that has died holds up neither until then, the leader
ends it once it has heard nothing of the worker for `SILENT_MS`. This node's own worker is known by
`Rewriter.running`; one outside shows that it lives by RewriteRange. The look is a task of its own: it waits
for no merge. Owned by the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final
from uuid import UUID

from service.base.errors import RequestError, StorageError
from service.base.slices import Slice
from service.base.types import TopicIdPartition
from service.tiering.archive_attempt import TieringContext
from service.tiering.ports import TieredPartition

log = logging.getLogger(__name__)

SILENT_MS: Final = 600_000
"""Time without a sign of life after which an intent is given up."""


class SilentIntents:
    """Live intents of the partitions that this node leads, and when each was last heard of."""

    def __init__(
        self,
        context: TieringContext,
        running: Callable[[UUID, int], UUID | None],
        partitions: Callable[[], Iterable[TieredPartition]],
    ) -> None:
        self._context = context
        self._running = running
        self._partitions = partitions
        self._heard: dict[UUID, tuple[TopicIdPartition, int]] = {}

    def heard(self, tip: TopicIdPartition, rewrite_id: UUID) -> None:
        """Note a sign of life of the worker."""
        self._heard[rewrite_id] = tip, self._context.clock.monotonic_ms()

    async def run(self) -> None:
        """Look at intervals until cancelled."""
        while True:
            await asyncio.sleep(self._context.settings.interval_ms / 1000)
            await self.run_once()

    async def run_once(self) -> None:
        """End the intents of workers that are silent; forget those that have ended."""
        piece, led = Slice(), set[tuple[UUID, int]]()
        for partition in self._partitions():
            led.add((partition.tip.topic_id, partition.tip.partition))
            self._note(partition.tip, partition.leader_epoch)
            if piece.is_over():
                await piece.next_turn()
        now_ms, catalog = self._context.clock.monotonic_ms(), self._context.catalog
        for rewrite_id in list(self._heard):
            tip, heard_ms = self._heard[rewrite_id]  # it may have been heard of during this loop
            intent = catalog.rewrite(tip.topic_id, tip.partition)
            is_live = intent is not None and intent.rewrite_id == rewrite_id
            if not is_live or (tip.topic_id, tip.partition) not in led:
                del self._heard[rewrite_id]
            elif now_ms - heard_ms >= SILENT_MS:
                log.warning(
                    "%s: rewrite %s is given up: its worker has not been heard of for %d s",
                    tip, rewrite_id, (now_ms - heard_ms) // 1000,
                )  # fmt: skip
                self._context.metrics.rewrites.given_up += 1
                try:
                    await catalog.give_up_rewrite(tip, rewrite_id)
                except (StorageError, RequestError) as e:
                    log.info("%s: rewrite %s is given up later: %s", tip, rewrite_id, e)

    def _note(self, tip: TopicIdPartition, leader_epoch: int) -> None:
        """Note the intent of a partition that this node leads, if it has one that is live."""
        intent = self._context.catalog.rewrite(tip.topic_id, tip.partition)
        if intent is None or intent.leader_epoch != leader_epoch:
            return
        is_own = self._running(tip.topic_id, tip.partition) == intent.rewrite_id
        if is_own or intent.rewrite_id not in self._heard:
            self.heard(tip, intent.rewrite_id)
