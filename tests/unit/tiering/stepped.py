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
        await self._maintenance.election.run_once()
        if not could_write:
            await self._drain()
        await self._maintenance.run_once()

    async def sweep(self) -> int:
        """Search for orphans now; return how many were deleted."""
        return await self._maintenance.sweep()

    async def _drain(self) -> None:
        self.wake()
        async with asyncio.TaskGroup() as tasks:
            while self._wake.is_set() or self._busy:
                await self._wake.wait()
                self._wake.clear()
                await self._pass(tasks)
