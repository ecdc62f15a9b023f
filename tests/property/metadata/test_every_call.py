"""Every call that the metadata log makes of the disk fails once, or from then on.

What was answered is there at the next start, and what was deleted stays so. What became of a refused change
is open, as its errors say.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from errno import EIO, EMFILE, ENOSPC
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from service.base.clock import ManualClock
from service.base.errors import FirnError
from service.metadata.controller.requests import CreateTopic, DeleteTopic
from tests.property.metadata.test_damage import WithoutDevice
from tests.support.fault_disk import FaultDisk
from tests.support.world import make_world
from tests.unit.metadata.controllers import LoneController, catalog_commit, join, make_controller
from tests.unit.metadata.test_recovery import image_of

SNAPSHOT_BYTES = 700


class Told:
    """What the controller has answered: topics that are there, and topics that are gone."""

    def __init__(self) -> None:
        self.there: set[str] = set()
        self.gone: set[str] = set()
        self.refused = 0


async def work(controller: LoneController, told: Told, prefix: str) -> None:
    """Topics, a deletion, a catalog entry, a snapshot or two."""
    await join(controller)
    for number in range(4):
        name = f"{prefix}{number}"
        (created,) = await controller.create_topics([CreateTopic(name, 2)])
        assert created.error is ErrorCode.none
        told.there.add(name)
        if number == 1:
            told.there.discard(f"{prefix}0")
            await controller.delete_topics([DeleteTopic(f"{prefix}0")])
            told.gone.add(f"{prefix}0")
        if number == 2:
            await controller.catalog.commit([catalog_commit(created.topic_id, 0, 1, 0)])


async def run(directory: Path, disk: FaultDisk, told: Told, prefix: str) -> bool:
    """One life of a controller; whether it ended for a failure of its log."""
    fatal: list[str] = []
    controller = make_controller(
        directory,
        world=make_world(ManualClock(), disk, seed=len(disk.log)),
        on_fatal=lambda what, error: fatal.append(what),
        snapshot_max_bytes=SNAPSHOT_BYTES,
    )
    try:
        await controller.start()
        await work(controller, told, prefix)
    except FirnError:
        told.refused += 1
    try:
        await controller.close()
    except FirnError:
        told.refused += 1
    assert "a change of the metadata" not in fatal
    return bool(fatal)


def one_fault(directory: Path, call: int, code: int, times: int | None) -> Counter[str]:
    """Two lives, a fault in the first of them or between, and a third that looks."""
    disk, told = FaultDisk(WithoutDevice()), Told()
    asyncio.run(run(directory, disk, told, "before"))
    disk.fail("*", code, after=call, times=times)
    asyncio.run(run(directory, disk, told, "during"))
    hit = disk.faults[0].hits
    disk.heal()
    image = asyncio.run(image_of(directory))
    where = f"call {call}, error {code}, {times or 'all'} times: {disk.log[-1]}"
    assert told.there <= set(image.topics_by_name), where
    assert not told.gone & set(image.topics_by_name), where
    return Counter(faults=1, hit=min(hit, 1), refused=min(told.refused, 1))


def calls_of_a_life(directory: Path) -> int:
    disk, told = FaultDisk(WithoutDevice()), Told()
    asyncio.run(run(directory, disk, told, "before"))
    before = len(disk.log)
    asyncio.run(run(directory, disk, told, "during"))
    return len(disk.log) - before


@pytest.mark.parametrize("times", [1, None])
def test_every_call_and_every_error(tmp_path: Path, times: int | None) -> None:
    count = calls_of_a_life(tmp_path / "counted")
    outcome: Counter[str] = Counter()
    errors = (EIO, ENOSPC, EMFILE)
    for call in range(count):
        outcome += one_fault(tmp_path / str(call), call, errors[call % len(errors)], times)
    print(f"{count} calls, {dict(outcome)}")
    # Flushes that come together share their calls: lives differ in how many they make.
    assert outcome["hit"] >= count * 0.8
