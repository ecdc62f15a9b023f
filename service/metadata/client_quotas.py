"""Client quotas, as the metadata image holds them. [P]"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from service.metadata.persistent import PersistentMap

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
ENTITY_TYPES: Final = (USER, CLIENT_ID, IP)


class QuotaEntity(NamedTuple):
    """Clients that a quota applies to (Kafka's ``ClientQuotaEntity``), one part for each type.

    A part is a name, None for the type's default, or "" where the entity has no such part: names of
    entities are never empty.
    """

    user: str | None = ""
    client_id: str | None = ""
    ip: str | None = ""

    @property
    def parts(self) -> Iterator[tuple[str, str | None]]:
        """Type and name of each part."""
        return ((kind, name) for kind, name in zip(ENTITY_TYPES, self, strict=True) if name != "")


def entity_of(parts: Iterable[tuple[str, str | None]]) -> QuotaEntity:
    """Return the entity with these parts. Raises `ValueError` for an unknown or repeated type, an empty name,
    no part, and an ``ip`` beside others.

    >>> entity_of([("client-id", None), ("user", "alice")])
    QuotaEntity(user='alice', client_id=None, ip='')
    """
    found: dict[str, str | None] = {}
    for kind, name in parts:
        if kind not in ENTITY_TYPES:
            raise ValueError(f"unknown type of a quota's entity: {kind!r}")
        if kind in found:
            raise ValueError(f"type {kind!r} of a quota's entity is there twice")
        if name == "":
            raise ValueError(f"the {kind} of a quota's entity has an empty name")
        found[kind] = name
    if not found or (IP in found and len(found) > 1):
        raise ValueError(f"a quota's entity of the types {sorted(found)}")
    return QuotaEntity(found.get(USER, ""), found.get(CLIENT_ID, ""), found.get(IP, ""))


ClientQuotas = PersistentMap[QuotaEntity, Mapping[str, float]]
"""entity -> key -> value; an entity without any is not in it."""
