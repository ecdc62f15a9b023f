"""Tail object: records of many partitions that no committed segment has, saved by one node at one cut. [P]

Byte layout (docs/bucket-format.md; integers big-endian)::

    [section]…                   whole record batches of one partition each, as in its log
    [footer]                     JSON, one gzip member
    [u32 length of the footer][u32 crc32c of footer and length][8 bytes b"FIRNTAIL"]

Sections are ordered by topic id, partition and offset, touch each other and begin at byte 0. So the footer
alone says where every record lies, and one ranged GET reads the records of one partition.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple
from uuid import UUID

from crc32c import crc32c

from service.base.errors import CorruptionError
from service.base.types import Buffer
from service.remote.format.documents import gunzip, gzip
from service.remote.format.fields import (
    MAX_INTEGER,
    int_field,
    list_field,
    parse_json_object,
    saturated,
    str_field,
    uuid_value,
)
from service.remote.format.keys import MAX_EPOCH, MAX_LEVEL, MAX_PARTITION
from service.remote.format.stamp import Stamp, stamp_fields, stamp_of

MAGIC: Final = b"FIRNTAIL"
TRAILER: Final = struct.Struct(">II8s")
FORMAT: Final = "firn-tail"
FORMAT_VERSION: Final = 1

MAX_SECTIONS: Final = 1_000_000
MAX_SECTION_BYTES: Final = 1 << 30
MAX_TAIL_BYTES: Final = 1 << 40
MAX_FOOTER_BYTES: Final = 64 << 20
MAX_INFLATED_BYTES: Final = 256 << 20
SUFFIX_HINT: Final = 64 << 10
"""A suffix of this many bytes holds the footer of some two thousand sections."""


class TailSection(NamedTuple):
    """Batches of one partition, from `first_offset` to `end_offset`, exclusive.

    `leader_epoch` is that of the leader who saved them, `last_batch_epoch` the one that the last batch
    carries. `max_timestamp` is -1 where no record has a timestamp, and saturated (`fields.saturated`).
    """

    topic_id: UUID
    partition: int
    leader_epoch: int
    first_offset: int
    end_offset: int
    position: int
    length: int
    crc32c: int
    record_count: int
    max_timestamp: int
    last_batch_epoch: int


class TailFooter(NamedTuple):
    """Verified footer of a tail object of `object_size` bytes; `position` is where the footer begins."""

    cluster_id: str
    cut: int
    level: int
    sections: tuple[TailSection, ...]
    object_size: int
    position: int
    crc: int
    stamp: Stamp | None = None


def encode_footer(
    cluster_id: str, cut: int, level: int, sections: Sequence[TailSection], stamp: Stamp | None
) -> bytes:
    """Return footer and trailer of a tail with these sections, which lie in front of them.

    Raises `ValueError` where readers would refuse it: sections out of order or not touching, numbers beyond
    the format's bounds, too many sections.
    """
    document = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "cluster_id": cluster_id,
        "cut": cut,
        "level": level,
        **stamp_fields(stamp),
        "columns": list(TailSection._fields),
        "sections": [
            [str(one.topic_id), *one[1:9], saturated(one.max_timestamp), one.last_batch_epoch]
            for one in sections
        ],
    }
    body = gzip(json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode())
    end = sections[-1].position + sections[-1].length if sections else 0
    try:
        _checked(document, len(body), end)
    except CorruptionError as e:
        raise ValueError(str(e)) from e
    length = len(body).to_bytes(4, "big")
    return body + TRAILER.pack(len(body), crc32c(length, crc32c(body)), MAGIC)


def footer_length(suffix: Buffer, object_size: int) -> int:
    """Return how many trailing bytes `decode_footer` needs of an object of `object_size` bytes, from its last
    16 bytes or more.

    Raises `CorruptionError` where they are not a tail's.
    """
    if len(suffix) < TRAILER.size or not TRAILER.size <= object_size <= MAX_TAIL_BYTES:
        raise CorruptionError(f"{object_size} bytes cannot be a tail")
    length, _, magic = TRAILER.unpack_from(suffix, len(suffix) - TRAILER.size)
    if magic != MAGIC:
        raise CorruptionError(f"ends in {bytes(magic)!r}, not in {MAGIC!r}: not a tail, or cut short")
    if not 2 <= length <= min(MAX_FOOTER_BYTES, object_size - TRAILER.size):
        raise CorruptionError(f"claims a footer of {length} bytes in {object_size} bytes")
    return int(length) + TRAILER.size


def decode_footer(suffix: Buffer, object_size: int) -> TailFooter:
    """Parse and verify the footer of an object of `object_size` bytes from its last bytes, at least
    `footer_length` of them.

    Raises `CorruptionError`: wrong magic, checksum, format or numbers; sections that are out of order,
    overlap, leave a gap or do not end where the footer begins.
    """
    needed = footer_length(suffix, object_size)
    if needed > len(suffix):
        raise CorruptionError(f"the footer has {needed} bytes, {len(suffix)} given")
    end = len(suffix) - TRAILER.size
    body = bytes(memoryview(suffix)[len(suffix) - needed : end])
    length, crc, _ = TRAILER.unpack_from(suffix, end)
    if crc32c(length.to_bytes(4, "big"), crc32c(body)) != crc:
        raise CorruptionError("footer: wrong checksum")
    document = parse_json_object(gunzip(body, "footer", MAX_INFLATED_BYTES), "footer")
    position = object_size - needed
    sections = _checked(document, len(body), position)
    return TailFooter(
        str_field(document, "cluster_id"),
        document["cut"],
        document["level"],
        sections,
        object_size,
        position,
        crc,
        stamp_of(document),
    )


def _checked(document: dict[str, Any], stored: int, end: int) -> tuple[TailSection, ...]:
    """Return the sections, which end at byte `end`. `stored` is the size of the footer."""
    version = document.get("format_version")
    if document.get("format") != FORMAT or type(version) is not int or version != FORMAT_VERSION:
        found = str((document.get("format"), version))[:120]
        raise CorruptionError(f"expected {FORMAT} {FORMAT_VERSION}, found {found}")
    if stored > MAX_FOOTER_BYTES:
        raise CorruptionError(f"a footer of {stored} bytes, at most {MAX_FOOTER_BYTES} are read")
    str_field(document, "cluster_id")
    int_field(document, "cut", 1, MAX_INTEGER)
    int_field(document, "level", 0, MAX_LEVEL)
    columns = list_field(document, "columns", 64)
    if columns[: len(TailSection._fields)] != list(TailSection._fields):
        raise CorruptionError(f"columns of sections: {str(columns)[:120]}")
    width = len(columns)
    sections = tuple(_section(row, width) for row in list_field(document, "sections", MAX_SECTIONS))
    _check_order(sections, end)
    return sections


def _section(row: object, width: int) -> TailSection:
    # Columns behind the known ones are of later software.
    if not isinstance(row, list) or len(row) != width:
        raise CorruptionError("a section that is not a row of the columns")
    numbers = row[1 : len(TailSection._fields)]
    for number, (name, low, high) in zip(numbers, _BOUNDS, strict=True):
        if type(number) is not int or not low <= number <= high:
            raise CorruptionError(f"{name}: {str(number)[:80]} is not an integer from {low} to {high}")
    section = TailSection(uuid_value(row[0], "topic_id"), *numbers)
    if section.end_offset <= section.first_offset:
        raise CorruptionError(f"a section of offsets {section.first_offset} to {section.end_offset}")
    if section.record_count > section.end_offset - section.first_offset:
        raise CorruptionError(
            f"{section.record_count} records from {section.first_offset} to {section.end_offset}"
        )
    return section


_BOUNDS: Final = (
    ("partition", 0, MAX_PARTITION),
    ("leader_epoch", 0, MAX_EPOCH),
    ("first_offset", 0, MAX_INTEGER),
    ("end_offset", 0, MAX_INTEGER),
    ("position", 0, MAX_TAIL_BYTES),
    ("length", 1, MAX_SECTION_BYTES),
    ("crc32c", 0, 0xFFFFFFFF),
    ("record_count", 0, MAX_INTEGER),
    ("max_timestamp", -1, MAX_INTEGER),
    ("last_batch_epoch", 0, MAX_EPOCH),
)


def _check_order(sections: Sequence[TailSection], end: int) -> None:
    position = 0
    for section in sections:
        if section.position != position:
            raise CorruptionError(f"a section begins at {section.position}, expected {position}")
        position += section.length
    if position != end:
        raise CorruptionError(f"sections end at {position}, the footer begins at {end}")
    for one, after in pairwise(sections):
        if (one.topic_id, one.partition) > after[:2] or (
            one[:2] == after[:2] and one.end_offset > after.first_offset
        ):
            raise CorruptionError(
                f"sections of {after.topic_id}/{after.partition} are out of order or overlap"
            )
