"""Frames of what nodes say to each other, damaged in every way: read, or refused by name, within bounds.

`python -m tests.property.wire.test_fuzzed_controllers FRAMES [SEED]` does as many as one likes.
"""

from __future__ import annotations

import io
import sys
import time
import tracemalloc
from collections import Counter
from dataclasses import fields
from datetime import timedelta
from random import Random
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.serial import entity_writer
from kio.serial._introspect import EntityField, EntityTupleField, classify_field, is_optional

from service.broker.tables import CONTROLLER_KEYS
from service.wire.api import (
    APIS,
    ApiKey,
    _module,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    has_flexible_response_header,
    parse_request_header,
)
from service.wire.catalog import CatalogChange, CommitCatalogRequest, CommitCatalogResponse
from service.wire.errors import MalformedMessage, UnsupportedRequest
from service.wire.fetch import parse_fetch
from service.wire.primitives import MAX_ELEMENTS

_ENDS = (0, 1, -1, 127, -128)


def some(entity: type[Any], random: Random) -> Any:
    """Any value of one of kio's dataclasses."""
    return entity(**{one.name: _value(one, random) for one in fields(entity)})


def _value(one: Any, random: Random) -> Any:
    kind = classify_field(one)
    if is_optional(one) and random.random() < 0.2 and one.metadata.get("tag") is None:
        return None
    if isinstance(kind, EntityField | EntityTupleField):
        if kind.is_array:
            return tuple(some(kind.type_, random) for _ in range(random.randrange(3)))
        return some(kind.type_, random)
    make = _SCALARS[one.metadata["kafka_type"]]
    return tuple(make(random) for _ in range(random.randrange(3))) if kind.is_array else make(random)


def _int(bits: int) -> Any:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return lambda random: random.choice((*_ENDS, low, high, random.randrange(low, high)))


def _bytes(random: Random) -> bytes:
    return random.randbytes(random.randrange(30))


_SCALARS: dict[str, Any] = {
    **{f"int{bits}": _int(bits) for bits in (8, 16, 32, 64)},
    "uint16": lambda random: random.randrange(2**16),
    "bool": lambda random: random.random() < 0.5,
    "string": lambda random: "x" * random.randrange(12),
    "bytes": _bytes,
    "records": _bytes,
    "error_code": lambda random: random.choice(list(ErrorCode)),
    "timedelta_i32": lambda random: timedelta(milliseconds=random.randrange(2**31)),
    "uuid": lambda random: UUID(int=random.getrandbits(128) or 1),
}


def _own(random: Random) -> tuple[bytes, bytes]:
    change = CatalogChange(
        topic_id=UUID(int=random.getrandbits(128) or 1),
        partition=random.randrange(9),
        previous_version=1,
        version=2,
        manifest_key="m" * random.randrange(40),
        leader_epoch=3,
        start_offset=0,
        end_offset=9,
        segments=1,
        size_bytes=7,
    )
    request = CommitCatalogRequest(
        broker_id=1,
        broker_epoch=2,
        commits=(change,) * random.randrange(3),
        forgotten_topics=(change.topic_id,) * random.randrange(2),
    )
    response = CommitCatalogResponse(error_code=ErrorCode.none, results=(0,) * random.randrange(4))
    frame = encode_request(ApiKey.COMMIT_CATALOG, 0, 1, "fuzz", request)[4:]
    return frame, bytes(5) + bytes(encode_response(ApiKey.COMMIT_CATALOG, 0, response))


def pair(key: int, version: int, random: Random) -> tuple[bytes, bytes]:
    """A request frame and a response frame, sound, without their sizes."""
    api = APIS[key]
    if api.is_own:
        return _own(random)
    request = some(getattr(_module(api, version, "request"), f"{api.name}Request"), random)
    response = some(getattr(_module(api, version, "response"), f"{api.name}Response"), random)
    head = io.BytesIO()
    for size, value in ((2, key), (2, version), (4, 1), (2, -1)):
        head.write(value.to_bytes(size, "big", signed=True))
    tags = b"\0" if version >= api.flexible_from else b""
    answer = bytes(4) + (b"\0" if has_flexible_response_header(key, version) else b"")
    return head.getvalue() + tags + _written(request), answer + _written(response)


def _written(message: Any) -> bytes:
    out = io.BytesIO()
    entity_writer(type(message))(out, message)
    return out.getvalue()


def damage(frame: bytes, random: Random, start: int) -> bytes:
    data = bytearray(frame)
    for _ in range(random.randrange(4)):
        if len(data) > start:
            at = random.randrange(start, len(data))
            match random.randrange(5):
                case 0:
                    data[at] = random.randrange(256)
                case 1:
                    data[at] ^= 1 << random.randrange(8)
                case 2:
                    del data[at:]
                case 3:
                    data[at:at] = b"\xff\xff\xff\xff\x07"  # the greatest count there is
                case 4:
                    data[at : at + 4] = b"\x7f\xff\xff\xff"
    return bytes(data)


def fuzz(frames: int, seed: int) -> Counter[str]:
    """Read so many damaged frames; what came of them."""
    random = Random(seed)
    kinds = [
        (key, version)
        for key in sorted(CONTROLLER_KEYS)
        for version in range(APIS[key].min_version, APIS[key].max_version + 1)
    ]
    seen: Counter[str] = Counter()
    sound: tuple[bytes, bytes] = b"", b""
    key = version = silent = 0
    for number in range(frames // 2):
        if number % 8 == 0:
            key, version = kinds[(number // 8) % len(kinds)]
            sound = pair(key, version, random)
        view = memoryview(bytearray(damage(sound[0], random, 4)))
        try:
            header = parse_request_header(view)
            if header.api_key == ApiKey.FETCH:
                parse_fetch(header.api_version, view, header.body, MAX_ELEMENTS)
            else:
                decode_request(header, view)
            seen["requests read"] += 1
        except (MalformedMessage, UnsupportedRequest) as e:
            seen["requests refused"] += 1
            silent += not str(e)
        try:
            decode_response(key, version, memoryview(damage(sound[1], random, 4)))
            seen["answers read"] += 1
        except MalformedMessage as e:
            seen["answers refused"] += 1
            silent += not str(e)
    assert not silent, "refused without a word"
    return seen


def test_damaged_frames_are_read_or_refused_by_name_and_cost_little() -> None:
    fuzz(2_000, 1)  # codecs are compiled, modules loaded
    tracemalloc.start()
    try:
        seen = fuzz(6_000, 14)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert min(seen.values()) > 300, seen
    assert peak < 8 << 20


if __name__ == "__main__":
    began = time.monotonic()
    found = fuzz(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    print(dict(found), f"{time.monotonic() - began:.1f} s")
