"""Reassignments: begun, cancelled, ended by a growing ISR, and listed."""

from __future__ import annotations

import random
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from service.base.steps import at_once
from service.metadata.controller.configs_control import incremental_alter_configs
from service.metadata.controller.elections_control import ElectionSettings
from service.metadata.controller.heartbeat_control import fence_broker, unfence_broker
from service.metadata.controller.isr_control import alter_partitions
from service.metadata.controller.reassignment_control import alter_reassignments, list_reassignments
from service.metadata.controller.requests import (
    AlterConfig,
    AlterPartition,
    AlterResource,
    BrokerState,
    OngoingReassignment,
    ReassignPartition,
    ReassignResult,
)
from service.metadata.image import MetadataImage
from service.metadata.partition_index import MOVING_SHELF
from service.metadata.records import NO_LEADER, PartitionRecord
from tests.unit.metadata.controllers import AnyConfig
from tests.unit.metadata.test_partitions import (
    SETTINGS,
    TOPIC_ID,
    applied,
    broker,
    directory,
    image_of,
    partition,
    state_of,
)

BROKERS = tuple(broker(one) for one in range(1, 7))


def image_with(*partitions: PartitionRecord, **more: Any) -> MetadataImage:
    return image_of(*BROKERS, *partitions, **more)


def alter(
    image: MetadataImage, *asked: tuple[int, tuple[int, ...] | None], **more: Any
) -> tuple[MetadataImage, list[ReassignResult]]:
    requests = [ReassignPartition("t", number, replicas) for number, replicas in asked]
    return applied(image, alter_reassignments(image, requests, SETTINGS, **more))


def in_sync(image: MetadataImage, *isr: int, number: int = 0) -> tuple[MetadataImage, Any]:
    """The leader's proposal of another ISR."""
    state = state_of(image, number)
    asked = AlterPartition(
        TOPIC_ID, number, state.leader_epoch, state.partition_epoch, tuple(BrokerState(one) for one in isr)
    )
    changes = alter_partitions(image, state.leader, 10 * state.leader, [asked], SETTINGS)
    after, (result,) = applied(image, changes)
    return after, result.error


def listed(image: MetadataImage) -> list[OngoingReassignment]:
    found = at_once(list_reassignments(image, None))
    moving = [(TOPIC_ID, one.partition) for one in found]
    assert moving == list(image.index.partitions(MOVING_SHELF))
    return found


def test_a_partition_moves_to_another_broker() -> None:
    image = image_with(partition(0, (1,), (1,), 1))
    after, (result,) = alter(image, (0, (2,)))
    assert result == ReassignResult("t", 0, ErrorCode.none)
    state = state_of(after)
    assert (state.replicas, state.adding_replicas, state.removing_replicas) == ((2, 1), (2,), (1,))
    assert (state.isr, state.leader, state.leader_epoch, state.partition_epoch) == ((1,), 1, 5, 8)
    assert state.directories == (UUID(int=1), directory(1)), "a broker of several directories chooses"
    assert listed(after) == [OngoingReassignment("t", 0, (2, 1), (2,), (1,))]

    after, error = in_sync(after, 1, 2)
    assert error is ErrorCode.new_leader_elected
    state = state_of(after)
    assert (state.replicas, state.isr, state.leader, state.leader_epoch) == ((2,), (2,), 2, 6)
    assert (state.adding_replicas, state.removing_replicas) == ((), ())
    assert state.directories == (UUID(int=1),)
    assert not state.eligible_leader_replicas
    assert not listed(after)


def test_a_reassignment_ends_when_all_added_replicas_are_in_sync() -> None:
    image = image_with(partition(0, (1, 2, 3), (1, 2), 1))
    image, _ = alter(image, (0, (3, 4, 5)))
    assert state_of(image).replicas == (3, 4, 5, 1, 2)
    image, error = in_sync(image, 1, 2, 4)
    assert error is ErrorCode.none
    assert listed(image)
    image, error = in_sync(image, 1, 2, 4, 5)
    assert error is ErrorCode.new_leader_elected
    state = state_of(image)
    assert (state.replicas, state.isr, state.leader) == ((3, 4, 5), (4, 5), 4)


