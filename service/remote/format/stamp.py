"""Writer and time of an object, stored in every object for people who inspect a bucket. [P]

Nothing is decided by it: the clock is one node's, and every writer to the bucket can forge it.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple
from uuid import UUID

import service
from service.remote.format.fields import MAX_INTEGER, int_field, object_field, str_field, uuid_field

SOFTWARE: Final = f"firn {service.__version__}"
MAX_NODE_ID: Final = (1 << 31) - 1


class Writer(NamedTuple):
    """A process that writes to a bucket; `incarnation` is new with every start of a node."""

    node_id: int
    incarnation: UUID
    software: str = SOFTWARE


class Stamp(NamedTuple):
    """Time and writer of an object; `written_ms` is the writer's wall clock."""

    written_ms: int
    writer: Writer


def no_stamp() -> None:
    """Return no stamp, for tests and tools."""


def stamp_fields(stamp: Stamp | None) -> dict[str, Any]:
    """Return the fields of a JSON document; empty where there is no stamp."""
    if stamp is None:
        return {}
    writer = stamp.writer
    return {
        "written_ms": stamp.written_ms,
        "writer": {
            "node_id": writer.node_id,
            "incarnation": str(writer.incarnation),
            "software": writer.software,
        },
    }


def stamp_of(document: dict[str, Any]) -> Stamp | None:
    """Return the stamp that `stamp_fields` wrote; None in documents of version 1."""
    if "writer" not in document:
        return None
    writer = object_field(document, "writer")
    return Stamp(
        int_field(document, "written_ms", 0, MAX_INTEGER),
        Writer(
            int_field(writer, "node_id", 0, MAX_NODE_ID),
            uuid_field(writer, "incarnation"),
            str_field(writer, "software"),
        ),
    )
