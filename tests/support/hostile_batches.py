"""Batches that no client should write, and a model of what an erasure leaves of them: Kafka's format written
out once more, with other libraries' codecs, and nothing of what it tests."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterable, Sequence
from random import Random
from typing import Final, NamedTuple

import crc32c
import lz4.frame
import snappy  # type: ignore[import-untyped]
import zstandard

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
SIZE: Final = 61
CONTROL: Final = 0x20
STAMPED: Final = 0x08
KEYS: Final = (None, b"", b"gone", b"gone too", b"stays", b"k" * 31, b"k" * 32, b"gone" * 20)
GONE: Final = (b"gone", b"gone too", b"gone" * 20, b"")
TIMES: Final = (0, 1_700_000_000_000, -1, -9, 2**63 - 1, -(2**63))
DELTAS: Final = (0, 0, 1, 7, -1, 64, 8191, -8192, 2**31, 2**63 - 1, -(2**63))
LONG: Final = (2**31 - 1, -2, 1 << 20, 3, 1, 0)
"""What a length claims to be where it lies."""


class Fields(NamedTuple):
    """The header of a batch."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    sequence: int
    record_count: int


class Read(NamedTuple):
    """A record, and all of its bytes."""

    data: bytes
    timestamp_delta: int
    offset_delta: int
    key: bytes | None


class Broken(Exception):
    """Records that do not parse."""


# -- encoding


def varint(value: int, size: int = 0) -> bytes:
    """A zigzag varint, of `size` bytes at least: more than it takes are allowed up to five, or ten."""
    left = (value << 1) ^ (value >> 63)
    found = bytearray()
    while left >= 0x80 or len(found) + 1 < size:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    found.append(left)
    return bytes(found)


def some_varint(random: Random, value: int, most: int) -> bytes:
    """Mostly the shortest, sometimes longer, seldom beyond what is allowed."""
    size = random.choice((0, 0, 0, 0, 2, most))
    return varint(value, most + 1 if random.random() < 0.002 else size)


def lied(random: Random, value: int) -> int:
    return random.choice((*LONG, value + 1, value - 1)) if random.random() < 0.004 else value


def some_bytes(random: Random, data: bytes | None) -> bytes:
    size = -1 if data is None else len(data)
    return some_varint(random, lied(random, size), 5) + (data or b"")


def some_record(random: Random, offset_delta: int) -> bytes:
    headers = [
        (random.choice((b"h", b"", b"name")), random.choice((None, b"", b"x")))
        for _ in range(random.choice((0, 0, 1, 3)))
    ]
    body = bytes((random.choice((0, 0, 255)),))
    body += some_varint(random, random.choice(DELTAS if random.random() < 0.1 else DELTAS[:7]), 10)
    body += some_varint(random, lied(random, offset_delta), 5)
    body += some_bytes(random, random.choice(KEYS))
    body += some_bytes(random, random.choice((None, b"", b"v" * random.randrange(40))))
    body += some_varint(random, lied(random, len(headers)), 5)
    for name, value in headers:
        body += some_bytes(random, None if random.random() < 0.002 else name) + some_bytes(random, value)
    return some_varint(random, lied(random, len(body)), 5) + body


def packed(codec: int, data: bytes) -> bytes:
    if codec == 1:
        return gzip.compress(data, 1)
    if codec == 2:
        return bytes(snappy.compress(data))
    if codec == 3:
        return bytes(lz4.frame.compress(data, block_linked=False))
    if codec == 4:
        return zstandard.compress(data)
    return data


def inflated(codec: int, data: bytes) -> bytes:
    """Raises `Broken` for a codec that is none, or data that are not of it."""
    if codec > 4:
        raise Broken
    if codec == 1:
        return gzip.decompress(data)
    if codec == 2:
        if data.startswith(b"\x82SNAPPY\0"):
            found, data = b"", data[16:]
            while data:
                size = int.from_bytes(data[:4])
                found, data = found + bytes(snappy.decompress(data[4 : 4 + size])), data[4 + size :]
            return found
        return bytes(snappy.decompress(data))
    if codec == 3:
        return bytes(lz4.frame.decompress(data))
    if codec == 4:
        return zstandard.ZstdDecompressor().decompress(data, max_output_size=1 << 24)
    return data


def sealed(fields: Fields, payload: bytes) -> bytes:
    """A batch with the right length and checksum."""
    rest = HEADER.pack(*fields)[21:] + payload
    return HEADER.pack(*fields._replace(length=len(payload) + 49, crc=crc32c.crc32c(rest)))[:21] + rest


def some_batch(random: Random, base_offset: int) -> bytes:
    count = random.choice((0, 1, 1, 2, 3, 6))
    deltas = sorted(random.sample(range(count + random.choice((0, 0, 4))), count))
    last = (deltas[-1] if deltas else 0) + random.choice((0, 0, 2))
    payload = b"".join(some_record(random, delta) for delta in deltas)
    if random.random() < 0.01:
        payload = payload[: random.randrange(len(payload) + 1)] + bytes(random.choice((0, 1, 7)))
    codec = random.choice((0, 0, 0, 1, 2, 3, 4))
    claimed = codec if random.random() > 0.004 else random.choice((0, 5, 7))
    attributes = claimed | random.choice((0, 0, 0x10, STAMPED, 0x18, 0x40, 0x80, 0x7F80))
    attributes |= CONTROL if random.random() < 0.03 else 0
    if random.random() < 0.004:
        count, last = random.choice(
            ((2**31 - 1, 2**31 - 1), (count + 1, count + last), (max(count - 1, 0), last))
        )
    producer = random.choice(((-1, -1, -1), (5, 0, 0), (2**63 - 1, 2**15 - 1, 2**31 - 1), (7, 3, 41)))
    fields = Fields(
        base_offset, 0, random.choice((0, 4, 2**31 - 1)), 2, 0, attributes, last,
        random.choice(TIMES if random.random() < 0.1 else TIMES[:4]), random.choice(TIMES), *producer, count,
    )  # fmt: skip
    return sealed(fields, packed(codec, payload))


