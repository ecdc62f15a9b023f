"""Rows of manifests and of their pages: segments, and references to pages, as JSON. [P]

Readers pass the partition whose document lists the row: the row's key must belong to it, unless the row names
another owner.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import repeat
from operator import itemgetter, le
from typing import Any, Final
from uuid import UUID

from service.base.errors import CorruptionError
from service.base.types import NO_OFFSET, NO_TIMESTAMP
from service.remote.format.documents import MAX_STORED_BYTES, dump
from service.remote.format.fields import (
    MAX_INTEGER,
    epochs_field,
    int_field,
    later_int_field,
    object_field,
    objects_field,
    optional_int_field,
    parse_json_object,
    saturated,
    str_field,
    uuid_field,
)
from service.remote.format.keys import (
    MAX_EPOCH,
    MAX_LEVEL,
    MAX_PARTITION,
    PageKey,
    is_segment_of,
    parse_key,
    partition_prefix,
)
from service.remote.format.manifest import MAX_MANIFEST_ENTRIES, KeyOwner, PageRef, SegmentEntry

MAX_SEGMENT_BYTES: Final = 1 << 40
MAX_GENERATION: Final = (1 << 31) - 1


_PLAIN: Final = (
    "base_offset", "last_offset", "size", "log_length", "footer_position", "footer_crc", "max_timestamp",
    "max_timestamp_offset", "min_timestamp", "generation", "key", "leader_epochs",
)  # fmt: skip
"""Fields of a row without an owner, as written today; with transactions it has `open_from`, too."""
_plain: Final = itemgetter(*_PLAIN)
_entry: Final = partial(tuple.__new__, SegmentEntry)
"""`SegmentEntry._make` without a Python frame for each."""


def entry_row(entry: SegmentEntry) -> dict[str, Any]:
    """Return the row of one segment of a manifest or of a page of level 0."""
    row = entry._asdict()
    row["leader_epochs"] = [list(pair) for pair in entry.leader_epochs]
    if entry.open_from == NO_OFFSET:
        del row["open_from"]
    return _row(row, entry.owner)


def ref_row(ref: PageRef) -> dict[str, Any]:
    """Return the row of one page of a manifest or of a page of a higher level."""
    return _row(ref._asdict(), ref.owner)


def _row(row: dict[str, Any], owner: KeyOwner | None) -> dict[str, Any]:
    row["max_timestamp"] = saturated(row["max_timestamp"])
    row["min_timestamp"] = saturated(row["min_timestamp"])
    del row["owner"]
    if owner is not None:
        row["owner"] = {"topic_id": str(owner.topic_id), "partition": owner.partition}
    return row


def parse_entry(row: dict[str, Any], home: str, most: int) -> SegmentEntry:
    """Return the segment in `row`, listed by the partition whose folder is `home`; no integer exceeds
    `most`."""
    base = int_field(row, "base_offset", 0, most)
    last = int_field(row, "last_offset", base, most)
    key = str_field(row, "key")
    owner = _owner(row) if "owner" in row else None
    folder = home if owner is None else partition_prefix(owner.topic_id, owner.partition)
    if not is_segment_of(key, folder, base, last):
        raise CorruptionError(f"{key!r} is not the key of segment {base} to {last} of {folder}")
    size = int_field(row, "size", 1, MAX_SEGMENT_BYTES)
    log_length = int_field(row, "log_length", 1, size)
    epochs = epochs_field(row, "leader_epochs", most)
    if not _covers(epochs, base, last):
        raise CorruptionError(f"{key}: leader epochs do not cover it")
    newest = optional_int_field(row, "max_timestamp", most)
    return SegmentEntry(
        base_offset=base,
        last_offset=last,
        size=size,
        log_length=log_length,
        max_timestamp=newest,
        max_timestamp_offset=optional_int_field(row, "max_timestamp_offset", most),
        leader_epochs=epochs,
        key=key,
        footer_position=int_field(row, "footer_position", log_length, size),
        footer_crc=int_field(row, "footer_crc", 0, 0xFFFFFFFF),
        min_timestamp=later_int_field(row, "min_timestamp", NO_TIMESTAMP, newest, NO_TIMESTAMP),
        generation=later_int_field(row, "generation", 0, MAX_GENERATION, 0),
        owner=owner,
        open_from=later_int_field(row, "open_from", 0, last + 1, NO_OFFSET),
    )


def parse_entries(rows: Sequence[dict[str, Any]], home: str, most: int) -> tuple[SegmentEntry, ...]:
    """Return the segments of `rows`, as `parse_entry` of each.

    Where all rows are as written today they are parsed by columns: then most checks run in C, and a
    manifest's thousand rows do not hold the GIL for long.
    """
    found = _plain_entries(rows, home, most)
    return found if found is not None else tuple(parse_entry(row, home, most) for row in rows)


def encode_entries(entries: Sequence[SegmentEntry]) -> bytes:
    """Return the rows of segments alone, as a JSON document: what a request has of them."""
    return dump({"segments": list(map(entry_row, entries))})


def decode_entries(data: bytes, topic_id: UUID, partition: int) -> tuple[SegmentEntry, ...]:
    """Return the segments that `encode_entries` wrote, at most as many as a manifest lists.

    Raises `CorruptionError` where one is not a segment under a key of this partition.
    """
    if len(data) > MAX_STORED_BYTES:
        raise CorruptionError(f"segments: {len(data)} bytes, at most {MAX_STORED_BYTES} are read")
    rows = objects_field(parse_json_object(data, "segments"), "segments", MAX_MANIFEST_ENTRIES)
    found = parse_entries(rows, partition_prefix(topic_id, partition), MAX_INTEGER)
    if any(entry.owner is not None for entry in found):
        raise CorruptionError("segments: one has another owner")
    return found


def _plain_entries(rows: Sequence[dict[str, Any]], home: str, most: int) -> tuple[SegmentEntry, ...] | None:
    """Return the segments where every row has all fields of one without owner and nothing is wrong; else
    None."""
    opened = _open_from(rows)
    if opened is None:
        return None
    try:
        columns = dict(zip(_PLAIN, zip(*map(_plain, rows), strict=True), strict=True))
    except KeyError:
        return None
    base, last, size, log, footer = (columns[name] for name in _PLAIN[:5])
    newest, oldest = columns["max_timestamp"], columns["min_timestamp"]
    keys, epochs = columns["key"], columns["leader_epochs"]
    for name, low, high in (
        ("base_offset", 0, most),
        ("last_offset", 0, most),
        ("size", 1, MAX_SEGMENT_BYTES),
        ("log_length", 1, MAX_SEGMENT_BYTES),
        ("footer_position", 1, MAX_SEGMENT_BYTES),
        ("footer_crc", 0, 0xFFFFFFFF),
        ("max_timestamp", -1, most),
        ("max_timestamp_offset", -1, most),
        ("min_timestamp", NO_TIMESTAMP, most),
        ("generation", 0, MAX_GENERATION),
    ):
        column = columns[name]
        if set(map(type, column)) != {int} or min(column) < low or max(column) > high:
            return None
    rising = ((base, last), (log, size), (log, footer), (footer, size), (oldest, newest))
    if not all(offset <= end + 1 for offset, end in zip(opened, last, strict=True)):
        return None
    if not all(all(map(le, low, high)) for low, high in rising):
        return None
    if set(map(type, keys)) != {str} or not all(map(is_segment_of, keys, repeat(home), base, last)):
        return None
    parsed = _epochs(epochs, most)
    if not all(map(_covers, parsed, base, last)):
        return None
    columns["leader_epochs"] = parsed
    fields = [columns[name] for name in SegmentEntry._fields[:-2]]
    return tuple(map(_entry, zip(*fields, repeat(None), opened, strict=False)))


def _open_from(rows: Sequence[dict[str, Any]]) -> list[int] | None:
    """Return `open_from` of each row; None where a row has other fields than those written today."""
    if set(map(len, rows)) == {len(_PLAIN)}:
        return [NO_OFFSET] * len(rows)
    longer = [row for row in rows if len(row) != len(_PLAIN)]
    if any(len(row) != len(_PLAIN) + 1 or type(row.get("open_from")) is not int for row in longer):
        return None
    if min((row["open_from"] for row in longer), default=NO_OFFSET) < 0:
        return None
    return [row.get("open_from", NO_OFFSET) for row in rows]


def _epochs(column: Sequence[Any], most: int) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Return the leader epochs of each row; most rows repeat those of the row before."""
    before = ""
    parsed: tuple[tuple[int, int], ...] = ()
    found = []
    for raw in column:
        text = repr(raw)  # 1, 1.0 and true are equal, only one is valid
        if text != before:
            parsed, before = epochs_field({"leader_epochs": raw}, "leader_epochs", most), text
        found.append(parsed)
    return tuple(found)


