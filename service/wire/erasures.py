"""Erasures, an API of Firn's own: orders to erase keys are started, cancelled and asked about. [P]

Version 0, flexible, on brokers' listeners; for ``firn erase``. Only the keeper of the prefix has what a list,
a start and a cancel need: others answer NOT_COORDINATOR.

    request    Op int8 (0 list, 1 start, 2 cancel, 3 look, 4 verify), Id uuid, Order bytes?, TopicId uuid,
               Partition int32, Scope int8, FromOffset int64
    response   ThrottleTimeMs int32, ErrorCode int16, ErrorMessage string?, Document string?,
               NextOffset int64

`Order` is of a start: an encoded order (`remote.format.erase_codec`), which has hashes of keys, never keys.
`TopicId`, `Partition`, `Scope` and `FromOffset` are of a look and of a verify, which read one partition at a
time; `NextOffset` is where the next one goes on, -1 at the end. `Document` is JSON.
"""

# No `annotations` from the future: `schema` reads the types of these fields.
from dataclasses import dataclass, field
from datetime import timedelta
from enum import IntEnum
from typing import ClassVar, Final
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType

__all__ = ["MAX_ORDER_BYTES", "ErasureOp", "ErasuresRequest", "ErasuresResponse"]

MAX_ORDER_BYTES: Final = 16 << 20
"""Stored size of an order's document."""


class ErasureOp(IntEnum):
    """Operation of a request, by its number on the wire."""

    LIST = 0
    START = 1
    CANCEL = 2
    LOOK = 3
    VERIFY = 4


_OPS: Final = frozenset(map(int, ErasureOp))


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasuresRequest:
    """Zero ids read as None, as in kio."""

    __type__: ClassVar = EntityType.request
    __version__: ClassVar[int] = 0
    __flexible__: ClassVar[bool] = True
    op: int = field(metadata={"kafka_type": "int8"})
    id: UUID | None = field(metadata={"kafka_type": "uuid"}, default=None)
    order: bytes | None = field(metadata={"kafka_type": "bytes"}, default=None)
    topic_id: UUID | None = field(metadata={"kafka_type": "uuid"}, default=None)
    partition: int = field(metadata={"kafka_type": "int32"}, default=-1)
    scope: int = field(metadata={"kafka_type": "int8"}, default=0)
    from_offset: int = field(metadata={"kafka_type": "int64"}, default=0)

    def malformed(self) -> str | None:
        """Return why no command sends this; None where one does. Nothing in it was looked at before."""
        if self.op not in _OPS:
            return f"operation {self.op} is unknown"
        if (self.order is not None) != (self.op == ErasureOp.START):
            return "an order belongs to a start, and to nothing else"
        if self.order is not None and not 0 < len(self.order) <= MAX_ORDER_BYTES:
            return f"an order of {len(self.order)} bytes; {MAX_ORDER_BYTES} are allowed"
        if self.op == ErasureOp.CANCEL and self.id is None:
            return "no id of an order"
        if self.op in (ErasureOp.LOOK, ErasureOp.VERIFY):
            if self.id is None or self.topic_id is None:
                return "no id of an order, or no topic"
            if self.partition < 0 or self.from_offset < 0:
                return f"partition {self.partition} from offset {self.from_offset} on"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasuresResponse:
    __type__: ClassVar = EntityType.response
    __version__: ClassVar[int] = 0
    __flexible__: ClassVar[bool] = True
    throttle_time: timedelta = field(metadata={"kafka_type": "timedelta_i32"}, default=timedelta())
    error_code: ErrorCode = field(metadata={"kafka_type": "error_code"})
    error_message: str | None = field(metadata={"kafka_type": "string"}, default=None)
    document: str | None = field(metadata={"kafka_type": "string"}, default=None)
    next_offset: int = field(metadata={"kafka_type": "int64"}, default=-1)