def some_log(random: Random) -> bytes:
    """One to six batches, with gaps between their offsets."""
    log, offset = b"", random.choice((0, 5, 2**40))
    for _ in range(random.randrange(1, 7)):
        log += (batch := some_batch(random, offset + random.choice((0, 0, 3))))
        fields = fields_of(batch)
        offset = fields.base_offset + fields.last_delta + 1
    return log


# -- the model


def fields_of(batch: bytes) -> Fields:
    return Fields(*HEADER.unpack_from(batch))


def batches_of(log: bytes) -> list[bytes]:
    found: list[bytes] = []
    while log:
        size = fields_of(log).length + 12
        found, log = [*found, log[:size]], log[size:]
    return found


class Reader:
    """Fields of records, one after the other, up to an end."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def varint(self, most: int, bits: int, end: int) -> int:
        found: int = 0
        for number in range(most):
            if self.at >= end:
                raise Broken
            byte = self.data[self.at]
            self.at += 1
            found |= (byte & 0x7F) << 7 * number
            if byte < 0x80:
                found &= 2**bits - 1
                return (found >> 1) ^ -(found & 1)
        raise Broken

    def nullable(self, end: int) -> bytes | None:
        size = self.varint(5, 32, end)
        if size > end - self.at:
            raise Broken
        if size < 0:
            return None
        self.at += size
        return self.data[self.at - size : self.at]

    def record(self) -> Read:
        start = self.at
        size = self.varint(5, 32, len(self.data))
        if size < 1 or size > len(self.data) - self.at:
            raise Broken
        end = self.at + size
        self.at += 1
        timestamp, offset = self.varint(10, 64, end), self.varint(5, 32, end)
        key, _ = self.nullable(end), self.nullable(end)
        headers = self.varint(5, 32, end)
        if headers < 0:
            raise Broken
        for _ in range(headers):
            if self.nullable(end) is None:
                raise Broken
            self.nullable(end)
        if self.at != end:
            raise Broken
        return Read(self.data[start:end], timestamp, offset, key)


def records_in(batch: bytes) -> list[Read]:
    """All records of a batch, or `Broken`."""
    fields = fields_of(batch)
    reader = Reader(inflated(fields.attributes & 7, batch[SIZE:]))
    found = [reader.record() for _ in range(fields.record_count)]
    if reader.at != len(reader.data):
        raise Broken
    return found


def time_of(fields: Fields, record: Read) -> int:
    """Raises `Broken` where the sum does not fit 64 bits."""
    found = fields.base_timestamp + record.timestamp_delta
    if not -(2**63) <= found < 2**63:
        raise Broken
    return fields.max_timestamp if fields.attributes & STAMPED else found


def judged(batch: bytes) -> list[tuple[Read, int]]:
    """The records of a batch with their times, or `Broken`; their offsets rise within the batch."""
    fields, before = fields_of(batch), -1
    found: list[tuple[Read, int]] = []
    for record in records_in(batch):
        if not before < record.offset_delta <= fields.last_delta:
            raise Broken
        before = record.offset_delta
        found.append((record, time_of(fields, record)))
    return found


def left_of(
    batch: bytes, keys: Sequence[bytes], end_offset: int, before_ms: int
) -> tuple[Fields, bytes, int]:
    """What an erasure leaves of a batch: its header, whose length and checksum do not count, its records,
    inflated, and how many went."""
    fields = fields_of(batch)
    if fields.attributes & CONTROL or not fields.record_count or fields.base_offset >= end_offset:
        return fields, batch[SIZE:], 0
    records = judged(batch)
    stays = [
        (record, time)
        for record, time in records
        if record.key not in keys
        or fields.base_offset + record.offset_delta >= end_offset
        or (before_ms >= 0 and not 0 <= time < before_ms)
    ]
    if len(stays) == len(records):
        return fields, batch[SIZE:], 0
    gone = len(records) - len(stays)
    if not stays:
        kept = fields.attributes & 0x38
        return fields._replace(attributes=kept, base_timestamp=-1, record_count=0), b"", gone
    newest = fields.max_timestamp
    if not fields.attributes & STAMPED:
        newest = max(-1, *(time for _, time in stays))
    payload = b"".join(record.data for record, _ in stays)
    return fields._replace(max_timestamp=newest, record_count=len(stays)), payload, gone


def keys_of(batches: Iterable[bytes]) -> tuple[list[bytes], bool]:
    """The keys that readers find in batches that are not of control, and whether all of those parse."""
    keys, is_sound = [], True
    for batch in batches:
        if fields_of(batch).attributes & CONTROL:
            continue
        try:
            keys += [record.key for record in records_in(batch) if record.key is not None]
        except Exception:  # `Broken`, or what a codec of another library raises
            is_sound = False
    return keys, is_sound
