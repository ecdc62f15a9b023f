"""Every field of the metadata image is in snapshots, and in the change that a fetched snapshot makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints
from uuid import UUID

import pytest

from service.base.steps import at_once
from service.metadata.client_quotas import QuotaEntity
from service.metadata.image import MetadataImage
from service.metadata.image_diff import apply_snapshot
from service.metadata.persistent import PartitionMap, PersistentMap
from service.metadata.snapshot_codec import decode_snapshot, encode_image
from service.remote.catalog import RewriteKind
from service.security.acls import AclEntry, AclSet
from service.security.principal import Principal
from service.security.scram_credential import ScramCredential
from service.security.tokens import DelegationToken

HINTS = get_type_hints(MetadataImage)
DERIVED = {
    "topics_by_name": "from topics_by_id",
    "collisions": "from the names of topics",
    "index": "from the partitions of topics",
}
NOT_IN_RECORDS = {
    "kraft_version": "from the control records of voters",
    "transaction": "a snapshot is written of an image without an open one",
}
FIELDS = [one.name for one in fields(MetadataImage) if one.name not in {**DERIVED, **NOT_IN_RECORDS}]
NUMBERS = dict.fromkeys(FIELDS, 7) | {"tombstones": 8}
"""The number in all values of a field: it links topics with their entries; 8 is a topic that was deleted."""


def sample(hint: Any, number: int, *, is_key: bool = False) -> Any:
    """Return a value of a type in which no field has its default."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is UnionType:
        (hint,) = (one for one in args if one is not NoneType)
        return sample(hint, number)
    if origin is tuple:
        if args[-1] is ...:
            return (sample(args[0], number),)
        return tuple(0 if is_key and one is int else sample(one, number) for one in args)  # partition 0
    if origin is frozenset:
        return frozenset({sample(args[0], number)})
    if origin is PartitionMap:
        return PartitionMap.of({0: sample(args[0], number)})
    if origin in (PersistentMap, Mapping):
        entries = {sample(args[0], number, is_key=True): sample(args[1], number)}
        return entries if origin is Mapping else PersistentMap(entries)
    if hasattr(hint, "_fields"):
        values = {name: sample(one, number) for name, one in get_type_hints(hint).items()}
        assert not [name for name, default in hint._field_defaults.items() if values[name] == default]
        return hint(**values)
    return {
        int: number,
        str: f"a.{number}",
        bool: True,
        UUID: UUID(int=number),
        RewriteKind: RewriteKind.ERASE,
    }[hint]


ACCESS: dict[str, Any] = {
    "acls": AclSet.EMPTY.with_entries(
        {
            UUID(int=7): AclEntry(2, "orders", 3, "User:alice", "*", 3, 3),
            UUID(int=8): AclEntry(4, "c", 4, ":", "h", 99, 2),
        },
        (),
    ),
    "scram": PersistentMap(
        {
            "alice": {
                1: ScramCredential(b"s1", b"k1", b"v1", 4096),
                2: ScramCredential(b"s2", b"k2", b"v2", 8192),
            }
        }
    ),
    "tokens": PersistentMap(
        {
            "id-7": DelegationToken(
                "id-7",
                Principal("User", "alice"),
                Principal("User", "broker:1"),
                (Principal("User", "bob"), Principal("User", "")),
                7,
                9,
                8,
            )
        }
    ),
    "client_quotas": PersistentMap(
        {
            QuotaEntity("alice", None): {"producer_byte_rate": 1024.0, "request_percentage": 0.5},
            QuotaEntity(None): {"consumer_byte_rate": 7.0},
            QuotaEntity(ip="127.0.0.1"): {"connection_creation_rate": 3.0},
        }
    ),
}
"""Fields whose values not every number can be."""
FULL = MetadataImage(
    **{name: sample(HINTS[name], number) for name, number in NUMBERS.items() if name not in ACCESS},
    **ACCESS,
    topics_by_name=sample(HINTS["topics_by_name"], 7),
)


def test_the_sample_has_no_default() -> None:
    empty = MetadataImage()
    assert {*DERIVED, *NOT_IN_RECORDS} < {one.name for one in fields(MetadataImage)}
    assert not [name for name in FIELDS if getattr(FULL, name) == getattr(empty, name)]


@pytest.mark.parametrize("name", FIELDS)
def test_a_snapshot_has_every_field(name: str) -> None:
    found = decode_snapshot(encode_image(FULL, now_ms=9), end_offset=8, epoch=7)
    assert getattr(found, name) == getattr(FULL, name)


@pytest.mark.parametrize("name", FIELDS)
def test_a_change_to_a_snapshot_has_every_field(name: str) -> None:
    found, _ = at_once(apply_snapshot(MetadataImage(), FULL))
    assert getattr(found, name) == getattr(FULL, name)


def test_a_snapshot_restores_derived_fields() -> None:
    found = decode_snapshot(encode_image(FULL, now_ms=9), end_offset=8, epoch=7)
    assert found.topics_by_name == FULL.topics_by_name
    assert dict(found.collisions) == {"a_7": ("a.7",)}
    assert found.index == at_once(apply_snapshot(MetadataImage(), FULL))[0].index != MetadataImage().index
