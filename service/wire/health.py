"""DescribeHealth, an API of Firn's own: what a broker finds wrong with itself and with its cluster. [P]

Version 0, flexible, on brokers' listeners. A client learns it without an HTTP listener, and how old the
metadata are that the broker's other answers come from (docs/health.md).

    DescribeHealth  request    (empty)
                    response   ErrorCode int16, ErrorMessage string?, NodeId int32, MetadataAgeMs int64,
                               SessionMs int64, Findings [Severity string, Subject string, SinceMs int64,
                               Words string, Meaning string, Action string, Anchor string]
"""

# No `annotations` from the future: `schema` reads the types of these fields.
from dataclasses import dataclass, field
from typing import ClassVar

from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType

__all__ = ["DescribeHealthRequest", "DescribeHealthResponse", "ToldFinding"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldFinding:
    """One finding. `since_ms`: wall clock of the broker, -1 where nobody knows."""

    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[int] = 0
    __flexible__: ClassVar[bool] = True
    severity: str = field(metadata={"kafka_type": "string"})
    subject: str = field(metadata={"kafka_type": "string"})
    since_ms: int = field(metadata={"kafka_type": "int64"})
    words: str = field(metadata={"kafka_type": "string"})
    meaning: str = field(metadata={"kafka_type": "string"})
    action: str = field(metadata={"kafka_type": "string"})
    anchor: str = field(metadata={"kafka_type": "string"})


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeHealthRequest:
    """Nothing to choose from: a broker answers for itself."""

    __type__: ClassVar = EntityType.request
    __version__: ClassVar[int] = 0
    __flexible__: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeHealthResponse:
    """`metadata_age_ms`: time since a controller has confirmed the broker's metadata, -1 where it needs
    none; they are stale above `session_ms`."""

    __type__: ClassVar = EntityType.response
    __version__: ClassVar[int] = 0
    __flexible__: ClassVar[bool] = True
    error_code: ErrorCode = field(metadata={"kafka_type": "error_code"})
    error_message: str | None = field(metadata={"kafka_type": "string"}, default=None)
    node_id: int = field(metadata={"kafka_type": "int32"}, default=-1)
    metadata_age_ms: int = field(metadata={"kafka_type": "int64"}, default=-1)
    session_ms: int = field(metadata={"kafka_type": "int64"}, default=-1)
    findings: tuple[ToldFinding, ...] = ()
