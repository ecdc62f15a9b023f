"""Partitions that are assigned to this broker, reassigned away or deleted, and their files."""

from __future__ import annotations

import asyncio
import re
from errno import EIO
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pytest

from service.base.disk import DiskError
from service.metadata.controller.partition_change import UNASSIGNED
from service.metadata.records import RemoveTopicRecord
from tests.support.one_of_three import (
    HIDDEN,
    ME,
    OTHER,
    TOPIC,
    OneOfThree,
    changed,
    directory,
    moved,
    one_of_three,
    partition,
    topic,
)
from tests.unit.serving.leadership import NONE, NOT_LEADER, OFFLINE, STORAGE, fetched, produced, run


class Files(NamedTuple):
    """Folders of the topic's partitions, by what they are called."""

    here: list[str]
    going: list[str]
    stray: list[str]


def files(node: OneOfThree) -> Files:
    names = sorted(one.name for path in node.logs.directories for one in path.iterdir() if one.is_dir())
    return Files(
        [one for one in names if re.fullmatch(r"t-\d+", one)],
        [one for one in names if one.endswith("-delete")],
        [one for one in names if one.endswith("-stray")],
    )


def going_of(node: OneOfThree) -> list[str]:
    return [one.partition(".")[0] for one in files(node).going]


def test_a_partition_that_is_given_to_this_node_comes(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        assert files(node).here == ["t-0"]
        await node.tell(
            changed(1, replicas=(ME,), isr=(ME,), leader=ME, directories=(directory(ME),)),
        )
        assert files(node).here == ["t-0", "t-1"]
        assert await produced(node, 1) == NONE
        replica = node.broker.replicas.get(TOPIC, 1)
        assert replica is not None
        assert replica.leader_epoch == 1

    run(tmp_path, scenario, topic(), partition(0, ME), partition(1, OTHER))


def test_a_new_partition_is_created_though_a_directory_is_offline(
    tmp_path: Path,
) -> None:
    """Only what was this node's before may lie in the one that cannot be used (Kafka
    `Partition.createLogInAssignedDirectoryId`)."""
    lost = tmp_path / "lost"
    lost.write_text("not a directory")
    known = (topic(), partition(0, ME), partition(1, OTHER))

    async def scenario() -> None:
        async with (
            asyncio.timeout(30),
            one_of_three(tmp_path / "used", known=known, more_dirs=(lost,)) as node,
        ):
            both: dict[str, Any] = {"replicas": (OTHER, ME), "directories": (directory(OTHER), UNASSIGNED)}
            await node.tell(changed(1, adding_replicas=(ME,), **both))
            assert [await fetched(node, one) for one in (0, 1)] == [STORAGE, NONE]
            assert files(node).here == ["t-1"]

    asyncio.run(scenario())


def test_a_partition_that_comes_before_its_leadership_takes_nothing(tmp_path: Path) -> None:
    """The middle of a reassignment: it is a replica here, and led elsewhere."""

    async def scenario(node: OneOfThree) -> None:
        both: dict[str, Any] = {"replicas": (OTHER, ME), "directories": (directory(OTHER), directory(ME))}
        await node.tell(changed(0, adding_replicas=(ME,), **both))
        assert await produced(node, 0) == NOT_LEADER
        assert await fetched(node, 0) == NONE, "consumers read from any replica"
        await node.tell(changed(0, isr=(OTHER, ME), leader=ME))
        assert await produced(node, 0) == NONE

    run(tmp_path, scenario, topic(), partition(0, OTHER))


def test_a_partition_that_is_reassigned_away_goes_with_its_files(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        await node.produce(0)
        gone = node.broker.replicas.get(TOPIC, 0)
        assert gone is not None
        await node.tell(moved(0, OTHER))
        assert node.broker.replicas.get(TOPIC, 0) is None
        assert node.logs.get(TOPIC, 0) is None
        assert files(node).here == ["t-1"]
        assert going_of(node) == ["t-0"]
        assert files(node).stray == []
        assert await produced(node, 0) == NOT_LEADER
        assert await fetched(node, 1) == NONE
        # Given back, it begins anew.
        await node.tell(moved(0, ME))
        assert await produced(node, 0) == NONE
        again = node.broker.replicas.get(TOPIC, 0)
        assert again is not None
        assert again is not gone
        assert again.high_watermark == 1

    run(tmp_path, scenario, topic(), partition(0, ME), partition(1, ME))


def test_an_offline_partition_that_is_reassigned_away_is_forgotten(tmp_path: Path) -> None:
    async def scenario(node: OneOfThree) -> None:
        assert await fetched(node, OFFLINE) == STORAGE
        await node.tell(moved(OFFLINE, OTHER))
        assert await fetched(node, OFFLINE) == NOT_LEADER
        assert node.broker.replicas.closed_count == 0
        assert going_of(node) == [f"t-{OFFLINE}"]

    run(tmp_path, scenario)


def test_a_partition_that_waits_for_its_disk_does_not_come_when_it_is_reassigned_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(node: OneOfThree) -> None:
        create = node.logs.create

        async def refused(wanted: Any, *_: Any) -> list[Any]:
            return [DiskError("open", "t-1", EIO) for _ in wanted]

        monkeypatch.setattr(node.logs, "create", refused)
        mine = moved(1, ME)
        await node.tell(mine)
        assert await fetched(node, 1) == STORAGE
        monkeypatch.setattr(node.logs, "create", create)
        await node.tell(moved(1, OTHER))
        retry = asyncio.create_task(node.applier.opener.run())
        for _ in range(50):
            await asyncio.sleep(0.001)
        retry.cancel()
        assert await fetched(node, 1) == NOT_LEADER
        assert files(node).here == ["t-0"]

    run(tmp_path, scenario, topic(), partition(0, ME), partition(1, OTHER))


def test_an_unexplained_local_partition_is_renamed_and_kept(tmp_path: Path) -> None:
    """The image at a start does not give it to us, and nobody saw why."""

    async def before(node: OneOfThree) -> None:
        await node.produce(0)

    run(tmp_path, before, topic(), partition(0, ME))

    async def again() -> None:
        async with asyncio.timeout(30), one_of_three(tmp_path) as node:
            before = node.image
            applied = node.publish(topic(), partition(0, OTHER))
            assert applied is None or await applied is None
            assert before.offset < node.image.offset
            assert files(node).here == ["t-0"]
            await node.logs.set_aside_unknown(node.applier.holds)
            assert files(node).here == []
            assert files(node).going == []
            (stray,) = files(node).stray
            (kept,) = [path / stray for path in node.logs.directories]
            assert (kept / "00000000000000000000.log").stat().st_size > 0

    asyncio.run(again())


def test_a_topic_that_is_deleted_and_one_that_moves_go_in_one_change(tmp_path: Path) -> None:
    other = UUID(int=101)

    async def scenario(node: OneOfThree) -> None:
        await node.tell(RemoveTopicRecord(topic_id=other), moved(0, OTHER), moved(1, ME))
        assert going_of(node) == ["t-0", "u-0"]
        assert files(node).here == ["t-1"]
        assert await produced(node, 1) == NONE

    records = (topic(), partition(0, ME), partition(1, OTHER))
    run(tmp_path, scenario, *records, topic("u", other), partition(0, ME, topic_id=other))


def test_changes_of_others_partitions_are_made_at_once(tmp_path: Path) -> None:
    """They take no files here; what takes them is a task."""

    async def scenario(node: OneOfThree) -> None:
        assert node.publish(moved(1, HIDDEN), changed(0, leader_recovery_state=1)) is None
        taken = node.publish(moved(0, OTHER))
        assert taken is not None
        waits = node.publish(changed(1, leader_recovery_state=1))
        assert waits is not None
        await taken
        await waits

    run(tmp_path, scenario, topic(), partition(0, ME), partition(1, OTHER))