def test_fewer_replicas_wait_for_all_that_stay() -> None:
    image = image_with(partition(0, (1, 2, 3, 4, 5), (1, 2), 1))
    image, _ = alter(image, (0, (3, 4, 5, 6)))
    state = state_of(image)
    assert (state.replicas, state.adding_replicas) == ((3, 4, 5, 6, 1, 2), (6,))
    image, _ = in_sync(image, 1, 2, 6)
    assert listed(image), "6 alone would be in sync"
    image, _ = in_sync(image, 1, 2, 3, 4, 5, 6)
    assert (state_of(image).replicas, state_of(image).isr) == ((3, 4, 5, 6), (3, 4, 5, 6))


def test_a_reassignment_without_added_replicas_ends_at_once() -> None:
    image = image_with(partition(0, (1, 2, 3), (1, 2, 3), 1), partition(1, (1, 2, 3), (1,), 1))
    after, _ = alter(image, (0, (3, 2, 1)))
    state = state_of(after)
    assert (state.replicas, state.leader, state.leader_epoch) == ((3, 2, 1), 1, 5), "preferred, not elected"
    after, _ = alter(image, (0, (3, 2)))
    state = state_of(after)
    assert (state.replicas, state.isr, state.leader, state.leader_epoch) == ((3, 2), (2, 3), 3, 6)
    after, _ = alter(image, (0, (1, 2)))
    state = state_of(after)
    assert (state.replicas, state.isr, state.leader, state.leader_epoch) == ((1, 2), (1, 2), 1, 6)
    after, _ = alter(image, (1, (2, 3)))
    state = state_of(after, 1)
    assert (state.replicas, state.removing_replicas, state.leader) == ((2, 3, 1), (1,), 1)
    assert [one.partition for one in listed(after)] == [1]


def test_more_replicas_are_added() -> None:
    image = image_with(partition(0, (1,), (1,), 1))
    image, _ = alter(image, (0, (1, 2, 3)))
    assert listed(image) == [OngoingReassignment("t", 0, (1, 2, 3), (2, 3), ())]
    image, _ = in_sync(image, 1, 2)
    assert listed(image)
    image, _ = in_sync(image, 1, 2, 3)
    state = state_of(image)
    assert (state.replicas, state.isr, state.leader, state.leader_epoch) == ((1, 2, 3), (1, 2, 3), 1, 5)
    assert not listed(image)


def test_the_number_of_replicas_stays_where_it_must() -> None:
    image = image_with(
        partition(0, (1,), (1,), 1),
        partition(1, (2, 1), (1,), 1, adding_replicas=(2,), removing_replicas=(1,)),
    )
    after, results = alter(image, (0, (1, 2)), (1, (3, 4)), (1, (3,)), allows_factor_change=False)
    assert [one.error for one in results] == [
        ErrorCode.invalid_replication_factor,
        ErrorCode.invalid_replication_factor,
        ErrorCode.none,
    ]
    assert results[0].message == "The replication factor is changed from 1 to 2"
    assert results[1].message == "The replication factor is changed from 1 to 2"
    assert state_of(after, 1).replicas == (3, 1, 2)


def test_a_move_under_way_gets_another_aim() -> None:
    image = image_with(partition(0, (1,), (1,), 1))
    image, _ = alter(image, (0, (2,)))
    image, _ = alter(image, (0, (3,)))
    state = state_of(image)
    assert (state.replicas, state.adding_replicas, state.removing_replicas) == ((3, 1, 2), (3,), (1, 2))
    image, error = in_sync(image, 1, 3)
    assert error is ErrorCode.new_leader_elected
    assert state_of(image).replicas == (3,)


def test_a_new_reassignment_replaces_one_that_is_under_way() -> None:
    image = image_with(partition(0, (1, 2), (1, 2), 1))
    image, _ = alter(image, (0, (1, 3)))
    assert listed(image) == [OngoingReassignment("t", 0, (1, 3, 2), (3,), (2,))]
    more, _ = alter(image, (0, (1, 2, 3)))
    assert listed(more) == [OngoingReassignment("t", 0, (1, 2, 3), (3,), ())], "2 is wanted again"
    more, _ = in_sync(more, 1, 2, 3)
    assert state_of(more).replicas == (1, 2, 3)
    back, _ = alter(image, (0, (2, 1)))
    assert not listed(back), "3 is not wanted any more"
    assert (state_of(back).replicas, state_of(back).isr) == ((2, 1), (1, 2))
    both, _ = alter(image, (0, (3, 4)))
    assert listed(both) == [OngoingReassignment("t", 0, (3, 4, 1, 2), (4,), (1, 2))]


