"""Frames of what nodes say to each other, made at random, and damaged in every way."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.serial import entity_writer
from kio.serial._introspect import EntityField, EntityTupleField, classify_field, is_optional

from service.wire.api import (
    APIS,
    ApiKey,
    _module,
    encode_request,
    encode_response,
    has_flexible_response_header,
)
from service.wire.catalog import (
    CatalogChange,
    CatalogErasure,
    CatalogRewrite,
    CommitCatalogRequest,
    CommitCatalogResponse,
    ErasedNote,
    LoadedPartition,
    LoadedTopic,
)
from service.wire.cuts import CutEnd, CutEnds, CutLoss, CutLosses, CutTail, TakeCutRequest, TakeCutResponse
from service.wire.erasures import ErasuresRequest, ErasuresResponse
from service.wire.health import DescribeHealthRequest, DescribeHealthResponse, ToldFinding
from service.wire.rewrites import RewriteRangeRequest, RewriteRangeResponse
from service.wire.sessions import (
    EndSessionsRequest,
    EndSessionsResponse,
    ListSessionsRequest,
    ListSessionsResponse,
    OpenSession,
)

Likely = Mapping[str, Sequence[Any]]
"""What fields of these names have more often than anything else: so that a request gets further."""
NOTHING: Likely = {}
LIKELY = 0.8
COUNTS = (0, 1, 1, 1, 2)

_ENDS = (0, 1, -1, 127, -128)


def some(entity: type[Any], random: Random, likely: Likely = NOTHING) -> Any:
    """Any value of one of kio's dataclasses."""
    return entity(**{one.name: _value(one, random, likely) for one in fields(entity)})


def _value(one: Any, random: Random, likely: Likely) -> Any:
    kind = classify_field(one)
    if one.name in likely and random.random() < LIKELY:
        found = random.choice(likely[one.name])
        return (found,) if kind.is_array else found
    if is_optional(one) and random.random() < 0.2 and one.metadata.get("tag") is None:
        return None
    if isinstance(kind, EntityField | EntityTupleField):
        if kind.is_array:
            return tuple(some(kind.type_, random, likely) for _ in range(random.choice(COUNTS)))
        return some(kind.type_, random, likely)
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
    "datetime_i64": lambda random: datetime.fromtimestamp(random.randrange(2**33), UTC),
    "float64": lambda random: random.choice((0.0, 1.0, -1.0, 1e300, random.random())),
    "bool": lambda random: random.random() < 0.5,
    "string": lambda random: "x" * random.randrange(12),
    "bytes": _bytes,
    "records": _bytes,
    "error_code": lambda random: random.choice(list(ErrorCode)),
    "timedelta_i64": lambda random: timedelta(milliseconds=random.randrange(2**40)),
    "timedelta_i32": lambda random: timedelta(milliseconds=random.randrange(2**31)),
    "uuid": lambda random: UUID(int=random.getrandbits(128) or 1),
}


def _own(key: int, random: Random) -> tuple[bytes, bytes]:
    if key == ApiKey.COMMIT_CATALOG:
        request, response = _catalog(random)
    elif key == ApiKey.DESCRIBE_HEALTH:
        request, response = _health(random)
    elif key == ApiKey.TAKE_CUT:
        request, response = _cut(random)
    elif key == ApiKey.REWRITE_RANGE:
        request, response = _rewrite(random)
    elif key == ApiKey.ERASURES:
        request, response = _erasures(random)
    else:
        request, response = _sessions(key, random)
    frame = encode_request(key, 0, 1, "fuzz", request)[4:]
    return frame, bytes(5) + bytes(encode_response(key, 0, response))


def _catalog(random: Random) -> tuple[Any, Any]:
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
        rewrites=(_rewrite_change(random),) * random.randrange(3),
        erased=(_erased(random),) * random.randrange(3),
        erasures=(_erasure_change(random),) * random.randrange(3),
    )
    response = CommitCatalogResponse(
        error_code=ErrorCode.none,
        results=(0,) * random.randrange(4),
        rewrite_answers=(1,) * random.randrange(3),
        error_message=random.choice((None, "", "why")),
    )
    return request, response


def _id(random: Random) -> UUID | None:
    return random.choice((None, UUID(int=random.getrandbits(128) or 1)))


def _rewrite_change(random: Random) -> CatalogRewrite:
    number = _int(64)
    return CatalogRewrite(
        topic_id=_id(random), partition=random.randrange(9), op=random.randrange(-1, 3),
        rewrite_id=_id(random), base_offset=number(random), last_offset=number(random),
        kind=random.randrange(-1, 4), leader_epoch=3, started_ms=number(random),
    )  # fmt: skip


def _erased(random: Random) -> ErasedNote:
    one = LoadedPartition(partition=random.randrange(9), leader_epoch=random.randrange(-1, 4))
    topic = LoadedTopic(topic_id=_id(random), partitions=(one,) * random.randrange(3))
    return ErasedNote(
        erasure_id=_id(random), broker_id=random.randrange(-2, 3), topics=(topic,) * random.randrange(3)
    )


