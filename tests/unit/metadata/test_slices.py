"""Large decisions of the controller are made in slices, one after the other."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.steps import Steps
from service.metadata.batches import decode_batch_in_steps, decode_batches, encode_batch
from service.metadata.controller.configs_control import incremental_alter_configs
from service.metadata.controller.decision import ControllerResult
from service.metadata.controller.requests import (
    AlterConfig,
    AlterResource,
    CreateTopic,
    DeleteTopic,
    TopicDefaults,
)
from service.metadata.controller.topics_control import create_topics, delete_topics
from service.metadata.delta import MetadataDelta
from service.metadata.image import BrokerImage, MetadataImage
from service.metadata.publication import apply_batch_in_steps
from service.records.batch import iter_headers
from tests.unit.metadata.controllers import LOG_DIR, AnyConfig, join, running

BROKER = BrokerImage(1, 1, UUID(int=1), (), (), None, False, False, (LOG_DIR,))
MANY = 2000


def work_of(steps: Steps[Any]) -> tuple[int, Any]:
    """Return the number of steps and their result."""
    count = 0
    try:
        while True:
            next(steps)
            count += 1
    except StopIteration as e:
        return count, e.value


def creation(count: int, partitions: int = 1) -> Steps[ControllerResult[Any]]:
    return create_topics(
        MetadataImage(brokers={1: BROKER}),
        [CreateTopic(f"t{n}", partitions, 1) for n in range(count)],
        defaults=TopicDefaults(),
        rules=AnyConfig(),
        new_uuid=uuid4,
    )


def with_topics(count: int) -> MetadataImage:
    decision = work_of(creation(count))[1]
    image = MetadataImage(brokers={1: BROKER})
    return MetadataDelta(image).replay_all(one.record for one in decision.frames).build(1, 1, 0)


def alteration(count: int) -> Steps[ControllerResult[Any]]:
    change = AlterConfig("segment.ms", 0, "7")
    resources = [AlterResource(2, f"t{n}", (change,)) for n in range(count)]
    return incremental_alter_configs(with_topics(count), resources, AnyConfig())


def deletion(count: int) -> Steps[ControllerResult[Any]]:
    return delete_topics(with_topics(count), [DeleteTopic(f"t{n}") for n in range(count)], now_ms=5)


def replay(count: int) -> Steps[Any]:
    frames = work_of(creation(count))[1].frames
    return MetadataDelta(MetadataImage()).replay_in_steps(one.record for one in frames)


def build(count: int) -> Steps[Any]:
    frames = work_of(creation(count))[1].frames
    return MetadataDelta(MetadataImage()).replay_all(one.record for one in frames).build_in_steps(1, 1, 0)


def encoded(count: int) -> bytes:
    frames = work_of(creation(count))[1].frames
    return bytes(encode_batch(frames, base_offset=0, epoch=1, timestamp_ms=1))


def decoding(count: int) -> Steps[Any]:
    data = encoded(count)
    (header,) = iter_headers(data)
    return decode_batch_in_steps(data, header)


def application(count: int) -> Steps[Any]:
    (batch,) = decode_batches(encoded(count))
    return apply_batch_in_steps(MetadataImage(), batch)


WORK = [creation, alteration, deletion, replay, build, decoding, application]


@pytest.mark.parametrize("work", WORK)
def test_ten_times_as_large_a_decision_takes_ten_times_as_many_steps(work: Any) -> None:
    few, many = work_of(work(MANY // 10))[0], work_of(work(MANY))[0]
    assert many >= MANY
    assert many == pytest.approx(10 * few, rel=0.2)


def test_a_topic_of_many_partitions_is_made_in_steps() -> None:
    steps, decision = work_of(creation(1, MANY))
    assert steps >= MANY
    assert len(decision.frames) == MANY + 1


def test_while_a_large_decision_is_made_others_run_and_the_next_decision_sees_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as controller:
            await join(controller)
            large = asyncio.create_task(
                controller.create_topics([CreateTopic(f"t{n}", 1, 1) for n in range(MANY)])
            )
            await asyncio.sleep(0)
            offset = controller.publisher.next_offset
            small = asyncio.create_task(controller.create_topics([CreateTopic("t7", 1, 1)]))
            for _ in range(10):
                await asyncio.sleep(0)
                assert controller.publisher.next_offset == offset, "it is not written yet"
            assert {one.error for one in await large} == {ErrorCode.none}
            assert [one.error for one in await small] == [ErrorCode.topic_already_exists]

    asyncio.run(scenario())


def test_a_cancelled_large_decision_has_no_effect(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as controller:
            await join(controller)
            large = asyncio.create_task(
                controller.create_topics([CreateTopic(f"t{n}", 1, 1) for n in range(MANY)])
            )
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            large.cancel()
            (made,) = await controller.create_topics([CreateTopic("t7", 1, 1)])
            assert made.error is ErrorCode.none
            assert list(controller.image.topics_by_name) == ["t7"]

    asyncio.run(scenario())


def test_a_controller_that_stops_finishes_no_decision_that_others_wait_for(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running(tmp_path) as controller:
            await join(controller)
            large = asyncio.create_task(
                controller.create_topics([CreateTopic(f"t{n}", 1, 1) for n in range(MANY)])
            )
            await asyncio.sleep(0)
            waiting = asyncio.create_task(controller.create_topics([CreateTopic("late", 1, 1)]))
            await asyncio.sleep(0)
            controller.stop()
            with pytest.raises(RequestError):
                await waiting
            assert {one.error for one in await large} == {ErrorCode.none}

    asyncio.run(scenario())
