"""TakeCut, an API of Firn's own: the keeper of the prefix asks brokers for their part of a cut. [P]

Version 0, flexible, on the listener between brokers. A cut is one moment of the whole cluster
(`tiering/cuts`); one request is one step of one attempt.

    request    BrokerId int32, BrokerEpoch int64, AttemptId uuid, NewestId uuid, Cut int64,
               Step int8 (0 begin, 1 take, 2 save, 3 void), HoldMs int32,
               tag 0: Lost [TopicId uuid, Partitions [Partition int32, LeaderEpoch int32, Reaches int64]]
    response   ErrorCode int16, ErrorMessage string?, ImageOffset int64,
               tag 0: Ends [TopicId uuid, Partitions [Partition int32, LeaderEpoch int32, Start int64,
               End int64, Stable int64, Saved int64, SavedHigh int64, LastEpoch int32, Version int64,
               Waits bool, IsTailed bool]],
               tag 1: Tails [Key string, Size int64, FooterPosition int64, FooterCrc int64],
               tag 2: Offline [TopicId uuid, Partitions [Partition int32, LeaderEpoch int32]]

`BrokerId` and `BrokerEpoch` are the keeper's. `Cut` is the number that the cut will have: one above that of
the newest. `NewestId` is that of the newest cut's document, zero without one: a broker learns by it which of
its tails a cut names. `HoldMs` is from 1 to 10000 in an attempt at an exact cut, the same in all its steps;
*take* with 0 is of a loose one, which has no *begin*. `ImageOffset` is the end of the broker's metadata,
exclusive. `Lost`, in *save*: partitions of which the newest cut says that more is saved than chain and tails
have, as some of the tails are gone or damaged: they have what is below `Reaches`.

`Offline` answers *begin* and *take*: partitions that the broker leads and whose logs have failed. Nobody can
tell what was seen of them since the newest cut, so a cut without them is not exact.

*take* is answered with the ends of all others that the broker leads; there `Saved` is what tails had before.
*save* is answered with the tails that no cut names yet, and once more with each partition of which `Saved`,
`SavedHigh`, `LastEpoch`, `Waits` or `IsTailed` are others by now: these go into the document.
"""

# No `annotations` from the future: `schema` reads the types of these fields.
from dataclasses import dataclass, field
from typing import ClassVar
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType

__all__ = [
    "CutEnd", "CutEnds", "CutLoss", "CutLosses", "CutTail", "OfflinePartition", "OfflinePartitions",
    "TakeCutRequest", "TakeCutResponse",
]  # fmt: skip

MAX_HOLD_MS = 10_000
"""Greatest `HoldMs` that a broker takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutEnd:
    """One partition that the broker leads (`remote.format.cut_codec.PartitionCut`).

    `is_tailed`: its records go into tails; what the chain of another one lacks comes back empty.
    """

    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[int] = 0
    __flexible__: ClassVar[bool] = True
    partition: int = field(metadata={"kafka_type": "int32"})
    leader_epoch: int = field(metadata={"kafka_type": "int32"})
    start: int = field(metadata={"kafka_type": "int64"})
    end: int = field(metadata={"kafka_type": "int64"})
    stable: int = field(metadata={"kafka_type": "int64"})
    saved: int = field(metadata={"kafka_type": "int64"})
    saved_high: int = field(metadata={"kafka_type": "int64"})
    last_epoch: int = field(metadata={"kafka_type": "int32"})
    version: int = field(metadata={"kafka_type": "int64"})
    waits: bool = field(metadata={"kafka_type": "bool"})
    is_tailed: bool = field(metadata={"kafka_type": "bool"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CutEnds:
    """Partitions of one topic. A zero topic id reads as None, as in kio."""

    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[int] = 0
    __flexible__: ClassVar[bool] = True
    topic_id: UUID | None = field(metadata={"kafka_type": "uuid"})
    partitions: tuple[CutEnd, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CutTail:
    """A tail that no cut names yet (`remote.format.cut_codec.TailRef`)."""

    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[int] = 0
    __flexible__: ClassVar[bool] = True
    key: str = field(metadata={"kafka_type": "string"})
    size: int = field(metadata={"kafka_type": "int64"})
    footer_position: int = field(metadata={"kafka_type": "int64"})
    footer_crc: int = field(metadata={"kafka_type": "int64"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CutLoss:
    """A partition with lost tails: chain and tails have what lies below `reaches`. It is told
    the leader of that epoch."""

    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[int] = 0
    __flexible__: ClassVar[bool] = True
    partition: int = field(metadata={"kafka_type": "int32"})
    leader_epoch: int = field(metadata={"kafka_type": "int32"})
    reaches: int = field(metadata={"kafka_type": "int64"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CutLosses:
    """Partitions of one topic."""

    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[int] = 0
    __flexible__: ClassVar[bool] = True
    topic_id: UUID | None = field(metadata={"kafka_type": "uuid"})
    partitions: tuple[CutLoss, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflinePartition:
    """A partition that the broker leads in this epoch, and whose log has failed."""

    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[int] = 0
    __flexible__: ClassVar[bool] = True
    partition: int = field(metadata={"kafka_type": "int32"})
    leader_epoch: int = field(metadata={"kafka_type": "int32"})


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflinePartitions:
    """Partitions of one topic."""

    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[int] = 0
    __flexible__: ClassVar[bool] = True
    topic_id: UUID | None = field(metadata={"kafka_type": "uuid"})
    partitions: tuple[OfflinePartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeCutRequest:
    """One step of the attempt `attempt_id` at cut number `cut`. `hold_ms`: most time that a gate stays
    closed; `lost` is of *save*."""

    __type__: ClassVar = EntityType.request
    __version__: ClassVar[int] = 0
    __flexible__: ClassVar[bool] = True
    broker_id: int = field(metadata={"kafka_type": "int32"})
    broker_epoch: int = field(metadata={"kafka_type": "int64"})
    attempt_id: UUID | None = field(metadata={"kafka_type": "uuid"})
    newest_id: UUID | None = field(metadata={"kafka_type": "uuid"})
    cut: int = field(metadata={"kafka_type": "int64"})
    step: int = field(metadata={"kafka_type": "int8"})
    hold_ms: int = field(metadata={"kafka_type": "int32"})
    lost: tuple[CutLosses, ...] = field(metadata={"tag": 0}, default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeCutResponse:
    """`ends` answer *take*; `tails`, and what `ends` has changed, answer *save*; `offline` answers *begin*
    and *take*."""

    __type__: ClassVar = EntityType.response
    __version__: ClassVar[int] = 0
    __flexible__: ClassVar[bool] = True
    error_code: ErrorCode = field(metadata={"kafka_type": "error_code"})
    error_message: str | None = field(metadata={"kafka_type": "string"}, default=None)
    image_offset: int = field(metadata={"kafka_type": "int64"}, default=-1)
    ends: tuple[CutEnds, ...] = field(metadata={"tag": 0}, default=())
    tails: tuple[CutTail, ...] = field(metadata={"tag": 1}, default=())
    offline: tuple[OfflinePartitions, ...] = field(metadata={"tag": 2}, default=())
