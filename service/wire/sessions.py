"""ListSessions and EndSessions, APIs of Firn's own: who is logged in at a node, and an end to it. [P]

Version 0, flexible, on listeners of brokers and of controllers. A node answers for its own connections, of
all its listeners (docs/adr/0043). `Principal` is ``Type:name``; null in ListSessions: everybody's.

    ListSessions  request    Principal string?, After int64, Most int32
                  response   ErrorCode int16, ErrorMessage string?, IsLast bool, Sessions [Connection int64,
                             Principal string, Host string, Port int32, Listener string, Protocol string,
                             ClientId string, IdleMs int64, LeftMs int64]
    EndSessions   request    Principal string, MetadataOffset int64
                  response   ErrorCode int16, ErrorMessage string?, Ended int32
"""

# No `annotations` from the future: `schema` reads the types of these fields.
from dataclasses import dataclass, field
from typing import ClassVar, Final

from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType

__all__ = [
    "MOST_SESSIONS", "EndSessionsRequest", "EndSessionsResponse", "ListSessionsRequest",
    "ListSessionsResponse", "OpenSession",
]  # fmt: skip

MOST_SESSIONS: Final = 1000
"""Sessions of one response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSession:
    """One connection with a session. `connection` numbers a process's connections in order of arrival;
    `left_ms`: until the login ends, -1 where it does not."""

    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[int] = 0
    __flexible__: ClassVar[bool] = True
    connection: int = field(metadata={"kafka_type": "int64"})
    principal: str = field(metadata={"kafka_type": "string"})
    host: str = field(metadata={"kafka_type": "string"})
    port: int = field(metadata={"kafka_type": "int32"})
    listener: str = field(metadata={"kafka_type": "string"})
    protocol: str = field(metadata={"kafka_type": "string"})
    client_id: str = field(metadata={"kafka_type": "string"})
    idle_ms: int = field(metadata={"kafka_type": "int64"})
    left_ms: int = field(metadata={"kafka_type": "int64"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ListSessionsRequest:
    """`after`: the connection behind which the list begins, -1 for its start; `most`: sessions to return,
    never more than `MOST_SESSIONS`."""

    __type__: ClassVar = EntityType.request
    __version__: ClassVar[int] = 0
    __flexible__: ClassVar[bool] = True
    principal: str | None = field(metadata={"kafka_type": "string"})
    after: int = field(metadata={"kafka_type": "int64"}, default=-1)
    most: int = field(metadata={"kafka_type": "int32"}, default=MOST_SESSIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListSessionsResponse:
    """`is_last`: there are no sessions behind these."""

    __type__: ClassVar = EntityType.response
    __version__: ClassVar[int] = 0
    __flexible__: ClassVar[bool] = True
    error_code: ErrorCode = field(metadata={"kafka_type": "error_code"})
    error_message: str | None = field(metadata={"kafka_type": "string"}, default=None)
    is_last: bool = field(metadata={"kafka_type": "bool"}, default=True)
    sessions: tuple[OpenSession, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EndSessionsRequest:
    """`metadata_offset`: what the node has to know of the metadata first, so that nobody logs in again with
    what was changed before; -1 for nothing."""

    __type__: ClassVar = EntityType.request
    __version__: ClassVar[int] = 0
    __flexible__: ClassVar[bool] = True
    principal: str = field(metadata={"kafka_type": "string"})
    metadata_offset: int = field(metadata={"kafka_type": "int64"}, default=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndSessionsResponse:
    """`ended`: connections that were closed; those are closed with an error, too."""

    __type__: ClassVar = EntityType.response
    __version__: ClassVar[int] = 0
    __flexible__: ClassVar[bool] = True
    error_code: ErrorCode = field(metadata={"kafka_type": "error_code"})
    error_message: str | None = field(metadata={"kafka_type": "string"}, default=None)
    ended: int = field(metadata={"kafka_type": "int32"}, default=0)
