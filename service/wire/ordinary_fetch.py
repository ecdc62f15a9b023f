"""Encoder of most responses to consumers without a session: one topic, no errors, nothing aborted. [P]

A fetch of a megabyte evicts the processor's caches, so each call costs several times what it costs in a loop.
The bytes are those of `wire/fetch.py`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from service.wire.fetch import RecordsPart, write_topic_key
from service.wire.primitives import write_uvarint
from service.wire.produce import TopicKey

_HEAD = struct.Struct(">iibihib")  # size, correlation id, tags, throttle, error, session, topics
_SIZE_AND_CORRELATION = struct.Struct(">ii")
_RESULT = struct.Struct(">ihqqqbi")  # up to the preferred read replica


class OrdinaryResult(NamedTuple):
    """A partition of a response without an error, aborted transactions or tagged fields."""

    partition: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    records: Sequence[RecordsPart]
    size: int
    """of `records` in bytes"""


def ordinary_head(version: int, topic: TopicKey, partitions: int) -> bytes:
    """Return the beginning of the response with so many results of one topic, fewer than 127, in a flexible
    version."""
    out = bytearray(_HEAD.pack(0, 0, 0, 0, 0, 0, 2))
    write_topic_key(out, version, topic)
    out.append(partitions + 1)
    return bytes(out)


def encode_ordinary_response(
    head_of_all: bytes, correlation_id: int, results: Sequence[OrdinaryResult], *, is_committed: bool
) -> list[RecordsPart]:
    """Return what `encode_fetch_response` does for these results; `head_of_all`: their `ordinary_head`."""
    out = bytearray(head_of_all)
    head, size = out, 0
    sent: list[RecordsPart] = [out]
    for index, high_watermark, stable, start, records, records_size in results:
        out += _RESULT.pack(index, 0, high_watermark, stable, start, is_committed, -1)
        write_uvarint(out, records_size + 1)
        if records_size:
            size += len(out) + records_size
            sent.extend(records)
            out = bytearray()
            sent.append(out)
        out.append(0)
    out += b"\0\0"
    _SIZE_AND_CORRELATION.pack_into(head, 0, size + len(out) - 4, correlation_id)
    return sent
