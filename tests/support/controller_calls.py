"""Calls to the controllers of a fleet, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from service.client.node_channel import Channels
from service.wire.api import ApiKey
from tests.support.controllers import Broker, Fleet


def run(scenario: Any) -> None:
    asyncio.run(scenario)


async def call(fleet: Fleet, key: ApiKey, message: Any, version: int | None = None, node_id: int = 0) -> Any:
    """Send a request to the listener of the active controller, or of controller `node_id`."""
    channels = Channels()
    try:
        chosen = node_id or fleet.id_of(await fleet.led())
        return await channels.call(fleet.endpoints[chosen], key, version, message, timeout_ms=10_000)
    finally:
        await channels.close()


@asynccontextmanager
async def fleet_and_broker(folder: Path) -> AsyncIterator[tuple[Fleet, Broker]]:
    """Run three controllers and broker 7, and check at the end that no controller failed."""
    fleet = await Fleet(folder).start()
    broker = await Broker(fleet, 7).start()
    yield fleet, broker
    await broker.close()
    await fleet.stop()
    assert not fleet.failures
