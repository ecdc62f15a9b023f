"""Three controllers over real sockets: they elect a leader, and brokers live through its death."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from kio.schema.errors import ErrorCode

from service.broker.lifecycle import MoveAway, Recover, Serve
from service.wire.api import ApiKey
from tests.support.controllers import Broker, Fleet, new_topics
from tests.support.waiting import until


def run(scenario: Any) -> None:
    asyncio.run(scenario)


def test_one_leads_and_all_are_registered(tmp_path: Path) -> None:
    async def scenario() -> None:
        fleet = await Fleet(tmp_path).start()
        await fleet.led()
        await until(lambda: all(len(one.publisher.image.controllers) == 3 for one in fleet.running.values()))
        await fleet.stop()
        assert not fleet.failures
        assert fleet.assert_same_logs() > 0

    run(scenario())


def test_a_broker_lives_through_the_death_of_its_controller(tmp_path: Path) -> None:
    async def scenario() -> None:
        fleet = await Fleet(tmp_path).start()
        broker = await Broker(fleet, 7).start()
        first = await fleet.led()
        answer = await broker.forward(ApiKey.CREATE_TOPICS, 7, new_topics("before"))
        assert [one.error_code for one in answer.topics] == [ErrorCode.none]
        assert "before" in broker.publisher.image.topics_by_name
        epoch = broker.membership.epoch
        await fleet.kill(fleet.id_of(first))
        second = await fleet.led()
        assert second is not first
        answer = await broker.forward(ApiKey.CREATE_TOPICS, 7, new_topics("after"))
        assert [one.error_code for one in answer.topics] == [ErrorCode.none]
        assert "after" in broker.publisher.image.topics_by_name
        assert broker.membership.epoch == epoch
        exit_ = await broker.leaves()
        assert exit_.reason == "the controller has moved all leaderships away"
        assert [type(one) for one in broker.told[:3]] == [Recover, Serve, MoveAway]
        assert (
            second.publisher.image.brokers[7].in_controlled_shutdown
            or second.publisher.image.brokers[7].fenced
        )
        await broker.close()
        await fleet.stop()
        assert not fleet.failures

    run(scenario())