def test_a_partition_that_is_named_twice_is_changed_twice() -> None:
    image = image_with(partition(0, (1, 2, 3), (1, 2, 3), 1))
    after, results = alter(image, (0, (2,)), (0, (4,)))
    assert [one.error for one in results] == [ErrorCode.none] * 2
    state = state_of(after)
    assert (state.replicas, state.adding_replicas, state.removing_replicas) == ((4, 2), (4,), (2,))
    assert (state.isr, state.leader) == ((2,), 2)


def test_a_move_is_called_off() -> None:
    image = image_with(partition(0, (1, 2), (1, 2), 1))
    moving, _ = alter(image, (0, (3, 4)))
    moving, _ = in_sync(moving, 1, 2, 3)
    after, (result,) = alter(moving, (0, None))
    assert result.error is ErrorCode.none
    state = state_of(after)
    assert (state.replicas, state.isr, state.leader) == ((1, 2), (1, 2), 1)
    assert (state.adding_replicas, state.removing_replicas) == ((), ())
    assert state.directories == (directory(1), directory(2))
    assert state.leader_epoch == state_of(moving).leader_epoch + 1, "replicas leave for good"
    _, (result,) = alter(after, (0, None))
    assert result == ReassignResult("t", 0, ErrorCode.no_reassignment_in_progress)


def test_cancelling_needs_unclean_elections_if_records_would_be_lost() -> None:
    image = image_with(partition(0, (3, 4, 1), (3,), 3, adding_replicas=(3, 4), removing_replicas=(1,)))
    after, (result,) = alter(image, (0, None))
    assert result == ReassignResult(
        "t",
        0,
        ErrorCode.invalid_replica_assignment,
        "Unable to revert partition assignment for t:0 because it would require an unclean leader election.",
    )
    assert after.offset == image.offset
    change = AlterConfig("unclean.leader.election.enable", 0, "true")
    changes = incremental_alter_configs(image, [AlterResource(2, "t", (change,))], AnyConfig())
    image, _ = applied(image, changes)
    after, (result,) = alter(image, (0, None))
    assert result.error is ErrorCode.none
    state = state_of(after)
    assert (state.replicas, state.isr, state.leader, state.leader_epoch) == ((1,), (1,), 1, 6)


@pytest.mark.parametrize("allows_unclean", [False, True])
@pytest.mark.parametrize(("eligible", "known"), [((3,), ()), ((3,), (3,)), ((), (3,)), ((2, 3), (3,))])
def test_cancelling_elects_a_returning_eligible_replica(
    eligible: tuple[int, ...], known: tuple[int, ...], *, allows_unclean: bool
) -> None:
    moving = partition(
        0,
        (4, 1, 2, 3),
        (),
        NO_LEADER,
        adding_replicas=(4,),
        eligible_leader_replicas=eligible,
        last_known_elr=known,
    )
    fenced = (broker(2, fenced=True), broker(3, fenced=True))
    image = image_of(broker(1), *fenced, broker(4), moving)
    if allows_unclean:
        change = AlterConfig("unclean.leader.election.enable", 0, "true")
        resource = AlterResource(2, "t", (change,))
        image, _ = applied(image, incremental_alter_configs(image, [resource], AnyConfig()))
    settings = SETTINGS._replace(is_awaited=lambda one: one == 3)
    request = ReassignPartition("t", 0, None)
    after, (result,) = applied(image, alter_reassignments(image, [request], settings))
    assert result.error is ErrorCode.none
    state = state_of(after)
    assert (state.replicas, state.adding_replicas) == ((1, 2, 3), ())
    assert (state.isr, state.leader) == ((), NO_LEADER), "broker 1 may lack records"
    assert (state.eligible_leader_replicas, state.last_known_elr) == (eligible, known)
    after, _ = applied(after, unfence_broker(after, 3, 30, settings=settings))
    assert (state_of(after).isr, state_of(after).leader) == ((3,), 3)