def _covers(epochs: tuple[tuple[int, int], ...], base: int, last: int) -> bool:
    return bool(epochs) and epochs[0][1] <= base and epochs[-1][1] <= last


def parse_ref(row: dict[str, Any], topic_id: UUID, partition: int, most: int) -> PageRef:
    """Return the page reference in `row`, listed by this partition; no integer exceeds `most`."""
    base = int_field(row, "base_offset", 0, most)
    last = int_field(row, "last_offset", base, most)
    level = int_field(row, "level", 0, MAX_LEVEL)
    key = str_field(row, "key")
    owner = _owner(row) if "owner" in row else None
    home = owner if owner is not None else KeyOwner(topic_id, partition)
    parsed = parse_key(key)
    if not isinstance(parsed, PageKey) or parsed[:5] != (*home, base, last, level):
        raise CorruptionError(
            f"{key!r} is not the key of page {base} to {last} of {home.topic_id}/{home.partition}"
        )
    first_epoch = int_field(row, "first_epoch", 0, MAX_EPOCH)
    newest = optional_int_field(row, "max_timestamp", most)
    return PageRef(
        base_offset=base,
        last_offset=last,
        level=level,
        segments=int_field(row, "segments", 1, most),
        size_bytes=int_field(row, "size_bytes", 1, most),
        max_timestamp=newest,
        first_epoch=first_epoch,
        last_epoch=int_field(row, "last_epoch", first_epoch, MAX_EPOCH),
        key=key,
        stored_size=int_field(row, "stored_size", 1, MAX_STORED_BYTES),
        crc32c=int_field(row, "crc32c", 0, 0xFFFFFFFF),
        min_timestamp=later_int_field(row, "min_timestamp", NO_TIMESTAMP, newest, NO_TIMESTAMP),
        owner=owner,
    )


def _owner(row: dict[str, Any]) -> KeyOwner:
    fields = object_field(row, "owner")
    return KeyOwner(uuid_field(fields, "topic_id"), int_field(fields, "partition", 0, MAX_PARTITION))
