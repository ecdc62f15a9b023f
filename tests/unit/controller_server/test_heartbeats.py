"""Heartbeats at a controller's listener: the connection of each broker, and its end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from service.base.clock import ManualClock
from service.config.settings import BrokerConfig
from service.controller_client import lifecycle_messages
from service.controller_client.broker_lifecycle import Heartbeat
from service.controller_server.handlers import brokers
from service.controller_server.request_host import ControllerSide
from service.metadata.controller.broker_sessions import ProbeOutcome
from service.metadata.image import BrokerImage
from service.network.request import RequestContext
from service.security.session import anonymous
from tests.support.world import make_world
from tests.unit.metadata.controllers import CLUSTER_ID, registration, running
from tests.unit.metadata.test_controller import HeldExecutor
from tests.unit.metadata.test_leadership import ticking


async def refusing(broker: BrokerImage) -> tuple[ProbeOutcome, str]:
    return ProbeOutcome.REFUSED, "its address h:1"


@pytest.mark.parametrize("ends", ["before it is decided", "after"])
def test_a_broker_whose_heartbeats_connection_ends_is_looked_after(tmp_path: Path, ends: str) -> None:
    """Long before its session ends, also where the connection ended while its heartbeat was decided."""

    async def scenario() -> None:
        clock, executor = ManualClock(), HeldExecutor()
        config = BrokerConfig.from_properties({"node.id": "1", "log.dirs": str(tmp_path)})
        async with running(tmp_path, log_io=executor, world=make_world(clock)) as controller:
            controller._overseer._probe = refusing
            side = ControllerSide(lambda: config, clock, 1, CLUSTER_ID, controller.publisher, controller)
            epoch = await controller.brokers.register(registration(2))
            executor.held = []
            context = RequestContext(7, "127.0.0.1", 9, "CONTROLLER", anonymous("127.0.0.1", "CONTROLLER"))
            says = Heartbeat(epoch, epoch, want_fence=False, want_shut_down=False)
            unfencing = asyncio.create_task(
                brokers.heartbeat(side, context, lifecycle_messages.heartbeat(2, says))
            )
            while not executor.held:
                await asyncio.sleep(0)
            if ends != "after":
                side.connection_ended(7)
            executor.release()
            assert (await unfencing).error_code is ErrorCode.none
            if ends == "after":
                side.connection_ended(7)
            assert not controller.image.brokers[2].fenced
            await ticking(controller, clock, clock.monotonic_ms() + 3_000)
            assert controller.image.brokers[2].fenced
        executor.shutdown()

    asyncio.run(scenario())