def test_cancelling_is_refused_if_only_an_added_replica_is_eligible() -> None:
    moving = partition(
        0,
        (4, 1),
        (),
        NO_LEADER,
        adding_replicas=(4,),
        removing_replicas=(1,),
        eligible_leader_replicas=(4,),
        last_known_elr=(1,),
    )
    _, (result,) = alter(image_of(broker(1), broker(4, fenced=True), moving), (0, None))
    assert result.error is ErrorCode.invalid_replica_assignment


@pytest.mark.parametrize(("alive", "leader"), [((1, 2, 4, 5), 1), ((2, 4), 2), ((4, 5), 4)])
def test_an_unclean_leader_is_none_that_is_copied_to_where_another_lives(
    alive: tuple[int, ...], leader: int
) -> None:
    """Broker 3 is lost while the partition moves to brokers that may have nothing of it yet."""
    moving = partition(0, (4, 5, 1, 2, 3), (3,), 3, adding_replicas=(4, 5), removing_replicas=(1, 2, 3))
    brokers = [broker(one, fenced=one not in (*alive, 3)) for one in range(1, 6)]
    image = image_of(*brokers, moving)
    change = AlterConfig("unclean.leader.election.enable", 0, "true")
    changes = incremental_alter_configs(image, [AlterResource(2, "t", (change,))], AnyConfig())
    image, _ = applied(image, changes)
    after, _ = applied(image, fence_broker(image, 3, 30, settings=SETTINGS))
    assert state_of(after).leader == leader


@pytest.mark.parametrize(
    ("asked", "error", "message"),
    [
        (
            ReassignPartition("u", 0, (1,)),
            ErrorCode.unknown_topic_or_partition,
            "Unable to find a topic named u.",
        ),
        (
            ReassignPartition("u", 0, None),
            ErrorCode.unknown_topic_or_partition,
            "Unable to find a topic named u.",
        ),
        (
            ReassignPartition("t", 7, (1,)),
            ErrorCode.unknown_topic_or_partition,
            "Unable to find partition t:7.",
        ),
        (
            ReassignPartition("t", -1, (1,)),
            ErrorCode.unknown_topic_or_partition,
            "Unable to find partition t:-1.",
        ),
        (
            ReassignPartition("t", 0, ()),
            ErrorCode.invalid_replica_assignment,
            "The manual partition assignment includes an empty replica list.",
        ),
        (
            ReassignPartition("t", 0, (1, 9)),
            ErrorCode.invalid_replica_assignment,
            "The manual partition assignment includes broker 9, but no such broker is registered.",
        ),
        (
            ReassignPartition("t", 0, (2, 2)),
            ErrorCode.invalid_replica_assignment,
            "The manual partition assignment includes the broker 2 more than once.",
        ),
        (ReassignPartition("t", 0, tuple(range(100_000))), ErrorCode.invalid_replica_assignment, None),
        (ReassignPartition("t", 0, None), ErrorCode.no_reassignment_in_progress, None),
    ],
)
def test_impossible_reassignments_are_refused(
    asked: ReassignPartition, error: ErrorCode, message: str | None
) -> None:
    image = image_with(partition(0, (1,), (1,), 1))
    decision = at_once(alter_reassignments(image, [asked], SETTINGS))
    assert not decision.frames
    (result,) = decision.response
    assert result.error is error
    assert message is None or result.message == message


def test_a_fenced_broker_may_be_moved_to() -> None:
    """It joins the ISR when it is back; nothing can end the move before."""
    image = image_of(broker(1), broker(2, fenced=True), partition(0, (1,), (1,), 1))
    image, (result,) = alter(image, (0, (2,)))
    assert result.error is ErrorCode.none
    _, error = in_sync(image, 1, 2)
    assert error is ErrorCode.ineligible_replica


def test_a_refused_reassignment_does_not_block_others() -> None:
    image = image_with(partition(0, (1,), (1,), 1), partition(1, (1,), (1,), 1))
    after, results = alter(image, (0, (9,)), (1, (2,)), (0, None))
    assert [one.error for one in results] == [
        ErrorCode.invalid_replica_assignment,
        ErrorCode.none,
        ErrorCode.no_reassignment_in_progress,
    ]
    assert [one.partition for one in listed(after)] == [1]


