"""A leader that is killed while it loads the tail of a restored partition, at each step, and starts again:
the partition is what it would have been without."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Collection
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from service.metadata.image import RestoredTail
from service.remote.catalog import LoadedTail
from tests.support.hand_made_cuts import batch
from tests.support.one_of_three import ME, TOPIC, topic
from tests.support.one_of_three import partition as partition_record
from tests.support.processes import copy_as_crashed
from tests.unit.replicas.test_tail_loading import EPOCH, Restored, play, tail

NONE = ErrorCode.none
FIRST = batch(0, [b"a", b"b"], 3)
REST = batch(2, [b"c", b"d", b"e"], 4) + batch(5, [b"f"], 4)


class Moment(Enum):
    """Step at which the process is killed."""

    BEGUN = "the log has begun where the chain ends"
    APPENDED = "some batches are in the log"
    LOADED = "all batches are"
    FILLED = "so are the offsets that may have been given out"
    SYNCED = "all of it is synced"
    TOLD = "the controller was told"
    ANSWERED = "the metadata says that it is loaded"


class Killing:
    """Copy of a node's directory at one moment."""

    def __init__(self, node: Restored, folder: Path, target: Path, moment: Moment) -> None:
        self._node = node
        self._folder, self._target = folder, target
        self._moment = moment
        self.is_done = asyncio.Event()
        self._appends = 0
        node.loader._tell = self._tell
        self._append, self._flush = node.node.logs.append_on_thread, node.node.logs.flush
        node.loader._logs = self  # type: ignore[assignment]

    def now(self, moment: Moment) -> None:
        """Copy, if this is the moment."""
        if moment is self._moment and not self.is_done.is_set():
            copy_as_crashed(self._folder / "logs", self._target / "logs")
            self.is_done.set()

    async def append_on_thread(self, *what: Any) -> bool:
        done = await self._append(*what)
        self._appends += 1
        self.now((Moment.APPENDED, Moment.LOADED)[self._appends - 1])
        return done

    async def flush(self, log: Any) -> None:
        self.now(Moment.FILLED)
        await self._flush(log)
        self.now(Moment.SYNCED)

    async def _tell(self, loaded: Collection[LoadedTail]) -> None:
        self.now(Moment.TOLD)
        self._node.told += loaded


def killed(folder: Path, moment: Moment) -> tuple[Path, RestoredTail]:
    """Return a folder as the node leaves it that is killed at this moment, and the tail that it loads."""
    first, then = folder / "first", folder / "then"
    first.mkdir()
    then.mkdir()
    found: list[RestoredTail] = []

    async def scenario(node: Restored) -> None:
        node.cut.tail({(TOPIC, 0): FIRST})
        node.cut.tail({(TOPIC, 0): REST})
        found.append(tail(node.cut.write()))
        killing = Killing(node, first, then, moment)
        await node.restore(found[0])
        killing.now(Moment.BEGUN)
        running = asyncio.create_task(node.loader.run())
        if moment is Moment.ANSWERED:
            await node.loaded()
            killing.now(moment)
        await killing.is_done.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    play(first, scenario, runs=False)
    shutil.copytree(first / "bucket", then / "bucket")
    return then, found[0]


@pytest.mark.parametrize("moment", list(Moment))
def test_a_leader_that_is_killed_while_it_loads_loads_the_same(tmp_path: Path, moment: Moment) -> None:
    then, wanted = killed(tmp_path, moment)

    async def scenario(node: Restored) -> None:
        if moment is Moment.ANSWERED:
            await node.node.tell(topic(), partition_record(0, ME, leader_epoch=EPOCH))
        else:
            await node.restore(wanted)
            assert (await node.produced())[0] is not NONE
            await node.loaded()
        log = node.partition().log
        assert await node.fetched(0) == (NONE, 1006, [(0, 1), (2, 4), (5, 5), (6, 1005)])
        assert log.epochs.entries == ((3, 0), (4, 2), (EPOCH, 1006))
        assert await node.produced() == (NONE, 1006)

    play(then, scenario)
