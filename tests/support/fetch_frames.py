"""Fetch requests as bytes, of any version, by hand: topics may come twice, and partitions in any order."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from service.wire.primitives import write_compact_string, write_count, write_nullable_string, write_string


class Named(NamedTuple):
    """One partition of a request."""

    partition: int
    offset: int
    max_bytes: int = 1 << 20
    epoch: int = -1
    last_epoch: int = -1
    start: int = -1


Topics = Sequence[tuple[str, Sequence[Named]]]


def fetch_frame(
    version: int,
    topics: Topics,
    ids: dict[str, UUID],
    *,
    wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 50 << 20,
    isolation: int = 0,
    session: tuple[int, int] = (0, -1),
    number: int = 1,
    end: bytes | None = None,
) -> bytes:
    """Return the request without its size. `ids` are those of topics, from version 13 on; `end`: what follows
    the topics."""
    flexible = version >= 12
    out = bytearray(struct.pack(">hhi", 1, version, number))
    write_nullable_string(out, "test")
    if flexible:
        out.append(0)
    if version <= 14:
        out += struct.pack(">i", -1)
    out += struct.pack(">iiib", wait_ms, min_bytes, max_bytes, isolation)
    if version >= 7:
        out += struct.pack(">ii", *session)
    write_count(out, len(topics), flexible)
    for name, partitions in topics:
        if version >= 13:
            out += ids[name].bytes
        elif flexible:
            write_compact_string(out, name)
        else:
            write_string(out, name)
        write_count(out, len(partitions), flexible)
        for one in partitions:
            out += _row(version, one)
        if flexible:
            out.append(0)
    if end is not None:
        return bytes(out + end)
    if version >= 7:
        write_count(out, 0, flexible)
    if version >= 11:
        out += b"\x01" if flexible else b"\0\0"
    if flexible:
        out.append(0)
    return bytes(out)


def _row(version: int, one: Named) -> bytes:
    if version >= 12:
        packed = struct.pack(
            ">iiqiqi", one.partition, one.epoch, one.offset, one.last_epoch, one.start, one.max_bytes
        )
        return packed + b"\0"
    if version >= 9:
        return struct.pack(">iiqqi", one.partition, one.epoch, one.offset, one.start, one.max_bytes)
    if version >= 5:
        return struct.pack(">iqqi", one.partition, one.offset, one.start, one.max_bytes)
    return struct.pack(">iqi", one.partition, one.offset, one.max_bytes)
