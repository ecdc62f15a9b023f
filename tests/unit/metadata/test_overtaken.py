"""Batches that the quorum writes during a decision of the controller: the decision is made again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from service.base.clock import ManualClock
from service.base.errors import RequestError
from service.base.steps import Steps
from service.metadata.controller.broker_sessions import ProbeOutcome, SessionTick
from service.metadata.controller.decision import ControllerResult
from service.metadata.controller.requests import BrokerHeartbeat, CreateTopic
from service.metadata.frames import Frame, newest
from service.metadata.image import BrokerImage, MetadataImage
from service.metadata.raft.events import AppendControl, LeaderChange
from service.metadata.records import NoOpRecord
from tests.support.world import make_world
from tests.unit.metadata.controllers import (
    LoneController,
    create,
    join,
    make_controller,
    registration,
    running,
)


def write_control(controller: LoneController) -> None:
    """Write control records, as a change of the voters does."""
    quorum = controller.publisher.quorum
    quorum._effects.append(AppendControl(quorum.epoch, (LeaderChange(1, (1,), (1,)),)))
    quorum._drain()


class Overtaking:
    """Proposals of which the ones that are numbered are overtaken, and by what."""

    def __init__(self, controller: LoneController, *numbers: int, by: Any = write_control) -> None:
        self.count = 0
        self._controller, self._numbers, self._by = controller, numbers, by
        self._propose = controller.publisher.propose
        controller.publisher.propose = self  # type: ignore[method-assign]

    def __call__(self, frames: Sequence[Frame], before: MetadataImage) -> Steps[MetadataImage]:
        self.count += 1
        steps = self._propose(frames, before)
        yield next(steps)
        if self.count in self._numbers:
            self._by(self._controller)
        return (yield from steps)


def test_a_topic_is_created_after_records_the_quorum_wrote_meanwhile(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as controller:
            await join(controller)
            overtaken = Overtaking(controller, 1, 2)
            (result,) = await controller.create_topics([CreateTopic("t", 3, 1)])
            assert result.error is ErrorCode.none
            assert overtaken.count == 3
            assert controller.image.topics_by_name["t"].id == result.topic_id
            (result,) = await controller.create_topics([CreateTopic("t", 3, 1)])
            assert result.error is ErrorCode.topic_already_exists, "it was made once"

    asyncio.run(scenario())


def test_a_brokers_epoch_is_still_the_offset_of_its_registration(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as controller:
            Overtaking(controller, 1)
            epoch = await controller.brokers.register(registration(5))
            assert controller.image.brokers[5].epoch == epoch == controller.image.offset

    asyncio.run(scenario())


def test_later_batches_of_a_decision_are_written_without_deciding_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.metadata.controller.decision_queue.MAX_RECORDS_PER_OPERATION", 2)

    async def scenario() -> None:
        async with running(tmp_path) as controller:
            overtaken = Overtaking(controller, 2, 4)
            decisions = []
            begin = controller.publisher.next_offset

            def decide(image: MetadataImage) -> ControllerResult[str]:
                decisions.append(image.offset)
                return ControllerResult((newest(NoOpRecord()),) * 5, "done", is_atomic=False)

            answer, offset = await controller._decisions.run(decide)
            assert (answer, len(decisions), overtaken.count) == ("done", 1, 5)
            assert offset == begin + 6, "five records, and two of the quorum's"

    asyncio.run(scenario())


def test_a_request_that_is_overtaken_until_its_timeout_is_not_decided(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        controller = make_controller(tmp_path, world=make_world(clock))
        await controller.start()

        def slowly(one: LoneController) -> None:
            write_control(one)
            clock.advance(2_000)

        Overtaking(controller, 1, 2, 3, by=slowly)
        begin = clock.monotonic_ms()
        with pytest.raises(RequestError) as error:
            await controller._decisions.run(
                lambda image: ControllerResult((newest(NoOpRecord()),), None), deadline_ms=begin + 3_000
            )
        assert error.value.code is ErrorCode.request_timed_out
        await controller.close()

    asyncio.run(scenario())


def test_a_deposed_leader_decides_nothing_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        controller = make_controller(tmp_path)
        await controller.start()
        overtaken = Overtaking(controller, 1, by=lambda one: one.renounce())
        with pytest.raises(RequestError) as error:
            await controller._decisions.run(lambda image: ControllerResult((newest(NoOpRecord()),) * 2, None))
        assert error.value.code is ErrorCode.not_controller
        assert overtaken.count == 1
        await controller.close()

    asyncio.run(scenario())


def test_a_decision_is_written_completely_though_its_caller_gives_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker in this process waits for its heartbeat no longer, while it is unfenced by several batches: it
    counts as unfenced from the first one on, and nobody would elect for it what is in the others."""
    monkeypatch.setattr("service.metadata.controller.decision_queue.MAX_RECORDS_PER_OPERATION", 300)

    async def scenario() -> None:
        async with running(tmp_path) as controller:
            epoch = await join(controller, 2)
            topic_id = await create(controller, "t", 1000)
            await controller.brokers.fence(2, epoch)

            def leaders() -> set[int]:
                return {one.leader for one in controller.image.topics_by_id[topic_id].partitions.values()}

            assert leaders() == {-1}
            beat = BrokerHeartbeat(2, epoch, epoch)
            asking = asyncio.create_task(controller.brokers.heartbeat(beat))
            overtaken = Overtaking(controller, 2, by=lambda one: asking.cancel())
            await asyncio.wait([asking])
            assert asking.cancelled()
            assert overtaken.count == 4
            reply = await controller.brokers.heartbeat(beat)
            assert not reply.is_fenced
            assert leaders() == {2}
            assert controller._overseer._sessions._sessions[2].is_unfenced

    asyncio.run(scenario())


def test_a_heartbeat_during_an_overtaken_fencing_keeps_the_session(
    tmp_path: Path,
) -> None:
    """It is decided anew, and stays."""
    probed: list[int] = []

    async def probe(broker: BrokerImage) -> tuple[ProbeOutcome, str]:
        probed.append(broker.id)
        return ProbeOutcome.OPEN, ""

    async def scenario() -> None:
        clock = ManualClock()
        async with running(tmp_path, world=make_world(clock)) as controller:
            controller._overseer._probe = probe
            epoch = await join(controller, 2)
            await create(controller, "t", 1000)
            clock.advance(10_000)
            begin = controller.publisher.next_offset
            controller._overseer.handle(SessionTick())
            (fencing,) = controller._overseer._effect_tasks
            while not controller._decisions._turn.locked():
                await asyncio.sleep(0)
            write_control(controller)
            await controller.brokers.heartbeat(BrokerHeartbeat(2, epoch, begin))
            await asyncio.wait([fencing])
            assert controller.publisher.next_offset == begin + 1, "what the quorum wrote, and no more"
            assert not controller.image.brokers[2].fenced
            controller.brokers.connection_lost(2, epoch)
            await asyncio.wait(controller._overseer._effect_tasks)
            assert probed == [2]

    asyncio.run(scenario())
