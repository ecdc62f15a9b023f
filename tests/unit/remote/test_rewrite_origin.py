"""The footer of a rewritten object says which rewrite made it, and of what."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pytest
from crc32c import crc32c

from service.base.errors import CorruptionError
from service.remote.format.rewrite_origin import ERASE, MERGE, RewriteOrigin
from service.remote.format.segment_object import (
    KEY_FILTER,
    TRAILER,
    PlannedObject,
    SegmentIdentity,
    decode_footer,
    plan_object,
)
from tests.unit.remote.archive import batch_of, blocks_of

ORIGIN = RewriteOrigin(UUID(int=77), ERASE, 3, 40)
LOG = batch_of(110, 5, 30, 0, 1_000) + batch_of(130, 5, 30, 2, 2_000)


def planned(**change: Any) -> PlannedObject:
    """An object of offsets 100 to 149, with holes before, between and behind its two batches."""
    arguments: dict[str, Any] = {
        "log": lambda: [LOG],
        "log_length": len(LOG),
        "blocks": blocks_of(LOG, 1),
        "offset_index": b"",
        "time_index": b"",
        "leader_epochs": ((0, 90), (1, 120), (2, 125)),
        "transactional_batch_count": 0,
        "generation": 4,
        "rewrite": ORIGIN,
        **change,
    }
    identity = SegmentIdentity("c", UUID(int=1), "t", 0, 100, 149, 2, UUID(int=2))
    return plan_object(identity, **arguments)


def whole(plan: PlannedObject) -> bytes:
    return b"".join(plan.parts())


def test_the_origin_and_the_filter_are_read_as_they_were_written() -> None:
    plan = planned(key_filter=b"filter" * 9, keyed_record_count=7)
    data = whole(plan)
    footer = decode_footer(data, len(data))
    assert footer == plan.footer
    assert (footer.rewrite, footer.generation, footer.keyed_record_count) == (ORIGIN, 4, 7)
    section = footer.sections[KEY_FILTER]
    assert data[section.position : section.end] == b"filter" * 9
    assert section.end == footer.tail_position, "one suffix GET opens the object without its filter"


def test_an_uploaded_segment_has_neither() -> None:
    footer = planned(generation=0, rewrite=None).footer
    assert (footer.rewrite, footer.generation, footer.keyed_record_count) == (None, 0, None)
    assert KEY_FILTER not in footer.sections


def damaged(change: dict[str, Any]) -> bytes:
    """An object whose footer has other fields, and the right checksum."""
    data = whole(planned())
    length, _, magic = TRAILER.unpack(data[-16:])
    document = json.loads(data[-16 - length : -16])
    body = json.dumps({**document, **change}, separators=(",", ":")).encode()
    crc = crc32c(len(body).to_bytes(4, "big"), crc32c(body))
    return data[: -16 - length] + body + TRAILER.pack(len(body), crc, magic)


FIELDS = {"id": str(UUID(int=77)), "kind": "erase", "segments": 3, "record_count": 40}


@pytest.mark.parametrize(
    "change",
    [
        {"generation": 0},
        {"generation": -1},
        {"generation": 1 << 31},
        {"rewrite": None},
        {"rewrite": []},
        {"rewrite": {}},
        {"rewrite": {**FIELDS, "id": "x"}},
        {"rewrite": {**FIELDS, "kind": ""}},
        {"rewrite": {**FIELDS, "kind": "Merge"}},
        {"rewrite": {**FIELDS, "kind": "m" * 33}},
        {"rewrite": {**FIELDS, "kind": 1}},
        {"rewrite": {**FIELDS, "segments": 0}},
        {"rewrite": {**FIELDS, "segments": 10**16}},
        {"rewrite": {**FIELDS, "segments": True}},
        {"rewrite": {**FIELDS, "record_count": -1}},
        {"rewrite": {**FIELDS, "record_count": "40"}},
        {"keyed_record_count": 11},
        {"keyed_record_count": -1},
        {"keyed_record_count": None},
    ],
    ids=lambda change: str(change)[:40],
)
def test_fields_that_no_rewrite_writes_are_damage(change: dict[str, Any]) -> None:
    data = damaged({})
    assert decode_footer(data, len(data)).rewrite == ORIGIN
    data = damaged(change)
    with pytest.raises(CorruptionError):
        decode_footer(data, len(data))


def test_kinds_and_fields_of_later_software_are_read() -> None:
    data = damaged({"rewrite": {**FIELDS, "kind": "compact", "clean_offset": 7}})
    found = decode_footer(data, len(data)).rewrite
    assert found == ORIGIN._replace(kind="compact")


@pytest.mark.parametrize(
    "change",
    [
        {"generation": 0},
        {"rewrite": ORIGIN._replace(kind="Merge")},
        {"rewrite": ORIGIN._replace(segments=0)},
        {"rewrite": ORIGIN._replace(record_count=-1)},
        {"key_filter": bytes((2 << 20) + 1)},
        {"keyed_record_count": 11},
    ],
    ids=lambda change: str(change)[:40],
)
def test_an_origin_that_no_reader_would_take_is_not_planned(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        planned(**change)


@pytest.mark.parametrize(
    ("kind", "fewer", "same", "more"),
    [(MERGE, False, True, False), (ERASE, True, True, False), ("compact", True, True, False)],
)
def test_a_merge_keeps_all_records_and_no_rewrite_adds_one(
    kind: str, fewer: bool, same: bool, more: bool
) -> None:
    origin = ORIGIN._replace(kind=kind)
    assert [origin.may_have(count) for count in (39, 40, 41)] == [fewer, same, more]
