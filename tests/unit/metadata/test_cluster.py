"""Brokers that come and go, replicas that are placed: decisions on images, with several brokers."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.steps import Steps, at_once
from service.metadata.controller.cluster_control import register_broker
from service.metadata.controller.decision import ControllerResult
from service.metadata.controller.heartbeat_control import (
    begin_controlled_shutdown,
    fence_broker,
    unfence_broker,
)
from service.metadata.controller.placement import CannotPlace, place_replicas
from service.metadata.controller.producer_ids_control import allocate_producer_ids
from service.metadata.controller.requests import CreateTopic, RegisterBroker, TopicDefaults
from service.metadata.controller.topics_control import create_topics
from service.metadata.delta import MetadataDelta
from service.metadata.image import BrokerImage, MetadataImage, PartitionImage
from tests.unit.metadata.controllers import CLUSTER_ID, AnyConfig, registration

TOPIC_ID = UUID(int=8)


class Cluster:
    """An image and what was decided on it."""

    def __init__(self) -> None:
        self.image = MetadataImage()

    def apply(self, decision: ControllerResult[Any] | Steps[ControllerResult[Any]]) -> Any:
        decision = decision if isinstance(decision, ControllerResult) else at_once(decision)
        delta = MetadataDelta(self.image).replay_all(frame.record for frame in decision.frames)
        self.image = delta.build(self.image.offset + len(decision.frames), 1, 0)
        return decision.response

    def register(self, request: RegisterBroker, *, has_session: bool = False) -> int:
        epoch = self.apply(
            register_broker(
                self.image,
                request,
                cluster_id=CLUSTER_ID,
                next_offset=self.image.offset + 1,
                has_session=has_session,
            )
        )
        assert isinstance(epoch, int)
        return epoch

    def join(self, *broker_ids: int) -> None:
        for broker_id in broker_ids:
            epoch = self.register(registration(broker_id))
            self.apply(unfence_broker(self.image, broker_id, epoch))

    def fence(self, broker_id: int) -> None:
        self.apply(fence_broker(self.image, broker_id, self.image.brokers[broker_id].epoch))

    def unfence(self, broker_id: int) -> None:
        self.apply(unfence_broker(self.image, broker_id, self.image.brokers[broker_id].epoch))

    def create(self, replicas: tuple[int, ...]) -> None:
        request = CreateTopic("t", assignments=((0, replicas),))
        decide = create_topics(
            self.image, [request], defaults=TopicDefaults(), rules=AnyConfig(), new_uuid=lambda: TOPIC_ID
        )
        self.apply(decide)

    @property
    def partition(self) -> PartitionImage:
        found = self.image.partition(TOPIC_ID, 0)
        assert found is not None
        return found


def test_the_epoch_of_a_broker_is_the_offset_of_its_registration() -> None:
    cluster = Cluster()
    assert cluster.register(registration(1)) == 0
    cluster.unfence(1)
    assert cluster.image.offset == 1
    cluster.create((1,))
    # one record takes its partition from the process before it, then comes its successor's
    offset = cluster.image.offset
    assert cluster.register(registration(1)) == offset + 2


def test_a_sole_replica_loses_its_leader_with_the_broker_and_gets_it_back() -> None:
    cluster = Cluster()
    cluster.join(1)
    cluster.create((1,))
    cluster.fence(1)
    assert (cluster.partition.leader, cluster.partition.isr, cluster.partition.leader_epoch) == (-1, (1,), 1)
    cluster.unfence(1)
    assert (cluster.partition.leader, cluster.partition.isr, cluster.partition.leader_epoch) == (1, (1,), 2)


def test_a_process_that_was_killed_is_fenced_when_its_successor_registers() -> None:
    cluster = Cluster()
    cluster.join(1)
    cluster.create((1,))
    cluster.register(registration(1))
    assert (cluster.partition.leader, cluster.partition.leader_epoch) == (-1, 1)
    assert cluster.image.brokers[1].fenced


def test_another_in_sync_replica_takes_over_and_the_lost_one_leaves_the_isr() -> None:
    cluster = Cluster()
    cluster.join(1, 2, 3)
    cluster.create((2, 3, 1))
    cluster.fence(2)
    assert (cluster.partition.leader, cluster.partition.isr) == (3, (3, 1))
    cluster.fence(1)
    assert (cluster.partition.leader, cluster.partition.isr) == (3, (3,))
    assert cluster.partition.leader_epoch == 1
    assert cluster.partition.partition_epoch == 2
    cluster.fence(3)
    assert (cluster.partition.leader, cluster.partition.isr) == (-1, (3,))
    cluster.unfence(1)
    assert cluster.partition.leader == -1, "it is not in sync"
    cluster.unfence(3)
    assert cluster.partition.leader == 3


def test_fencing_twice_writes_nothing() -> None:
    cluster = Cluster()
    cluster.join(1)
    cluster.fence(1)
    assert at_once(fence_broker(cluster.image, 1, cluster.image.brokers[1].epoch)).frames == ()


def test_the_same_process_may_register_again_and_keeps_its_epoch() -> None:
    cluster = Cluster()
    request = registration(1)
    epoch = cluster.register(request)
    cluster.unfence(1)
    assert cluster.register(request, has_session=True) == epoch
    assert not cluster.image.brokers[1].fenced


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (registration(1, cluster_id="other"), ErrorCode.inconsistent_cluster_id),
        (registration(1), ErrorCode.duplicate_broker_registration),
        (registration(2, log_dirs=()), ErrorCode.invalid_registration),
        (registration(2, log_dirs=(UUID(int=1),)), ErrorCode.invalid_registration),
        (registration(2, log_dirs=(TOPIC_ID, TOPIC_ID)), ErrorCode.invalid_registration),
        (registration(2, log_dirs=registration(1).log_dirs), ErrorCode.invalid_registration),
    ],
)
def test_registrations_that_are_refused(request_: RegisterBroker, code: ErrorCode) -> None:
    cluster = Cluster()
    cluster.join(1)
    with pytest.raises(RequestError) as refused:
        cluster.register(request_, has_session=True)
    assert refused.value.code is code


@pytest.mark.parametrize(
    ("broker_id", "epoch", "code"),
    [(1, 99, ErrorCode.stale_broker_epoch), (9, 0, ErrorCode.broker_id_not_registered)],
)
def test_a_process_that_was_replaced_changes_nothing(broker_id: int, epoch: int, code: ErrorCode) -> None:
    cluster = Cluster()
    cluster.join(1)
    for refuse in (fence_broker, unfence_broker):
        with pytest.raises(RequestError) as refused:
            cluster.apply(refuse(cluster.image, broker_id, epoch))
        assert refused.value.code is code
    with pytest.raises(RequestError) as refused:
        allocate_producer_ids(cluster.image, broker_id, epoch)
    assert refused.value.code is ErrorCode.stale_broker_epoch


def brokers(*racks: str | None, fenced: tuple[int, ...] = ()) -> list[BrokerImage]:
    return [
        BrokerImage(i, i, UUID(int=i), (), (), rack, i in fenced, False, ()) for i, rack in enumerate(racks)
    ]


def test_leaders_go_round_and_replicas_are_distinct() -> None:
    placed = list(place_replicas(brokers(None, None, None, None), range(8), 3, TOPIC_ID))
    assert all(len(set(replicas)) == 3 for replicas in placed)
    leaders = [replicas[0] for replicas in placed]
    assert sorted(leaders) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert len(set(placed)) == 8


def test_replicas_are_placed_in_different_racks_if_possible() -> None:
    racks = ("a", "a", "b", "b", "c", "c")
    placed = list(place_replicas(brokers(*racks), range(12), 3, TOPIC_ID))
    assert len(placed) == 12
    for replicas in placed:
        assert {racks[broker] for broker in replicas} == {"a", "b", "c"}


def test_a_fenced_broker_follows_but_never_leads() -> None:
    placed = list(place_replicas(brokers(None, None, None, fenced=(1,)), range(6), 3, TOPIC_ID))
    assert all(replicas[0] != 1 and 1 in replicas for replicas in placed)


def test_a_broker_that_was_stopped_follows_as_any_that_is_fenced() -> None:
    """Who is about to stop gets no replicas; once it has stopped it is fenced, and will be back (Kafka
    `BrokerHeartbeatManager.touch`)."""
    cluster = Cluster()
    cluster.join(1, 2, 3)
    cluster.apply(begin_controlled_shutdown(cluster.image, 3, cluster.image.brokers[3].epoch))

    def create() -> ErrorCode:
        asked = CreateTopic("t", 1, replication_factor=3)
        (made,) = cluster.apply(
            create_topics(
                cluster.image, [asked], defaults=TopicDefaults(), rules=AnyConfig(), new_uuid=lambda: TOPIC_ID
            )
        )
        return ErrorCode(made.error)

    assert create() is ErrorCode.invalid_replication_factor
    cluster.fence(3)
    assert create() is ErrorCode.none
    assert (sorted(cluster.partition.replicas), sorted(cluster.partition.isr)) == ([1, 2, 3], [1, 2])
    assert cluster.partition.leader != 3


def test_placement_needs_enough_brokers() -> None:
    with pytest.raises(CannotPlace, match="All brokers are currently fenced"):
        place_replicas(brokers(None, fenced=(0,)), range(1), 1, TOPIC_ID)
    with pytest.raises(CannotPlace, match=r"only 2 broker\(s\) are registered"):
        place_replicas(brokers(None, None), range(1), 3, TOPIC_ID)
