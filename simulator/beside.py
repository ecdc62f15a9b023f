"""Check that partitions without a fault are copied, read, expired and swept while others have a fault.

`Beside` checks partitions that a fault does not cover, in the world of one node and in a cluster. Each step
has a deadline in virtual time, many times what it takes without a fault.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.partition.partition import Partition
from service.remote.format.keys import SegmentKey, parse_key, partition_prefix, segment_key
from simulator.archive import Archive
from simulator.client import EARLIEST, Client, NoAnswer
from simulator.faults import DELETES, READS, WRITES
from simulator.loop import Loop
from simulator.model import PartitionModel, TopicModel, Violation
from simulator.store import Bucket, Verdict
from simulator.topics import delete_up_to

COPIED_S: Final = 10.0
READ_S: Final = 0.5
"""between two answers that bring something"""
EXPIRED_S: Final = 10.0
SWEPT_S: Final = 60.0
"""Orphans go some sweeps, 10 s each, and a grace of 5 s after they came."""
_LOOK_S: Final = 0.5
_PAUSE_S: Final = 0.1


class Spared(NamedTuple):
    """A partition that the fault does not cover, at the node that leads it."""

    topic: TopicModel
    partition: PartitionModel
    address: tuple[str, int]
    leading: Callable[[], Partition | None]

    @property
    def key(self) -> tuple[UUID, int]:
        return self.topic.topic_id, self.partition.index


class Beside:
    """Judges whether `spared` partitions go on. Raises `Violation` where one does not."""

    def __init__(
        self,
        loop: Loop,
        bucket: Bucket,
        archive: Archive,
        tell: Callable[[str], None],
        spared: Sequence[Spared],
        what: str,
    ) -> None:
        """`what` is the fault, in words."""
        self._loop = loop
        self._bucket = bucket
        self._archive = archive
        self._tell = tell
        self._spared = spared
        self._what = what

    async def are_copied(self, seconds: float = COPIED_S) -> None:
        """Check that the sealed segments of the spared partitions are in the bucket within `seconds`."""
        for one in self._spared:
            await self._until(partial(self._not_copied, one), seconds)

    async def are_read(self) -> None:
        """Read the archived records of the spared partitions from start to end. Raises `Violation`."""
        for one in self._spared:
            client = Client(one.address)
            try:
                await self._read(one, client)
            except NoAnswer as e:
                raise Violation(f"{one.partition} is not read while {self._what}: {e}") from e
            finally:
                client.close()

    async def expire_and_are_swept(self, new_uuid: Callable[[], UUID], now_ms: int) -> None:
        """Check that deleted records leave the archive, and that their objects and orphans are swept."""
        for one in self._spared:
            if self._end(one):  # else the leader may still commit a segment that begins at 0
                orphan = segment_key(SegmentKey(*one.key, 0, 0, 0, new_uuid()))
                self._bucket.write(orphan, b"of an upload that was given up", now_ms)
            client = Client(one.address)
            await delete_up_to(client, self._tell, one.topic, one.partition, self._end(one) // 2)
            client.close()
        for one in self._spared:
            await self._until(partial(self._not_expired, one), EXPIRED_S)
        for one in self._spared:
            await self._until(partial(self._not_swept, one), SWEPT_S)

    async def _until(self, why_not: Callable[[], str], seconds: float) -> None:
        deadline = self._loop.time() + seconds
        while why := why_not():
            if self._loop.time() > deadline:
                raise Violation(f"{why} for {seconds:.0f} s while {self._what}")
            await asyncio.sleep(_LOOK_S)

    def _end(self, one: Spared) -> int:
        return self._archive.live(*one.key)[1]

    def _not_copied(self, one: Spared) -> str:
        leading = one.leading()
        if leading is None:
            return f"{one.partition} is led by nobody"
        sealed = leading.log.sealed.describe_all(max(self._end(one), leading.start_offset))
        waiting = [each for each in sealed if each.last_offset < leading.high_watermark]
        return f"{one.partition}: {waiting[0].last_offset} is not copied" if waiting else ""

    def _not_expired(self, one: Spared) -> str:
        for key in self._archive.live(*one.key)[0]:
            parsed = parse_key(key)
            if isinstance(parsed, SegmentKey) and parsed.last_offset < one.partition.deleted_below:
                return f"{one.partition}: its archive has {parsed.last_offset}, which was deleted,"
        return ""

    def _not_swept(self, one: Spared) -> str:
        live, prefix = self._archive.live(*one.key)[0], f"{partition_prefix(*one.key)}/"
        dead = [key for key in self._bucket.objects if key.startswith(prefix) and key not in live]
        return f"{min(dead)} is not deleted" if dead else ""

    async def _read(self, one: Spared, client: Client) -> None:
        end, at, deadline = self._end(one), one.partition.log_start, self._loop.time() + READ_S
        while at < end:
            found = await client.fetch(*one.key, at, max_wait_ms=500)
            came = found.next_offset if found.error is ErrorCode.none else at
            if found.error is ErrorCode.offset_out_of_range:  # the cluster's own retention may apply to it
                came = (await client.offset(one.topic.name, one.partition.index, EARLIEST))[1]
            if came > at:
                at, deadline = came, self._loop.time() + READ_S
            elif self._loop.time() > deadline:
                raise Violation(
                    f"{one.partition}: nothing comes from {at} for {READ_S} s, {found.error.name}, "
                    f"while {self._what}"
                )
            else:
                await asyncio.sleep(_PAUSE_S)


class Refusal(NamedTuple):
    """Calls on some partitions' objects that the store refuses, and the kind of refusal."""

    what: str
    verdict: Verdict
    calls: tuple[str, ...]
    suffix: str = ""


REFUSALS: Final = (
    Refusal("writes are refused", Verdict.REFUSED, WRITES),
    Refusal("objects are asleep", Verdict.ASLEEP, READS, ".seg"),
    Refusal("reads of segments are refused", Verdict.REFUSED, READS, ".seg"),
    Refusal("deletes are refused", Verdict.REFUSED, DELETES),
    Refusal("everything is refused", Verdict.REFUSED, (*READS, *WRITES, *DELETES)),
)
"""Each of the objects of a whole topic of six partitions."""
PARTITIONS: Final = 6
