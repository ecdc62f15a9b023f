"""Ancestors of a cluster: the clusters that wrote to its prefix before, which it was restored from. [P]

Documents, footers and checkpoints of an ancestor count as the cluster's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from service.base.errors import CorruptionError
from service.remote.format.fields import MAX_INTEGER, int_field, objects_field, str_field

MAX_ANCESTORS: Final = 64


class Ancestor(NamedTuple):
    """Cluster that the prefix was taken over from at `claimed_ms`, restored up to its cut `until_cut`."""

    cluster_id: str
    until_cut: int
    claimed_ms: int


def ancestor_fields(ancestors: Sequence[Ancestor]) -> dict[str, Any]:
    """Return the member of a JSON document, newest ancestor first; empty without any.

    Raises `ValueError` for more than readers accept.
    """
    if len(ancestors) > MAX_ANCESTORS:
        raise ValueError(f"{len(ancestors)} ancestors, at most {MAX_ANCESTORS} fit")
    return {"ancestors": [one._asdict() for one in ancestors]} if ancestors else {}


def ancestors_of(fields: dict[str, Any]) -> tuple[Ancestor, ...]:
    """Return the ancestors that `ancestor_fields` wrote."""
    if "ancestors" not in fields:
        return ()
    found = tuple(
        Ancestor(
            str_field(row, "cluster_id"),
            int_field(row, "until_cut", 1, MAX_INTEGER),
            int_field(row, "claimed_ms", 0, MAX_INTEGER),
        )
        for row in objects_field(fields, "ancestors", MAX_ANCESTORS)
    )
    if len({one.cluster_id for one in found}) != len(found):
        raise CorruptionError("an ancestor is named twice")
    return found