def test_listing_reassignments_returns_the_requested_partitions() -> None:
    image = image_with(partition(0, (1,), (1,), 1), partition(1, (1,), (1,), 1), partition(2, (1,), (1,), 1))
    image, _ = alter(image, (0, (2,)), (2, (1, 3)))
    first = OngoingReassignment("t", 0, (2, 1), (2,), (1,))
    last = OngoingReassignment("t", 2, (1, 3), (3,), ())
    assert at_once(list_reassignments(image, None)) == [first, last]
    asked = [("u", (0,)), ("t", (2, 1, 0, 9, -1)), ("t", ())]
    assert at_once(list_reassignments(image, asked)) == [last, first]
    assert at_once(list_reassignments(image, [])) == []


def test_more_than_a_batch_holds_is_refused_from_there_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.metadata.controller.reassignment_control.MAX_RECORDS_PER_OPERATION", 2)
    image = image_with(*(partition(one, (1,), (1,), 1) for one in range(4)))
    after, results = alter(image, *((one, (2,)) for one in range(4)))
    assert [one.error for one in results] == [ErrorCode.none] * 2 + [ErrorCode.policy_violation] * 2
    assert [one.partition for one in listed(after)] == [0, 1]


@pytest.mark.parametrize("seed", range(60))
def test_any_course_of_moves_keeps_partitions_sound(seed: int) -> None:
    """Asked for, called off, caught up with, fenced: replicas, ISR, ELR and leader always fit each other, and
    what nobody calls off ends with the replicas that were asked for last."""
    print(f"seed {seed}")
    chance = random.Random(seed)
    image = image_with(partition(0, (1, 2), (1, 2), 1), elr=bool(seed % 2))
    settings = ElectionSettings(checks_directories=True, min_isr=chance.choice((1, 2)))
    for _ in range(40):
        before = state_of(image)
        aim = tuple(chance.sample(range(1, 7), chance.randrange(1, 5)))
        match chance.randrange(4):
            case 0:
                asked = [ReassignPartition("t", 0, aim)]
                image, _ = applied(image, alter_reassignments(image, asked, settings))
            case 1:
                asked = [ReassignPartition("t", 0, None)]
                image, (result,) = applied(image, alter_reassignments(image, asked, settings))
                state = state_of(image)
                if result.error is ErrorCode.none:
                    assert set(state.replicas) == set(before.replicas) - set(before.adding_replicas)
            case 2 if before.leader != NO_LEADER:
                others = [one for one in before.replicas if one != before.leader]
                isr = (before.leader, *chance.sample(others, chance.randrange(len(others) + 1)))
                image, _ = in_sync(image, *isr)
            case 3 if chance.random() < 0.2 and before.leader != NO_LEADER:
                epoch = image.brokers[before.leader].epoch
                image, _ = applied(image, fence_broker(image, before.leader, epoch, settings=settings))
        check(image)
    state = state_of(image)
    if state.leader == NO_LEADER:
        return
    aim = tuple(chance.sample(sorted(one.id for one in image.brokers.values() if not one.fenced), 2))
    asked = [ReassignPartition("t", 0, aim)]
    image, _ = applied(image, alter_reassignments(image, asked, settings))
    state = state_of(image)
    if set(state.adding_replicas) - set(aim) or set(state.removing_replicas) & set(aim):
        return  # of the one before something stands in the way, as in Kafka
    able = [one for one in state.replicas if image.brokers[one].is_active]
    if state.is_moving:
        image, _ = in_sync(image, *able)
    assert set(state_of(image).replicas) == set(aim)
    check(image)


def check(image: MetadataImage) -> None:
    state = state_of(image)
    assert set(state.isr) | set(state.eligible_leader_replicas) <= set(state.replicas)
    assert len(set(state.replicas)) == len(state.replicas)
    assert set(state.adding_replicas) <= set(state.replicas)
    assert len(state.directories) == len(state.replicas)
    if state.leader != NO_LEADER:
        assert state.leader in state.isr
    listed(image)
