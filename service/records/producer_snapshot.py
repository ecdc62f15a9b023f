"""Codec of producer snapshots, Kafka's `ProducerSnapshot` version 1. [P]

    i16 version = 1   u32 crc32c of all bytes after it   i32 number of entries
    each: i64 producer id   i16 epoch   i32 last sequence   i64 last offset   i32 offset delta   i64 timestamp
          i32 coordinator epoch   i64 first offset of the open transaction (-1: none)

A log writes one at the end of each segment, and a segment object contains it. So the state of producers,
with their open transactions, is known there without a read of the log.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from crc32c import crc32c

from service.base.errors import CorruptionError
from service.base.types import Buffer

VERSION: Final = 1
_HEAD: Final = struct.Struct(">hIi")
_COUNT: Final = struct.Struct(">i")
_ENTRY: Final = struct.Struct(">qhiqiqiq")
_CRC_FROM: Final = 6


class ProducerRow(NamedTuple):
    """One producer. Offsets are inclusive, times ms; negative numbers stand for none."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_offset: int
    last_offset_delta: int
    last_timestamp: int
    coordinator_epoch: int
    txn_first_offset: int


def encode_rows(rows: Iterable[ProducerRow]) -> bytes:
    """Return a snapshot of these producers.

    >>> encode_rows([]).hex()
    '000148674bc700000000'
    """
    packed = [_ENTRY.pack(*row) for row in rows]
    body = _COUNT.pack(len(packed)) + b"".join(packed)
    return _HEAD.pack(VERSION, crc32c(body), len(packed)) + body[_COUNT.size :]


def decode_rows(data: Buffer) -> list[ProducerRow]:
    """Parse the producers of a snapshot; `CorruptionError` if version, length or checksum is wrong."""
    if len(data) < _HEAD.size:
        raise CorruptionError(f"producer snapshot of {len(data)} bytes")
    version, crc, count = _HEAD.unpack_from(data)
    if version != VERSION:
        raise CorruptionError(f"producer snapshot of version {version}, not {VERSION}")
    if count < 0 or len(data) != _HEAD.size + count * _ENTRY.size:
        raise CorruptionError(f"producer snapshot of {len(data)} bytes cannot hold {count} entries")
    if crc32c(memoryview(data)[_CRC_FROM:]) != crc:
        raise CorruptionError("producer snapshot with a wrong checksum")
    return [ProducerRow._make(fields) for fields in _ENTRY.iter_unpack(memoryview(data)[_HEAD.size :])]
