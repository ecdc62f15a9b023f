"""Apache Kafka's controller as the judge of ours: what it makes of moves, ISRs and elections, one by one.

Nobody serves anything: its brokers are names with heartbeats, and their leaders' proposals are drawn. Before
each request our decision is made on the image of Kafka's own log; then the answers are compared, and what
became of the partitions.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from service.base.steps import at_once
from service.base.world import system_world
from service.client.node_channel import Channels
from service.controller_client import lifecycle_messages
from service.metadata.controller.decision import ControllerResult
from service.metadata.controller.elections_control import ElectionSettings, elect_leaders
from service.metadata.controller.isr_control import alter_partitions
from service.metadata.controller.reassignment_control import alter_reassignments, list_reassignments
from service.metadata.controller.requests import (
    AlterPartition,
    BrokerState,
    ElectLeaders,
    ReassignPartition,
)
from service.metadata.delta import MetadataDelta
from service.metadata.endpoint import Endpoint
from service.metadata.image import MetadataImage, PartitionImage
from service.metadata.publisher import MetadataOptions, Publisher, QuorumOptions
from service.metadata.raft import roles
from service.metadata.raft.keys import ReplicaKey
from service.metadata.raft.voters import VoterNode, VoterSet
from service.wire.api import ApiKey, request_module
from tests.process.test_kafkas_controller import Broker, KafkasQuorum
from tests.support.alter_partition import AlterIsr, alter_isr
from tests.support.kafka_node import CLUSTER_ID, KafkaNode
from tests.support.waiting import until

pytestmark = pytest.mark.java

BROKERS = (7, 8, 9, 10, 11)
SETTINGS = ElectionSettings(node_id=1, checks_directories=True)
FIRST = ((7, 8, 9), (8, 9, 10), (9, 10, 11), (10, 11, 7))
"""Replicas of the topic's partitions, as it is created"""
STEPS = 150


class Judge:
    """Kafka's quorum with brokers that are names, and its log replayed here."""

    def __init__(self, node: KafkaNode, folder: Path) -> None:
        quorum = KafkasQuorum(node)
        self.quorum = quorum
        place = Endpoint("CONTROLLER", quorum.address.host, quorum.address.port)
        key = ReplicaKey(99, UUID(int=99))
        identity = roles.ReplicaIdentity(key, CLUSTER_ID, (), (place,), can_vote=False)
        voters = VoterSet([VoterNode(ReplicaKey(1), (place,))])
        self.channels = Channels()
        self.publisher = Publisher(
            MetadataOptions(99, folder, key.directory_id, quorum=QuorumOptions(identity, voters)),
            replace(system_world(), random=random.Random(1)),
            on_fatal=self._fatal,
            peers=self.channels,
        )
        self.failures: list[BaseException] = []
        self.brokers: dict[int, Broker] = {}

    def _fatal(self, what: str, error: BaseException) -> None:
        self.failures.append(error)

    async def start(self) -> None:
        await self.publisher.start()
        for node_id in BROKERS:
            self.brokers[node_id] = Broker(self.quorum, node_id, 1000 + node_id)
            await self.brokers[node_id].serves()

    async def close(self) -> None:
        for one in self.brokers.values():
            await one.close()
        await self.publisher.stop()
        await self.channels.close()
        assert not self.failures

    async def ask(self, key: ApiKey, message: Any, broker_id: int = 7) -> Any:
        return await self.brokers[broker_id].controllers.ask(key, message, timeout_ms=10_000)

    def epoch_of(self, broker_id: int) -> int:
        return self.brokers[broker_id].membership.epoch

    async def image(self) -> MetadataImage:
        """With everything that was answered before."""
        message = lifecycle_messages.producer_ids(7, self.epoch_of(7))
        answer = await self.ask(ApiKey.ALLOCATE_PRODUCER_IDS, message)
        block = lifecycle_messages.producer_ids_allocated(answer)
        await until(lambda: self.publisher.image.next_producer_id >= block.first + block.size)
        return self.publisher.image


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Any:
    node = KafkaNode(tmp_path_factory.mktemp("kafka") / "node", heap="512m")
    yield node
    node.stop()


def ours(image: MetadataImage, made: Any) -> tuple[MetadataImage, Any]:
    """What our decision makes of the image, and its answer."""
    decision = made if isinstance(made, ControllerResult) else at_once(made)
    delta = MetadataDelta(image).replay_all(frame.record for frame in decision.frames)
    return delta.build(image.offset + len(decision.frames), 1, 0), decision.response


def without_strangers(state: PartitionImage) -> PartitionImage:
    """Kafka keeps among the eligible leaders who is no replica any more."""
    eligible = tuple(one for one in state.eligible_leader_replicas if one in state.replicas)
    return state._replace(eligible_leader_replicas=eligible)


def is_muddled(state: PartitionImage, aim: tuple[int, ...]) -> bool:
    """Kafka goes on adding whom that does not name, or removing whom it does."""
    replicas, named = set(state.replicas), set(aim)
    goes_on_adding = named <= replicas and not set(state.adding_replicas) <= named
    return goes_on_adding or (replicas <= named and bool(state.removing_replicas))


