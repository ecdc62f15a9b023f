"""Origin of a rewritten object, as its footer has it: the rewrite, and the segments it took the place of. [P]

>>> parse_origin({"rewrite": origin_fields(RewriteOrigin(UUID(int=1), MERGE, 9, 400))}, generation=1).segments
9
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple
from uuid import UUID

from service.base.errors import CorruptionError
from service.remote.format.fields import MAX_INTEGER, int_field, object_field, str_field, uuid_field

MERGE: Final = "merge"
ERASE: Final = "erase"
_KIND: Final = re.compile(r"[a-z][a-z-]{0,31}", re.ASCII)


class RewriteOrigin(NamedTuple):
    """The rewrite `id` that made an object, and the live segments of the same offsets before it: how many,
    and how many records they had.

    `kind` is `MERGE`, `ERASE`, or a rule of later software.
    """

    id: UUID
    kind: str
    segments: int
    record_count: int

    def may_have(self, record_count: int) -> bool:
        """Return whether an object made so may have `record_count` records: a merge keeps all, others keep
        at most as many."""
        return record_count == self.record_count if self.kind == MERGE else record_count <= self.record_count


def origin_fields(origin: RewriteOrigin) -> dict[str, Any]:
    """Return the object `rewrite` of a footer."""
    return {**origin._asdict(), "id": str(origin.id)}


def parse_origin(document: dict[str, Any], generation: int) -> RewriteOrigin | None:
    """Return the origin that a footer of `generation` has; None for an uploaded segment.

    Raises `CorruptionError` also where there is one, and the generation is 0.
    """
    if "rewrite" not in document:
        return None
    fields = object_field(document, "rewrite")
    kind = str_field(fields, "kind")
    if not _KIND.fullmatch(kind) or not generation:
        raise CorruptionError(f"an object of generation {generation} made by a rewrite of kind {kind[:40]!r}")
    return RewriteOrigin(
        uuid_field(fields, "id"),
        kind,
        int_field(fields, "segments", 1, MAX_INTEGER),
        int_field(fields, "record_count", 0, MAX_INTEGER),
    )
