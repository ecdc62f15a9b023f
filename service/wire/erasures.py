"""Erasures, an API of Firn's own: orders to erase keys are started, cancelled and asked about. [P]

Version 0, flexible, on brokers' listeners; for ``firn erase``. Only the keeper of the prefix takes and
cancels orders, and reads tails: others answer NOT_COORDINATOR. Each broker tells in a list what it knows.

    request    Op int8 (0 list, 1 start, 2 cancel, 3 look, 4 verify), Id uuid, Order bytes?, TopicId uuid,
               Partition int32, Scope int8, FromOffset int64
    response   ThrottleTimeMs int32, ErrorCode int16, ErrorMessage string?, Document string?,
               NextOffset int64

`Order` is an encoded order (`remote.format.erase_codec`), which has hashes of keys, never keys: of a start,
and of a look or a verify for one that the metadata does not have. `TopicId`, `Partition`, `Scope` and
`FromOffset` are of a look and of a verify, which read a part of one partition's log or archive, or of the
tails, at a time; `NextOffset` is where the next one goes on, -1 at the end. `Document` is JSON.
"""

# No `annotations` from the future: `schema` reads the types of these fields.
from dataclasses import dataclass, field
from datetime import timedelta
from enum import IntEnum
from typing import ClassVar, Final
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType

__all__ = ["MAX_ORDER_BYTES", "ErasureOp", "ErasureScope", "ErasuresRequest", "ErasuresResponse"]

MAX_ORDER_BYTES: Final = 16 << 20
"""Stored size of an order's document."""


class ErasureOp(IntEnum):
    """Operation of a request, by its number on the wire."""

    LIST = 0
    START = 1
    CANCEL = 2
    LOOK = 3
    VERIFY = 4


class ErasureScope(IntEnum):
    """Source that a look or a verify reads, by its number on the wire."""

    LOCAL = 0
    """the log of the broker's replica"""
    OBJECTS = 1
    """objects of the partition's archive; asked of its leader"""
    TAILS = 2
    """tails of all kept cuts; asked of the keeper"""


_OPS: Final = frozenset(map(int, ErasureOp))
_SCOPES: Final = frozenset(map(int, ErasureScope))


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
        if self.order is None and self.op == ErasureOp.START:
            return "a start without an order"
        if self.order is not None and self.op in (ErasureOp.LIST, ErasureOp.CANCEL):
            return "an order belongs to a start, a look or a verify"
        if self.order is not None and not 0 < len(self.order) <= MAX_ORDER_BYTES:
            return f"an order of {len(self.order)} bytes; {MAX_ORDER_BYTES} are allowed"
        if self.op in (ErasureOp.START, ErasureOp.CANCEL) and self.id is None:
            return "no id of an order"
        if self.op in (ErasureOp.LOOK, ErasureOp.VERIFY):
            if self.scope not in _SCOPES:
                return f"scope {self.scope} is unknown"
            if self.id is None or self.from_offset < 0:
                return f"no id of an order, or from offset {self.from_offset} on"
            if self.scope != ErasureScope.TAILS and (self.topic_id is None or self.partition < 0):
                return f"no topic, or partition {self.partition}"
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
