"""Directories without room: a controller moves what they lead, and keeps what rests out of the ISR."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.metadata.controller.directories_control import relieve_directories
from service.metadata.controller.elections_control import balance_leaders
from service.metadata.controller.full_directories import DirectoriesWithoutRoom
from service.metadata.controller.heartbeat_control import fence_broker
from service.metadata.controller.isr_control import alter_partitions
from service.metadata.controller.requests import (
    AlterPartition,
    BrokerHeartbeat,
    BrokerState,
    CreateTopic,
    ElectionType,
    ElectLeaders,
)
from service.metadata.image import MetadataImage, PartitionImage
from tests.unit.metadata.controllers import LOG_DIR, join, running
from tests.unit.metadata.test_partitions import (
    SETTINGS,
    THREE,
    TOPIC_ID,
    applied,
    directory,
    image_of,
    partition,
    state_of,
)

ALL = (1, 2, 3)
OTHER = {"directories": (directory(1, 1), directory(2), directory(3))}
"""broker 1's replica lies in its second directory"""


class World:
    """An image, and what brokers have said of their directories."""

    def __init__(self, image: MetadataImage) -> None:
        self.image = image
        self.full = DirectoriesWithoutRoom()
        self.settings = SETTINGS._replace(full=self.full)

    def says(self, broker: int, full: tuple[UUID, ...] = (), resting: tuple[UUID, ...] = ()) -> None:
        """A heartbeat."""
        self.full.heard(broker, full, resting)
        decided = relieve_directories(self.image, broker, full, resting, settings=self.settings)
        self.image, _ = applied(self.image, decided)

    def has(self, number: int = 0) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
        state = state_of(self.image, number)
        return state.leader, state.isr, state.eligible_leader_replicas

    def balance(self) -> None:
        self.image, _ = applied(self.image, balance_leaders(self.image, self.settings))

    def proposes(self, *isr: int) -> ErrorCode:
        state = state_of(self.image)
        members = tuple(map(BrokerState, isr))
        asked = AlterPartition(TOPIC_ID, 0, state.leader_epoch, state.partition_epoch, members)
        decided = alter_partitions(self.image, state.leader, 10 * state.leader, [asked], self.settings)
        self.image, (result,) = applied(self.image, decided)
        error: ErrorCode = result.error
        return error


def test_a_full_directory_hands_over_what_it_leads_and_stays_in_sync() -> None:
    world = World(image_of(*THREE, partition(0, ALL, ALL, 1), partition(1, ALL, ALL, 1, **OTHER)))
    world.says(1, full=(directory(1),))
    assert world.has(0) == (2, ALL, ())
    assert world.has(1) == (1, ALL, ()), "the other directory has room"
    before = world.image
    world.says(1, full=(directory(1),))
    assert world.image.offset == before.offset, "nothing is left to be done"
    world.balance()
    assert world.has(0) == (2, ALL, ()), "it takes none back"
    world.says(1)
    world.balance()
    assert world.has(0) == (1, ALL, ())


def test_a_replica_without_disk_space_leaves_the_isr_until_there_is_space() -> None:
    world = World(image_of(*THREE, partition(0, ALL, ALL, 1), partition(1, ALL, ALL, 3)))
    world.says(1, resting=(directory(1),))
    assert world.has(0) == (2, (2, 3), ())
    assert world.has(1) == (3, (2, 3), ())
    assert world.proposes(2, 3, 1) is ErrorCode.ineligible_replica
    world.says(1)
    assert world.proposes(2, 3, 1) is ErrorCode.none
    assert world.has(0) == (2, (2, 3, 1), ())


def test_the_leader_stays_if_no_replica_has_disk_space() -> None:
    world = World(image_of(*THREE, partition(0, ALL, ALL, 1)))
    world.says(1, resting=(directory(1),))
    world.says(3, full=(directory(3),))
    world.says(2, resting=(directory(2),))
    assert world.has() == (2, (2, 3), ()), "the one that is left has none either"
    world.says(3, resting=(directory(3),))
    assert world.has() == (2, (2,), ())
    assert world.proposes(2) is ErrorCode.none
    world.says(1)
    assert world.proposes(2, 1) is ErrorCode.new_leader_elected, "the first one with room leads at once"
    assert world.has() == (1, (2, 1), ())
    world.says(2, resting=(directory(2),))
    assert world.has() == (1, (1,), ())


def test_a_replica_that_leaves_an_isr_below_min_isr_stays_eligible() -> None:
    world = World(image_of(*THREE, partition(0, (1, 2), (1, 2), 1)))
    world.settings = world.settings._replace(min_isr=2)
    world.says(1, resting=(directory(1),))
    assert world.has() == (2, (2,), (1,))


def test_a_broker_that_goes_is_followed_by_one_with_room() -> None:
    world = World(image_of(*THREE, partition(0, ALL, ALL, 1)))
    world.full.heard(2, (directory(2),), ())
    world.image, _ = applied(world.image, fence_broker(world.image, 1, 10, settings=world.settings))
    assert world.has() == (3, (2, 3), ())
    world.image, _ = applied(world.image, fence_broker(world.image, 3, 30, settings=world.settings))
    assert world.has() == (2, (2,), ()), "room is no condition"
    world.full.clear()
    assert not world.full.is_full(2, directory(2))


def test_a_controller_considers_disk_space_reported_by_heartbeats(tmp_path: Path) -> None:
    """The elections and the ISRs of a running controller, which hears of directories by heartbeats alone."""

    async def act() -> None:
        async with running(tmp_path) as controller:
            epochs = {one: await join(controller, one) for one in ALL}
            (made,) = await controller.create_topics([CreateTopic("events", assignments=((0, ALL),))])

            def state() -> PartitionImage:
                return controller.publisher.image.topics_by_id[made.topic_id].partitions[0]

            async def says(full: tuple[UUID, ...] = (), resting: tuple[UUID, ...] = ()) -> None:
                offset = controller.publisher.image.offset
                said = BrokerHeartbeat(1, epochs[1], offset, full_log_dirs=full, resting_log_dirs=resting)
                await controller.brokers.heartbeat(said)

            async def proposes_all() -> ErrorCode:
                now = state()
                members = tuple(BrokerState(one, epochs[one]) for one in ALL)
                asked = AlterPartition(made.topic_id, 0, now.leader_epoch, now.partition_epoch, members)
                (result,) = await controller.alter_partitions(now.leader, epochs[now.leader], [asked])
                error: ErrorCode = result.error
                return error

            await says(resting=(LOG_DIR,))
            assert (state().leader, state().isr) == (2, (2, 3))
            assert await proposes_all() is ErrorCode.ineligible_replica
            await says(full=(LOG_DIR,))
            assert await proposes_all() is ErrorCode.none
            (result,) = await controller.elect_leaders(ElectLeaders(ElectionType.PREFERRED, (("events", 0),)))
            assert result.error is ErrorCode.preferred_leader_not_available
            await says()
            (result,) = await controller.elect_leaders(ElectLeaders(ElectionType.PREFERRED, (("events", 0),)))
            assert result.error is ErrorCode.none
            assert state().leader == 1

    asyncio.run(act())
