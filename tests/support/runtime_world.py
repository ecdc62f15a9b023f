"""One shard of a dictionary under the runtime, on a log in memory and under virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.timers import Timers
from service.coordinator.environment import RuntimeSettings
from service.coordinator.runtime import CoordinatorState, Runtime
from service.coordinator.shard import CoordinatorRecord, CoordinatorResult, Effect
from tests.support.coordinators import DictShard, ModelLog, ModelLogs
from tests.support.virtual_loop import VirtualLoop, run_virtually

Scenario = Callable[["World"], Coroutine[Any, Any, None]]


class World:
    """A node that leads the one partition."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self.loop = loop
        self.log = ModelLog()
        self.logs = ModelLogs(self.log)
        self.settings = RuntimeSettings()
        self.shards: list[DictShard] = []
        self.first_effects: tuple[Effect, ...] = ()
        self.on_expired: Any = None
        self.runtime: Runtime[DictShard] = Runtime(
            "__model", self._make, self.logs, loop, Timers(loop), lambda: self.settings
        )

    def _make(self, partition: int, leader_epoch: int) -> DictShard:
        shard = DictShard()
        shard.leader_epoch = leader_epoch
        shard.first_effects = self.first_effects
        shard.on_expired = self.on_expired
        self.shards.append(shard)
        return shard

    @property
    def shard(self) -> DictShard:
        return self.shards[-1]

    async def lead(self) -> None:
        self.runtime.elected(0, self.log.leader_epoch)
        await self.loaded()

    async def loaded(self) -> None:
        while self.runtime.states()[CoordinatorState.LOADING]:
            await asyncio.sleep(0.01)

    def put(self, *keys: bytes, **more: Any) -> asyncio.Future[str]:
        records = tuple(CoordinatorRecord(key, b"value") for key in keys)
        return self.runtime.write(0, lambda shard, ticket, now: CoordinatorResult("ok", records, **more))

    async def error_of(self, asked: asyncio.Future[Any]) -> ErrorCode:
        with pytest.raises(RequestError) as caught:
            await asked
        return caught.value.code

    def read_error(self) -> ErrorCode:
        with pytest.raises(RequestError) as caught:
            self.runtime.read(0, lambda shard, now: None)
        return caught.value.code


def lived(scenario: Scenario) -> None:
    """Run the scenario under virtual time."""

    async def whole() -> None:
        world = World()
        await scenario(world)
        await world.runtime.close()

    run_virtually(whole())
