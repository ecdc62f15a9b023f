"""A leader whose log ends before its archive waits for the archive's state."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from pathlib import Path
from typing import cast

from service.metadata.records import RemoteLogRecord
from service.remote.catalog import CatalogEntry
from service.remote.reading.reader import ArchiveEnd, RemoteReader
from tests.support.one_of_three import ME, OTHER, TOPIC, OneOfThree, changed, one_of_three, partition, topic

BOTH = (ME, OTHER)


class Reader:
    """Reader of archives whose calls wait until they are answered."""

    def __init__(self) -> None:
        self.asked: list[Future[ArchiveEnd]] = []

    def archive_end(self, _: object, manifest_key: str) -> Future[ArchiveEnd]:
        self.asked.append(Future())
        return self.asked[-1]


def entry(version: int, end_offset: int) -> CatalogEntry:
    return CatalogEntry(version, f"manifest-{version}", 0, 0, end_offset, 1, 100)


def committed(version: int, end_offset: int) -> RemoteLogRecord:
    return RemoteLogRecord(topic_id=TOPIC, partition_id=0, **entry(version, end_offset)._asdict())


def run(folder: Path, scenario: Callable[[OneOfThree, Reader], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with asyncio.timeout(30), one_of_three(folder) as node:
            reader = Reader()
            node.applier.opener.archives._reader = cast("RemoteReader", reader)
            await node.tell(topic(), partition(0, ME, replicas=BOTH), committed(1, 50))
            await scenario(node, reader)

    asyncio.run(whole())


def test_a_deposed_leader_stops_waiting_for_the_archive(tmp_path: Path) -> None:
    """It follows by then: what its archive says is no reason to change its log, nor to take it offline."""

    async def scenario(node: OneOfThree, reader: Reader) -> None:
        assert node.broker.replicas.get(TOPIC, 0) is None
        restoring = asyncio.create_task(node.applier.opener.archives.run_once())
        while not reader.asked:
            await asyncio.sleep(0)
        await node.tell(changed(0, leader=OTHER))
        replica = node.broker.replicas.get(TOPIC, 0)
        assert replica is not None
        reader.asked.pop().set_result(ArchiveEnd(((0, 0),), b"", entry(1, 50)))
        await restoring
        assert replica.log.log_end_offset == 0
        await node.tell(committed(2, 60))
        await node.applier.opener.archives.run_once()
        assert not reader.asked
        assert node.broker.replicas.get(TOPIC, 0) is replica

    run(tmp_path, scenario)
