"""The keeper of a shared prefix, by the image: `ClusterPrefixOwner`."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from service.base.errors import StorageError
from service.controller_client import keeper_candidate
from service.controller_client.keeper_candidate import ClusterPrefixOwner
from service.metadata.image import MetadataImage
from tests.unit.tiering.clusters import NOBODY, Quorum

TOPIC = UUID(int=7)


class Node:
    """A house that reads the whole metadata log."""

    def __init__(self, quorum: Quorum, number: int) -> None:
        self.quorum, self.number, self.read = quorum, number, len(quorum.log)
        self.changes = 0
        self.moved: list[tuple[UUID, int]] = []
        self.image: MetadataImage = quorum.image
        self.house = ClusterPrefixOwner(number, UUID(int=number), lambda: self.image, self._barrier)
        self.house.watch(self._changed)

    async def _barrier(self) -> int:
        if self.number == 3:
            raise StorageError("no way")
        return self.quorum.image.offset

    def _changed(self) -> None:
        self.changes += 1

    def go_on(self) -> ClusterPrefixOwner:
        for before, image, delta in self.quorum.log[self.read :]:
            self.image = image
            self.house.published(before, image, delta)
            self.moved += self.house.moved(before, image, delta)
        self.read = len(self.quorum.log)
        return self.house


@pytest.fixture
def quorum() -> Quorum:
    quorum = Quorum({"events": TOPIC}, 2)
    for number in (1, 2, 3):
        quorum.register(number, UUID(int=number))
    return quorum


def test_the_unfenced_process_of_lowest_id_keeps_the_prefix(quorum: Quorum) -> None:
    nodes = {number: Node(quorum, number) for number in (1, 2, 3)}

    def keepers() -> list[int]:
        return [number for number, node in nodes.items() if node.go_on().is_keeper()]

    assert keepers() == []
    quorum.unfence(2)
    quorum.unfence(3)
    assert keepers() == [2]
    quorum.unfence(1)
    assert keepers() == [1]
    quorum.fence(1)
    assert keepers() == [2]
    assert not nodes[1].house.is_unfenced()
    quorum.unfence(1)
    quorum.register(1, UUID(int=11))  # another process of that broker: not this one
    quorum.unfence(1)
    assert keepers() == []
    assert not nodes[1].house.is_unfenced()


def test_processes_are_known_also_after_they_went(quorum: Quorum, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper_candidate, "MAX_REMEMBERED", 4)
    node = Node(quorum, 2)
    assert node.house.members() == (UUID(int=1), UUID(int=2), UUID(int=3))
    for incarnation in (11, 12):
        quorum.register(1, UUID(int=incarnation))
    house = node.go_on()
    assert node.changes == 2
    assert house.members() == (UUID(int=2), UUID(int=3), UUID(int=12))
    assert house.knows(UUID(int=11))
    assert not house.knows(UUID(int=1))  # long ago
    assert all(map(house.knows, house.members()))
    assert not house.knows(UUID(int=99))


def test_a_prefix_owner_knows_led_and_moved_partitions(quorum: Quorum) -> None:
    node = Node(quorum, 2)
    quorum.unfence(1)
    quorum.unfence(2)
    assert not node.go_on().leads(TOPIC, 0)
    assert node.moved == []
    quorum.elect(TOPIC, 0, 2)
    assert node.go_on().leads(TOPIC, 0)
    assert [(one.topic, one.partition) for one in node.house.others()] == [("events", 1)]
    epoch = quorum.leader_epochs[TOPIC, 0]
    quorum.elect(TOPIC, 0, NOBODY)
    assert node.go_on().leader_epoch(TOPIC, 0) == epoch + 1
    quorum.elect(TOPIC, 0, 2)
    quorum.elect(TOPIC, 1, 3)
    node.go_on()
    assert node.moved == [(TOPIC, 0)] * 3
    assert node.house.leader_epoch(UUID(int=8), 0) is None
    assert asyncio.run(node.house.barrier()) == quorum.image.offset
