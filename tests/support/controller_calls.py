"""Calls to the controllers of a fleet, for tests."""

from __future__ import annotations

import asyncio
from typing import Any

from service.client.async_channel import Channels
from service.wire.api import ApiKey
from tests.support.controllers import Fleet


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