class Course:
    """A drawn course of requests about one topic."""

    def __init__(self, judge: Judge, topic: str, seed: int, min_isr: int) -> None:
        """Partition 0 keeps `min_isr` replicas: with fewer, Kafka gives up other partitions' eligible leaders
        while their leaders still wait for as many."""
        self.min_isr = min_isr
        self.judge, self.topic, self.random = judge, topic, random.Random(seed)
        self.seen: Counter[str] = Counter()
        self.asked = ""

    def state(self, image: MetadataImage, number: int) -> PartitionImage:
        return image.topics_by_name[self.topic].partitions[number]

    async def step(self, image: MetadataImage) -> MetadataImage:
        number = self.random.randrange(len(FIRST))
        act = self.random.choice(
            [self.move, self.move, self.call_off, self.isr, self.isr, self.isr, self.elect]
        )
        self.asked = ""
        expected, said, answered = await act(image, number)
        assert answered == said, f"{act.__name__} of {self.state(image, number)}"
        after = await self.judge.image()
        for one in range(len(FIRST)):
            before, found = self.state(image, one), self.state(after, one)
            made = self.state(expected, one)
            assert without_strangers(found) == without_strangers(made), (
                f"{act.__name__} {self.asked} of {number}\n{before}\nbecomes\n{found}\nand not\n{made}"
            )
        await self.told(after)
        error = said[0] if isinstance(said, tuple) else said
        self.seen[f"{act.__name__}: {error.name}"] += 1
        return after

    # Each: our image after it, our answer, Kafka's.

    async def move(self, image: MetadataImage, number: int) -> tuple[MetadataImage, Any, Any]:
        state = self.state(image, number)
        least = self.min_isr if number == 0 else 1
        aim = tuple(self.random.sample(BROKERS, self.random.randint(least, 4)))
        while is_muddled(state, aim):
            aim = tuple(self.random.sample(BROKERS, self.random.randint(least, 4)))
        if (odd := self.random.random()) < 0.05:
            aim = ()
        elif odd < 0.1:
            aim = (*aim, aim[0])
        elif odd < 0.15:
            aim = (*aim, 55)
        elif odd < 0.2:
            number += 100
        return await self._alter(image, number, aim, allows=self.random.random() < 0.7)

    async def call_off(self, image: MetadataImage, number: int) -> tuple[MetadataImage, Any, Any]:
        return await self._alter(image, number, None, allows=True)

    async def _alter(
        self, image: MetadataImage, number: int, aim: tuple[int, ...] | None, *, allows: bool
    ) -> tuple[MetadataImage, Any, Any]:
        asked = [ReassignPartition(self.topic, number, aim)]
        self.asked = f"{asked}, allows={allows}"
        expected, (said,) = ours(
            image, alter_reassignments(image, asked, SETTINGS, allows_factor_change=allows)
        )
        module = request_module(ApiKey.ALTER_PARTITION_REASSIGNMENTS)
        partition = module.ReassignablePartition(partition_index=number, replicas=aim)
        message = module.AlterPartitionReassignmentsRequest(
            timeout=timedelta(seconds=5),
            allow_replication_factor_change=allows,
            topics=(module.ReassignableTopic(name=self.topic, partitions=(partition,)),),
        )
        answer = await self.judge.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, message)
        assert (answer.error_code, answer.error_message) == (ErrorCode.none, None)
        assert answer.allow_replication_factor_change is allows
        (topic,) = answer.responses
        (one,) = topic.partitions
        assert (topic.name, one.partition_index) == (self.topic, number)
        return expected, (said.error, said.message), (one.error_code, one.error_message)

    async def isr(self, image: MetadataImage, number: int) -> tuple[MetadataImage, Any, Any]:
        topic, state = image.topics_by_name[self.topic], self.state(image, number)
        leader = state.leader
        members = [one for one in state.replicas if one == leader or self.random.random() < 0.7]
        if self.random.random() < 0.1:
            members = self.random.sample(BROKERS, 2)
        epochs = [(one, self.judge.epoch_of(one)) for one in members]
        request = AlterPartition(
            topic.id,
            number,
            state.leader_epoch,
            state.partition_epoch,
            tuple(BrokerState(*one) for one in epochs),
        )
        epoch = self.judge.epoch_of(leader)
        expected, (said,) = ours(image, alter_partitions(image, leader, epoch, [request], SETTINGS))
        proposal = AlterIsr(topic.id, number, state.leader_epoch, state.partition_epoch, tuple(epochs))
        message = alter_isr(leader, epoch, [proposal])
        answer = await self.judge.ask(ApiKey.ALTER_PARTITION, message, leader)
        (one,) = answer.topics[0].partitions
        if said.error is not ErrorCode.none:
            return expected, said.error, one.error_code
        return (
            expected,
            (said.error, said.leader, said.leader_epoch, said.isr, said.partition_epoch),
            (one.error_code, one.leader_id, one.leader_epoch, one.isr, one.partition_epoch),
        )

    async def elect(self, image: MetadataImage, number: int) -> tuple[MetadataImage, Any, Any]:
        kind = self.random.randrange(2)
        asked = ElectLeaders(kind, ((self.topic, number),))
        expected, (said,) = ours(image, elect_leaders(image, asked, SETTINGS))
        module = request_module(ApiKey.ELECT_LEADERS)
        named = module.TopicPartitions(topic=self.topic, partitions=(number,))
        message = module.ElectLeadersRequest(
            election_type=kind, topic_partitions=(named,), timeout=timedelta(seconds=5)
        )
        answer = await self.judge.ask(ApiKey.ELECT_LEADERS, message)
        (one,) = answer.replica_election_results[0].partition_result
        return expected, (said.error, said.message), (one.error_code, one.error_message)

    async def told(self, image: MetadataImage) -> None:
        """Those under way, of all that there are and of some."""
        module = request_module(ApiKey.LIST_PARTITION_REASSIGNMENTS)
        some = (("no-such", (0,)), (self.topic, (2, 0, 77)))
        for named in (None, some):
            topics = named and tuple(
                module.ListPartitionReassignmentsTopics(name=name, partition_indexes=numbers)
                for name, numbers in named
            )
            message = module.ListPartitionReassignmentsRequest(timeout=timedelta(seconds=5), topics=topics)
            answer = await self.judge.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, message)
            assert (answer.error_code, answer.error_message) == (ErrorCode.none, None)
            found = [
                (topic.name, one.partition_index, one.replicas, one.adding_replicas, one.removing_replicas)
                for topic in answer.topics
                for one in topic.partitions
            ]
            expected = at_once(list_reassignments(image, named))
            assert sorted(found) == sorted(map(tuple, expected))