def _erasure_change(random: Random) -> CatalogErasure:
    number = _int(64)
    return CatalogErasure(
        op=random.randrange(-1, 4), id=_id(random), key="k" * random.randrange(60),
        stored_size=number(random), crc32c=number(random), keys=_int(32)(random),
        topics=(_id(random),) * random.randrange(4), started_ms=number(random), done_ms=number(random),
    )  # fmt: skip


def _rewrite(random: Random) -> tuple[Any, Any]:
    number = _int(64)
    request = RewriteRangeRequest(
        topic_id=_id(random), partition=random.randrange(-1, 9), rewrite_id=_id(random),
        step=random.randrange(-1, 4), kind=random.randrange(-1, 4), base_offset=number(random),
        last_offset=number(random), erasure_id=_id(random), old_keys=("k" * 9,) * random.randrange(4),
        entries=_bytes(random),
    )  # fmt: skip
    response = RewriteRangeResponse(
        error_code=random.choice(list(ErrorCode)), error_message=random.choice((None, "why")),
        leader_epoch=_int(32)(random), version=number(random),
    )  # fmt: skip
    return request, response


def _erasures(random: Random) -> tuple[Any, Any]:
    number = _int(64)
    request = ErasuresRequest(
        op=random.randrange(-1, 6), id=_id(random), order=random.choice((None, _bytes(random))),
        topic_id=_id(random), partition=_int(32)(random), scope=random.randrange(-1, 4),
        from_offset=number(random),
    )  # fmt: skip
    response = ErasuresResponse(
        error_code=random.choice(list(ErrorCode)), document=random.choice((None, "{}")),
        next_offset=number(random),
    )  # fmt: skip
    return request, response


def _sessions(key: int, random: Random) -> tuple[Any, Any]:
    name = "x" * random.randrange(40)
    if key == ApiKey.END_SESSIONS:
        ending = EndSessionsRequest(principal=name, metadata_offset=random.randrange(-9, 2))
        return ending, EndSessionsResponse(error_code=ErrorCode.none, ended=random.randrange(9))
    one = OpenSession(
        connection=random.randrange(9), principal=name, host=name, port=1, listener="L", protocol="SSL",
        client_id=name, idle_ms=7, left_ms=-1,
    )  # fmt: skip
    listing = ListSessionsRequest(principal=random.choice((None, name)), after=random.randrange(-9, 99))
    return listing, ListSessionsResponse(error_code=ErrorCode.none, sessions=(one,) * random.randrange(4))


def _health(random: Random) -> tuple[Any, Any]:
    name = "x" * random.randrange(40)
    one = ToldFinding(
        severity=name, subject=name, since_ms=-1, words=name, meaning=name, action=name, anchor=name
    )
    response = DescribeHealthResponse(error_code=ErrorCode.none, findings=(one,) * random.randrange(4))
    return DescribeHealthRequest(), response


def _cut(random: Random) -> tuple[Any, Any]:
    number = _int(64)
    end = CutEnd(
        partition=random.randrange(9), leader_epoch=1, start=0, end=number(random), stable=9, saved=8,
        saved_high=7, last_epoch=-1, version=number(random), waits=True, is_tailed=False,
    )  # fmt: skip
    tail = CutTail(key="k" * random.randrange(90), size=number(random), footer_position=3, footer_crc=4)
    topic = UUID(int=random.getrandbits(128) or 1)
    loss = CutLoss(partition=random.randrange(9), leader_epoch=2, reaches=number(random))
    request = TakeCutRequest(
        broker_id=1, broker_epoch=2, attempt_id=topic, newest_id=random.choice((None, topic)),
        cut=number(random), step=random.randrange(-2, 6), hold_ms=random.choice((0, 1, 1 << 30)),
        lost=(CutLosses(topic_id=topic, partitions=(loss,) * random.randrange(3)),) * random.randrange(3),
    )  # fmt: skip
    response = TakeCutResponse(
        error_code=random.choice(list(ErrorCode)),
        ends=(CutEnds(topic_id=topic, partitions=(end,) * random.randrange(3)),) * random.randrange(3),
        tails=(tail,) * random.randrange(3),
    )
    return request, response


def pair(key: int, version: int, random: Random) -> tuple[bytes, bytes]:
    """A request frame and a response frame, sound, without their sizes."""
    api = APIS[key]
    if api.is_own:
        return _own(key, random)
    response = some(getattr(_module(api, version, "response"), f"{api.name}Response"), random)
    answer = bytes(4) + (b"\0" if has_flexible_response_header(key, version) else b"")
    return request_frame(key, version, random), answer + _written(response)


def request_frame(key: int, version: int, random: Random, likely: Likely = NOTHING) -> bytes:
    """Encode a request of correlation id 1 without client id, without its size."""
    api = APIS[key]
    if api.is_own:
        return _own(key, random)[0]
    request = some(getattr(_module(api, version, "request"), f"{api.name}Request"), random, likely)
    head = io.BytesIO()
    for size, value in ((2, key), (2, version), (4, 1), (2, -1)):
        head.write(value.to_bytes(size, "big", signed=True))
    tags = b"\0" if version >= api.flexible_from else b""
    return head.getvalue() + tags + _written(request)


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
