"""Reassignments of partitions that admins request: by Envelope, over real sockets."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

from kio.schema.errors import ErrorCode

from service.wire.api import ApiKey, request_module
from tests.support.alter_partition import AlterIsr, alter_isr
from tests.support.controller_calls import call
from tests.support.controllers import Broker, Fleet, new_topics


def to_move(*partitions: tuple[str, int, tuple[int, ...] | None], allows: bool = True) -> Any:
    """AlterPartitionReassignments."""
    module = request_module(ApiKey.ALTER_PARTITION_REASSIGNMENTS)
    return module.AlterPartitionReassignmentsRequest(
        timeout=timedelta(seconds=10),
        allow_replication_factor_change=allows,
        topics=tuple(
            module.ReassignableTopic(
                name=topic,
                partitions=(module.ReassignablePartition(partition_index=number, replicas=replicas),),
            )
            for topic, number, replicas in partitions
        ),
    )


def to_list(*topics: tuple[str, tuple[int, ...]]) -> Any:
    """ListPartitionReassignments; of all where none is named."""
    module = request_module(ApiKey.LIST_PARTITION_REASSIGNMENTS)
    named = tuple(
        module.ListPartitionReassignmentsTopics(name=name, partition_indexes=numbers)
        for name, numbers in topics
    )
    return module.ListPartitionReassignmentsRequest(timeout=timedelta(seconds=10), topics=named or None)


def told(answer: Any) -> list[tuple[Any, ...]]:
    assert (answer.error_code, answer.error_message) == (ErrorCode.none, None)
    return [
        (topic.name, one.partition_index, one.replicas, one.adding_replicas, one.removing_replicas)
        for topic in answer.topics
        for one in topic.partitions
    ]


def codes(answer: Any) -> list[tuple[str, list[tuple[int, ErrorCode]]]]:
    assert (answer.error_code, answer.error_message) == (ErrorCode.none, None)
    return [
        (topic.name, [(one.partition_index, one.error_code) for one in topic.partitions])
        for topic in answer.responses
    ]


async def led_by(broker: Broker, topic: str) -> tuple[Any, Any]:
    found = broker.publisher.image.topics_by_name[topic]
    return found, found.partitions[0]


def test_a_partition_moves_once_its_new_replica_is_in_sync(tmp_path: Path) -> None:
    async def scenario() -> None:
        fleet = Fleet(tmp_path)
        await fleet.start()
        brokers = {7: await Broker(fleet, 7).start(), 8: await Broker(fleet, 8).start()}
        answer = await brokers[7].forward(ApiKey.CREATE_TOPICS, 7, new_topics("t", "u"))
        assert {one.error_code for one in answer.topics} == {ErrorCode.none}
        _, state = await led_by(brokers[7], "t")
        (here,) = state.replicas
        there = 15 - here

        moving = ("t", 0, (there, here), (there,), (here,))
        await begin_move(brokers[7], there)
        await list_moves(fleet, brokers[8], moving)
        active = await fleet.led()
        await refuse_at_a_follower(fleet)
        await fleet.kill(fleet.id_of(active))  # the move is in the log: the next controller goes on with it
        await fleet.led()
        assert told(await brokers[8].forward(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, to_list())) == [moving]
        epochs = {one: active.publisher.image.brokers[one].epoch for one in (here, there)}
        await finish_move(fleet, brokers, epochs, here, there)
        await refuse_more_replicas_and_cancel(brokers)

        for broker in brokers.values():
            await broker.close()
        await fleet.stop()
        assert not fleet.failures

    asyncio.run(scenario())


async def begin_move(broker: Broker, there: int) -> None:
    for version in (0, 1):
        message = to_move(("t", 0, (there,)), ("no-such", 0, (7,)), ("u", 0, None))
        answer = await broker.forward(ApiKey.ALTER_PARTITION_REASSIGNMENTS, version, message)
        assert codes(answer) == [
            ("t", [(0, ErrorCode.none)]),
            ("no-such", [(0, ErrorCode.unknown_topic_or_partition)]),
            ("u", [(0, ErrorCode.no_reassignment_in_progress)]),
        ]


async def list_moves(fleet: Fleet, broker: Broker, moving: tuple[Any, ...]) -> None:
    assert told(await broker.forward(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, to_list())) == [moving]
    named = to_list(("t", (0, 5)), ("u", (0,)), ("no-such", (0,)))
    assert told(await call(fleet, ApiKey.LIST_PARTITION_REASSIGNMENTS, named)) == [moving]


async def refuse_at_a_follower(fleet: Fleet) -> None:
    active = await fleet.led()
    follower = next(one for one in fleet.running if one != fleet.id_of(active))
    refused = await call(
        fleet, ApiKey.ALTER_PARTITION_REASSIGNMENTS, to_move(("t", 0, None)), node_id=follower
    )
    assert refused.error_code == ErrorCode.not_controller
    assert refused.responses[0].partitions[0].error_code == ErrorCode.not_controller


async def finish_move(
    fleet: Fleet, brokers: dict[int, Broker], epochs: dict[int, int], here: int, there: int
) -> None:
    """Let the leader propose an ISR with the new replica: that ends the move."""
    topic, state = await led_by(brokers[here], "t")
    leader = brokers[here].membership
    assert leader is not None
    isr = tuple(epochs.items())
    proposal = AlterIsr(topic.id, 0, state.leader_epoch, state.partition_epoch, isr)
    message = alter_isr(here, leader.epoch, [proposal])
    answer = await call(fleet, ApiKey.ALTER_PARTITION, message)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.new_leader_elected
    assert told(await brokers[7].forward(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, to_list())) == []
    await brokers[7].catalog.barrier()
    _, state = await led_by(brokers[7], "t")
    assert (state.replicas, state.isr, state.leader) == ((there,), (there,), there)


async def refuse_more_replicas_and_cancel(brokers: dict[int, Broker]) -> None:
    message = to_move(("u", 0, (7, 8)), allows=False)
    answer = await brokers[7].forward(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 1, message)
    assert codes(answer) == [("u", [(0, ErrorCode.invalid_replication_factor)])]
    assert not answer.allow_replication_factor_change
    message = to_move(("u", 0, (7, 8)))
    answer = await brokers[7].forward(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 1, message)
    assert codes(answer) == [("u", [(0, ErrorCode.none)])]
    answer = await brokers[8].forward(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 1, to_move(("u", 0, None)))
    assert codes(answer) == [("u", [(0, ErrorCode.none)])]
    assert told(await brokers[7].forward(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, to_list())) == []