async def create(judge: Judge, topic: str, **configs: str) -> None:
    module = request_module(ApiKey.CREATE_TOPICS)
    made = module.CreatableTopic(
        name=topic,
        num_partitions=-1,
        replication_factor=-1,
        assignments=tuple(
            module.CreatableReplicaAssignment(partition_index=number, broker_ids=replicas)
            for number, replicas in enumerate(FIRST)
        ),
        configs=tuple(
            module.CreatableTopicConfig(name=name.replace("_", "."), value=value)
            for name, value in configs.items()
        ),
    )
    answer = await judge.ask(
        ApiKey.CREATE_TOPICS, module.CreateTopicsRequest(topics=(made,), timeout=timedelta(seconds=5))
    )
    assert answer.topics[0].error_code == ErrorCode.none, answer.topics[0].error_message


def test_kafka_answers_reassignments_without_effect(kafka: KafkaNode, tmp_path: Path) -> None:
    async def scenario() -> None:
        channels = Channels()
        address = KafkasQuorum(kafka).address
        place = Endpoint("CONTROLLER", address.host, address.port)

        async def ask(key: ApiKey, message: Any) -> Any:
            return await channels.call(place, key, None, message, timeout_ms=10_000)

        module = request_module(ApiKey.UNREGISTER_BROKER)
        answer = await ask(ApiKey.UNREGISTER_BROKER, module.UnregisterBrokerRequest(broker_id=55))
        assert (answer.error_code, answer.error_message) == (
            ErrorCode.broker_id_not_registered,
            "Broker ID 55 is not currently registered",
        )
        module = request_module(ApiKey.ALTER_PARTITION_REASSIGNMENTS)
        message = module.AlterPartitionReassignmentsRequest(
            timeout=timedelta(seconds=5), allow_replication_factor_change=False, topics=()
        )
        answer = await ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, message)
        assert (answer.error_code, answer.error_message, answer.responses) == (ErrorCode.none, "", ())
        assert answer.allow_replication_factor_change, "its default"
        module = request_module(ApiKey.LIST_PARTITION_REASSIGNMENTS)
        message = module.ListPartitionReassignmentsRequest(timeout=timedelta(seconds=5), topics=())
        answer = await ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, message)
        assert (answer.error_code, answer.error_message, answer.topics) == (ErrorCode.none, None, ())
        await channels.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("seed", "configs"),
    [
        pytest.param(1, {"min_insync_replicas": "1"}, marks=pytest.mark.thorough),
        pytest.param(2, {"min_insync_replicas": "2"}, marks=pytest.mark.thorough),
        (3, {"min_insync_replicas": "3", "unclean_leader_election_enable": "true"}),
    ],
)
def test_kafkas_controller_decides_as_ours_does(
    kafka: KafkaNode, tmp_path: Path, seed: int, configs: dict[str, str]
) -> None:
    print(f"seed {seed}")

    async def scenario() -> None:
        judge = Judge(kafka, tmp_path / "metadata")
        course = Course(judge, f"t{seed}", seed, int(configs["min_insync_replicas"]))
        try:
            await judge.start()
            await create(judge, course.topic, **configs)
            image = await judge.image()
            for _ in range(STEPS):
                image = await course.step(image)
        finally:
            await judge.close()
        for what, count in sorted(course.seen.items()):
            print(f"{count:>5} {what}")
        assert len({what.partition(":")[0] for what in course.seen}) == 4

    asyncio.run(scenario())
