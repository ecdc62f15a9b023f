"""Parts of a node that rewrite ranges of the bucket: own worker, merges, and requests of workers outside."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from uuid import UUID

from service.base.world import World
from service.tiering.archive_attempt import TieringContext
from service.tiering.offload_pool import OffloadPool
from service.tiering.ports import TieredPartition
from service.tiering.rewriting.making import MakerHere, ObjectMaker
from service.tiering.rewriting.merge_plan import MergeLimits
from service.tiering.rewriting.merging import Merger
from service.tiering.rewriting.outside import OutsideRewrites
from service.tiering.rewriting.rewriter import Rewriter
from service.tiering.rewriting.silent_intents import SilentIntents
from service.tiering.task_scheduler import TaskScheduler


class Rewriting:
    """Rewrites of one node. Owned by the event loop."""

    def __init__(
        self,
        context: TieringContext,
        world: World,
        partitions: Callable[[], Iterable[TieredPartition]],
        find: Callable[[UUID, int], TieredPartition | None],
        scheduler: TaskScheduler,
        limits: Callable[[], MergeLimits | None],
        maker: ObjectMaker | None,
    ) -> None:
        """`partitions`, `find` and `maker` as in `TieringManager`, `limits` as in `Merger`."""
        self._pool = pool = OffloadPool(
            world.threads, 1, context.settings.watchdog_ms, context.metrics, "rewrite"
        )
        self._maker = maker = maker or MakerHere(context.store)
        submit, withdraw = scheduler.submit_rewrite, scheduler.withdraw_rewrite
        self.rewriter = Rewriter(context, pool, world.threads, find, submit, withdraw, maker)
        self.silent = SilentIntents(context, self.rewriter.running, partitions)
        self.merger = Merger(context, pool, self.rewriter, partitions, limits)
        self.outside = OutsideRewrites(context, find, submit, self.silent)

    async def run(self) -> None:
        """Merge, and end the rewrites of silent workers, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.merger.run(), name="tiering-merges")
            tasks.create_task(self.silent.run(), name="tiering-silent-rewrites")

    async def close(self, timeout_ms: int) -> None:
        """End the calls under way, as `OffloadPool.close`."""
        self.rewriter.close()
        await self._pool.close(timeout_ms)
        self._maker.close()
