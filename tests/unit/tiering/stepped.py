"""The tiering of a node, a step at a time."""

from __future__ import annotations

import asyncio

from service.tiering.manager import TieringManager


class SteppedManager(TieringManager):
    """Works when it is told to."""

    async def run_once(self) -> None:
        """Do all there is to do now, bucket maintenance included, and return."""
        await self._drain()
        could_write = self._fence.may_write
        await self.maintenance.election.run_once()
        if not could_write:
            await self._drain()
        await self.maintenance.run_once()

    async def sweep(self) -> int:
        """Search for orphans now; return how many were deleted."""
        return await self.maintenance.sweep()

    async def _drain(self) -> None:
        self.scheduler.wake()
        await self.run_news()

    async def run_news(self) -> None:
        """Do what events have asked for, and nothing else."""
        scheduler = self.scheduler
        async with asyncio.TaskGroup() as tasks:
            while scheduler._wake.is_set() or scheduler._busy:
                await scheduler._wake.wait()
                scheduler._wake.clear()
                await scheduler._pass(tasks)
