"""RewriteRange, an API of Firn's own: who writes a run of a chain anew asks its leader for it. [P]

Version 0, flexible, on brokers' listeners. The worker (a broker's own thread, ``firn rewrite``) makes objects
under the intent's id; only the partition's leader publishes them (docs/design/rewriting.md).

    request    TopicId uuid, Partition int32, RewriteId uuid,
               Step int8 (0 begin, 1 commit, 2 give up, 3 sign of life),
               Kind int8 (1 merge, 2 erase), BaseOffset int64, LastOffset int64, ErasureId uuid,
               OldKeys [string], Entries bytes
    response   ThrottleTimeMs int32, ErrorCode int16, ErrorMessage string?, LeaderEpoch int32, Version int64

Both offsets are inclusive, and the same in all steps. `ErasureId` is the order that an erasure fulfils, zero
for a merge. `OldKeys` and `Entries` are of a commit: the keys of the run's segments as the worker found them,
and what replaces them, as rows of a manifest in JSON. `LeaderEpoch` answers a begin: new objects carry it in
their names. `Version` is that of the catalog's entry: after a commit it has the new objects, and after a
begin no later one has other objects in the run. Errors leave everything as it was: FENCED_LEADER_EPOCH where
the intent is not the partition's (any more), OPERATION_NOT_ATTEMPTED where another rewrite is under way or no
such order is open, INVALID_REQUEST where the chain is another by now, so that the worker plans again.

A sign of life begins nothing: an intent that the leader gave up meanwhile stays gone, and with it the objects
that were made for it, which a sweep may have judged.
"""

# No `annotations` from the future: `schema` reads the types of these fields.
from dataclasses import dataclass, field
from datetime import timedelta
from enum import IntEnum
from typing import ClassVar, Final
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType

__all__ = ["MAX_ENTRIES_BYTES", "MAX_OLD_KEYS", "RewriteRangeRequest", "RewriteRangeResponse", "RewriteStep"]

MAX_OLD_KEYS: Final = 256
"""Segments of a run."""
MAX_ENTRIES_BYTES: Final = 1 << 20


class RewriteStep(IntEnum):
    """Steps of a rewrite, by their numbers on the wire."""

    BEGIN = 0
    COMMIT = 1
    GIVE_UP = 2
    ALIVE = 3


_STEPS: Final = frozenset(map(int, RewriteStep))


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteRangeRequest:
    """One step of the rewrite `rewrite_id`. Zero ids read as None, as in kio."""

    __type__: ClassVar = EntityType.request
    __version__: ClassVar[int] = 0
    __flexible__: ClassVar[bool] = True
    topic_id: UUID | None = field(metadata={"kafka_type": "uuid"})
    partition: int = field(metadata={"kafka_type": "int32"})
    rewrite_id: UUID | None = field(metadata={"kafka_type": "uuid"})
    step: int = field(metadata={"kafka_type": "int8"})
    kind: int = field(metadata={"kafka_type": "int8"})
    base_offset: int = field(metadata={"kafka_type": "int64"})
    last_offset: int = field(metadata={"kafka_type": "int64"})
    erasure_id: UUID | None = field(metadata={"kafka_type": "uuid"}, default=None)
    old_keys: tuple[str, ...] = field(metadata={"kafka_type": "string"}, default=())
    entries: bytes = field(metadata={"kafka_type": "bytes"}, default=b"")

    def malformed(self) -> str | None:
        """Return why no worker sends this; None where one does. Nothing in it was looked at before."""
        if self.topic_id is None or self.rewrite_id is None:
            return "no topic, or no id of a rewrite"
        if self.step not in _STEPS:
            return f"step {self.step} is unknown"
        if self.partition < 0 or not 0 <= self.base_offset <= self.last_offset:
            return f"partition {self.partition}, offsets {self.base_offset} to {self.last_offset}"
        if len(self.old_keys) > MAX_OLD_KEYS:
            return f"{len(self.old_keys)} old keys; {MAX_OLD_KEYS} are allowed"
        if len(self.entries) > MAX_ENTRIES_BYTES:
            return f"{len(self.entries)} bytes of entries; {MAX_ENTRIES_BYTES} are allowed"
        if (self.step == RewriteStep.COMMIT) != bool(self.old_keys and self.entries):
            return "old keys and entries belong to a commit, and to nothing else"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteRangeResponse:
    __type__: ClassVar = EntityType.response
    __version__: ClassVar[int] = 0
    __flexible__: ClassVar[bool] = True
    throttle_time: timedelta = field(metadata={"kafka_type": "timedelta_i32"}, default=timedelta())
    error_code: ErrorCode = field(metadata={"kafka_type": "error_code"})
    error_message: str | None = field(metadata={"kafka_type": "string"}, default=None)
    leader_epoch: int = field(metadata={"kafka_type": "int32"}, default=-1)
    version: int = field(metadata={"kafka_type": "int64"}, default=-1)
