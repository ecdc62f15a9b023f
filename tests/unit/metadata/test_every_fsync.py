"""A failed fsync of the metadata log is final, whichever of its files or names it was asked for.

A snapshot that could not be flushed is no part of the log: it is made anew in another file. `durable-offset`
may say less than what is so.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from kio.schema.errors import ErrorCode

from service.base.clock import ManualClock
from service.base.errors import FirnError
from service.metadata.controller.requests import CreateTopic
from tests.support.fault_disk import OneFsyncFails
from tests.support.world import make_world
from tests.unit.metadata.controllers import join, make_controller

OF_THE_LOG = (".log", ".index", ".timeindex", ".snapshot", "leader-epoch-checkpoint", "quorum-state.tmp")
MADE_ANEW = ("checkpoint.part", "durable-offset", "__cluster_metadata-0")
"""the directory: a flush of the log takes it as final, one for the name of a snapshot does not"""


def life(directory: Path, disk: OneFsyncFails) -> tuple[bool, bool]:
    """Make topics, and so snapshots. Returns whether the node was told that its metadata log is lost, or
    could not start or end in peace, and whether all topics were acknowledged.
    """
    lost: list[str] = []

    async def run() -> bool:
        controller = make_controller(
            directory,
            world=make_world(ManualClock(), disk),
            on_fatal=lambda what, _: lost.append(what),
            snapshot_max_bytes=700,
        )
        is_done = False
        try:
            await controller.start()
            await join(controller)
            for number in range(4):
                (created,) = await controller.create_topics([CreateTopic(f"t{number}", 2)])
                assert created.error is ErrorCode.none
            is_done = True
        except FirnError as e:
            lost.append(f"{e}")
        try:
            await controller.close()
        except FirnError as e:
            lost.append(f"{e}")
        return is_done

    is_done = asyncio.run(run())
    return bool(lost), is_done


def test_a_failed_fsync_stops_the_node_unless_the_file_is_recreated(tmp_path: Path) -> None:
    whole = OneFsyncFails()
    assert life(tmp_path / "whole", whole) == (False, True)
    met = set()
    for number in range(1, len(whole.asked) + 1):
        disk = OneFsyncFails(number)
        is_lost, is_done = life(tmp_path / str(number), disk)
        door = disk.asked[number - 1] if number <= len(disk.asked) else ""
        met.add(door.rpartition("/")[2].lstrip("-0123456789"))
        if is_lost:
            later = [name for name in disk.asked[number:] if name.endswith((".log", "quorum-state.tmp"))]
            assert not later, f"fsync {number} of {door}, and of {later} after it"
        else:
            assert is_done
            assert door.endswith(MADE_ANEW) or not door, f"fsync {number} of {door}"
    print(met)
    assert met >= {one.removesuffix(".part") for one in OF_THE_LOG}
