"""Final check of a history with groups and transactions, once all faults have ended."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Final

from simulator.cluster.group_clients import examine_group
from simulator.cluster.transactional import TransactionalWorld
from simulator.model import Violation

_AGAIN_S: Final = 0.5
_READ_S: Final = 30.0


async def examine_transactions(world: TransactionalWorld, random: Random) -> None:
    """Read what groups have committed."""
    await _groups_are_read(world, random)


async def _groups_are_read(world: TransactionalWorld, random: Random) -> None:
    deadline = world.loop.time() + _READ_S
    for group in world.groups:
        while why := await examine_group(world, random, group, final=True):
            if world.loop.time() > deadline:
                raise Violation(f"G3: {_READ_S:.0f} s after all is alive: {why}")
            await asyncio.sleep(_AGAIN_S)
