"""Codec of requests and responses: headers, and canonical messages in every served version. [P]

A canonical message is kio's dataclass of the newest served version: get its classes with
`request_module(api)` and `response_module(api)`. `decode_request` and `encode_response` translate every
other served version by field name.

`apis` lists the APIs. `shapes` converts between versions whose difference is more than a mapping of fields.
Special cases:

- The canonical messages of some APIs are Firn's own (`Api.canonical`): Metadata 8-10 carry the cluster's
  authorized operations, which the newest version lacks; OffsetCommit and OffsetFetch identify topics by name
  or by id, depending on the version.
- ApiVersions: the response header never has tagged fields, and the response to an unknown version is of
  version 0 (KIP-511).
- Produce and Fetch identify topics by name or by id, depending on the version: see `produce` and `fetch`.

A response field that an older version lacks is dropped silently: Kafka's handlers leave such fields unset for
old clients. A request (of Firn's own client) that would lose a value that matters raises `ValueError`.
Source: Kafka ``ApiKeys``, ``RequestHeader``, ``ApiMessageType`` and the 4.3 message schemas; KIP-482,
KIP-511, KIP-893.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
from importlib import import_module
from typing import Any, NamedTuple

from service.base.types import Buffer
from service.wire import frames
from service.wire.apis import APIS, Api, ApiKey
from service.wire.errors import MalformedMessage, UnsupportedRequest
from service.wire.primitives import (
    MAX_ELEMENTS,
    Cursor,
    Encoded,
    Sink,
    text_of,
    write_nullable_string,
)
from service.wire.schema import (
    Codec,
    Encoder,
    Steps,
    compile_steps,
    dropped_fields,
    element_encoder,
    millis,
)

__all__ = [
    "APIS",
    "Api",
    "ApiKey",
    "RequestHeader",
    "decode_as_is",
    "decode_as_is_steps",
    "decode_request",
    "decode_response",
    "encode_request",
    "encode_response",
    "millis",
    "parse_request_header",
    "request_module",
    "response_frame",
    "response_frame_as_is",
    "response_module",
    "unsupported_api_versions_frame",
]


_HEADER = struct.Struct(">hhih")
_REPEATED_BYTES = 200
"""Longest request body that is cached. It bounds the array elements of a cached message, too."""
_SIZE_AND_CORRELATION = struct.Struct(">ii")
_CORRELATION_AND_ERROR = struct.Struct(">ih")
_UNSUPPORTED_VERSION = 35


class RequestHeader(NamedTuple):
    """Header of a request. `body` is the position of its body in the frame. A null client id is read as the
    empty one, as in Kafka.
    """

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str
    body: int


@contextmanager
def _bounded() -> Iterator[None]:
    try:
        yield
    except struct.error as e:
        raise MalformedMessage(str(e)) from e


def parse_request_header(frame: Buffer) -> RequestHeader:
    """Return the header of the request in `frame` (header versions 1 and 2).

    Raises `MalformedMessage`, and `UnsupportedRequest` for an unknown key or version. ApiVersions is accepted
    in any version: `unsupported_api_versions_frame` is the response to an unknown one.
    """
    try:
        key, version, correlation_id, id_size = _HEADER.unpack_from(frame)
    except struct.error:
        raise MalformedMessage(f"request of {len(frame)} bytes has no header") from None
    api = APIS.get(key)
    if api is None:
        raise UnsupportedRequest(f"unknown API key {key}")
    if not api.min_version <= version <= api.max_version and key != ApiKey.API_VERSIONS:
        raise UnsupportedRequest(f"{api.name} version {version} is not served")
    position = _HEADER.size
    client_id = ""
    if id_size > 0:
        stop = position + id_size
        if stop > len(frame):
            raise MalformedMessage(f"client id of {id_size} bytes in a request of {len(frame)}")
        client_id = text_of(frame[position:stop])
        position = stop
    if version >= api.flexible_from:
        if position < len(frame) and frame[position] == 0:
            position += 1
        else:
            cursor = Cursor(frame, position)
            with _bounded():
                cursor.skip_tagged_fields()
            position = cursor.position
    return RequestHeader(key, version, correlation_id, client_id, position)


def is_served(header: RequestHeader) -> bool:
    """Return whether the version is served; false only for ApiVersions of an unknown version."""
    api = APIS[header.api_key]
    return api.min_version <= header.api_version <= api.max_version


def _module(api: Api, version: int, kind: str) -> Any:
    if api.is_own or (api.adds_tags and version == api.max_version):
        return import_module(f"{__package__}.{api.canonical}")
    return import_module(f"kio.schema.{api.key.name.lower()}.v{version}.{kind}")


@cache
def request_module(key: int) -> Any:
    """Return the module with the canonical request's dataclasses: kio's, unless the row names another.

    The result is `Any` on purpose: kio's phantom types (``i32``, ``TopicName``) would make every plain
    integer and string of a handler a type error.
    """
    return _canonical_module(APIS[key], APIS[key].max_version, "request")


@cache
def response_module(key: int) -> Any:
    """Return the module with the canonical response's dataclasses, for example
    ``response_module(ApiKey.METADATA).MetadataResponse``.
    """
    return _canonical_module(APIS[key], APIS[key].max_version, "response")


def _canonical_module(api: Api, version: int, kind: str) -> Any:
    if api.canonical and version == api.max_version:
        return import_module(f"{__package__}.{api.canonical}")
    return _module(api, version, kind)


@cache
def _request_codec(key: int, version: int, canonical_version: int) -> Codec:
    api = APIS[key]
    return compile_steps(
        _request_class(key, version),
        getattr(_canonical_module(api, canonical_version, "request"), f"{api.name}Request"),
    )


@cache
def _response_codec(key: int, version: int) -> Codec:
    api, codec = APIS[key], compile_steps(*_response_classes(key, version))
    return _quick(api.quick).with_writers(codec, version) if api.quick else codec


@cache
def _quick(name: str) -> Any:
    return import_module(f"{__package__}.{name}")


def _response_classes(key: int, version: int) -> tuple[type[Any], type[Any]]:
    api = APIS[key]
    name = f"{api.name}Response"
    own = getattr(_module(api, version, "response"), name)
    return own, own if version < api.own_response_before else getattr(response_module(key), name)


@cache
def _element_encoder(key: int, version: int, path: tuple[str, ...]) -> Encoder:
    return element_encoder(*_response_classes(key, version), path)


def encode_element(key: int, version: int, path: tuple[str, ...], element: Any) -> Encoded:
    """Encode one element of a response's array. The result may be used in any number of responses.

    `path`: names of nested arrays, outermost first.
    """
    out = bytearray()
    _element_encoder(key, version, path)(out, element)
    return Encoded(out)


def _canonical_version(api: Api, version: int) -> int:
    """Return the version to whose class a request codec of `version` maps fields."""
    return version if version < api.own_shape_before else api.max_version


def decode_request(header: RequestHeader, frame: Buffer, most_elements: int = MAX_ELEMENTS) -> Any:
    """Return the canonical request in `frame`. Bytes after the body are ignored, as in Kafka.

    Raises `MalformedMessage`, and `ManyElements` if it has more than `most_elements` array elements.
    """
    codec = _codec_of(header)
    with _bounded():
        message = codec.read(Cursor(frame, header.body, most_elements))
    return _upgraded(header, message)


def read_request(header: RequestHeader, frame: Buffer, most_elements: int = MAX_ELEMENTS) -> Any:
    """Do what `decode_request` does, for callers that only read fields: a hand-written reader (`Api.quick`)
    returns a class of its own with the same fields.
    """
    api = APIS[header.api_key]
    if api.is_repeated and len(frame) - header.body <= min(_REPEATED_BYTES, most_elements):
        return _decode_cached(header.api_key, header.api_version, bytes(frame[header.body :]))
    read = _quick(api.quick).reader(header.api_version) if api.quick else None
    if read is None:
        return decode_request(header, frame, most_elements)
    with _bounded():
        return read(Cursor(frame, header.body, most_elements))


@lru_cache(maxsize=2048)
def _decode_cached(key: int, version: int, body: bytes) -> Any:
    """Return the request in `body`. Messages are immutable, so equal bytes may share one."""
    return decode_request(RequestHeader(key, version, 0, "", 0), body)


def decode_request_steps(header: RequestHeader, frame: Buffer) -> Steps:
    """Do what `decode_request` does, in steps."""
    codec, cursor = _codec_of(header), Cursor(frame, header.body)
    with _bounded():
        if codec.read_steps is None:
            message = codec.read(cursor)
        else:
            message = yield from codec.read_steps(cursor)
    return _upgraded(header, message)


def _codec_of(header: RequestHeader) -> Codec:
    key, version = header.api_key, header.api_version
    api = APIS[key]
    if api.by_hand_before and version != api.max_version:
        # Fetch 13 and 14, too: the canonical class has their replica id elsewhere.
        raise ValueError(f"{api.name} version {version} has its own codec")
    return _request_codec(key, version, _canonical_version(api, version))


def decode_as_is(header: RequestHeader, frame: Buffer, most_elements: int = MAX_ELEMENTS) -> Any:
    """Return kio's message of the request's own version, for APIs whose versions differ in more than fields.

    Raises what `decode_request` raises.
    """
    codec = _request_codec(header.api_key, header.api_version, header.api_version)
    with _bounded():
        return codec.read(Cursor(frame, header.body, most_elements))


def decode_as_is_steps(header: RequestHeader, frame: Buffer) -> Steps:
    """Do what `decode_as_is` does, in steps."""
    codec = _request_codec(header.api_key, header.api_version, header.api_version)
    cursor = Cursor(frame, header.body)
    with _bounded():
        if codec.read_steps is None:
            return codec.read(cursor)
        return (yield from codec.read_steps(cursor))


def own_response_class(key: int, version: int) -> type[Any]:
    """Return kio's class of the response in the version's own shape, for `response_frame_as_is`."""
    return _response_classes(key, version)[0]


@cache
def _as_is_codec(key: int, version: int) -> Codec:
    own, _ = _response_classes(key, version)
    return compile_steps(own, own)


def response_frame_as_is(header: RequestHeader, message: Any) -> bytearray:
    """Do what `response_frame` does, for kio's message of the header's own version."""
    out = _head(header.api_key, header.api_version)
    _as_is_codec(header.api_key, header.api_version).write(out, message)
    _SIZE_AND_CORRELATION.pack_into(out, 0, len(out) - 4, header.correlation_id)
    return out


def _upgraded(header: RequestHeader, message: Any) -> Any:
    upgrade = APIS[header.api_key].upgrade
    return message if upgrade is None else upgrade(message, header.api_version)


def encode_response(key: int, version: int, message: Any) -> bytearray:
    """Return the body of the canonical response `message` in `version`."""
    out = bytearray()
    _response_codec(key, version).write(out, _downgrade_response(key, version, message))
    return out


def _downgrade_response(key: int, version: int, message: Any) -> Any:
    downgrade = APIS[key].downgrade_response
    return message if downgrade is None else downgrade(message, version)


def has_flexible_response_header(key: int, version: int) -> bool:
    """Return whether the response header ends in tagged fields; never for ApiVersions (KIP-511)."""
    return version >= APIS[key].flexible_from and key != ApiKey.API_VERSIONS


def response_frame(header: RequestHeader, message: Any) -> bytearray:
    """Return the whole response to `header`: size, response header, body."""
    return _frame_response(header.api_key, header.api_version, header.correlation_id, message)


def response_steps(header: RequestHeader, message: Any) -> Steps:
    """Do what `response_frame` does, in steps. Returns the frame as a list of parts."""
    key, version = header.api_key, header.api_version
    sink = Sink(_head(key, version))
    head, codec = sink.out, _response_codec(key, version)
    message = _downgrade_response(key, version, message)
    if codec.write_steps is None:
        codec.write(sink.out, message)
    else:
        yield from codec.write_steps(sink, message)
    size = sum(map(len, sink.parts))
    _SIZE_AND_CORRELATION.pack_into(head, 0, size - 4, header.correlation_id)
    return sink.parts


def _head(key: int, version: int) -> bytearray:
    """Return zeros for the size, the correlation id and the response header's tagged fields."""
    return bytearray(_SIZE_AND_CORRELATION.size + has_flexible_response_header(key, version))


def _frame_response(key: int, version: int, correlation_id: int, message: Any) -> bytearray:
    out = _head(key, version)
    if APIS[key].is_repeated and _is_brief(message):
        out += _encode_cached(key, version, message)
    else:
        _response_codec(key, version).write(out, _downgrade_response(key, version, message))
    _SIZE_AND_CORRELATION.pack_into(out, 0, len(out) - 4, correlation_id)
    return out


def _is_brief(message: Any) -> bool:
    """Return whether a heartbeat response may be cached: no assignment, no error text, a short member id."""
    return (
        getattr(message, "assignment", None) is None
        and getattr(message, "error_message", None) is None
        and len(getattr(message, "member_id", None) or "") <= _REPEATED_BYTES
    )


@lru_cache(maxsize=2048)
def _encode_cached(key: int, version: int, message: Any) -> bytes:
    """Return the body of a response that many heartbeats have in common."""
    return bytes(encode_response(key, version, message))


def unsupported_api_versions_frame(header: RequestHeader) -> bytearray:
    """Return the response, in version 0, to ApiVersions of an unknown version (KIP-511). It names the served
    versions of ApiVersions.
    """
    module = response_module(ApiKey.API_VERSIONS)
    api = APIS[ApiKey.API_VERSIONS]
    message = module.ApiVersionsResponse(
        error_code=_UNSUPPORTED_VERSION,
        api_keys=(
            module.ApiVersion(api_key=api.key, min_version=api.min_version, max_version=api.max_version),
        ),
        throttle_time=0,
    )
    return _frame_response(ApiKey.API_VERSIONS, 0, header.correlation_id, message)


def encode_request(key: int, version: int, correlation_id: int, client_id: str, message: Any) -> bytes:
    """Return a whole request frame, size included, for a canonical message or one of `version`'s own class.

    Raises `ValueError` if `version` is not known, or cannot carry a value of `message`.
    """
    api = APIS[key]
    if not api.min_version <= version <= api.max_version:
        raise ValueError(f"{api.name} has no version {version}")
    if version < api.by_hand_before:
        raise ValueError(f"{api.name} version {version} has its own codec")
    shape = _canonical_version(api, version)
    if version < api.max_version and type(message) is _request_class(key, version):
        shape = version  # the message is of this version's own class already
    else:
        message = _downgrade_request(api, version, message)
    out = bytearray(struct.pack(">hhi", key, version, correlation_id))
    write_nullable_string(out, client_id)
    if version >= api.flexible_from:
        out.append(0)
    _request_codec(key, version, shape).write(out, message)
    return frames.frame(out)


def _request_class(key: int, version: int) -> type[Any]:
    """Return the class of the version's own request."""
    own: type[Any] = getattr(_module(APIS[key], version, "request"), f"{APIS[key].name}Request")
    return own


def _downgrade_request(api: Api, version: int, message: Any) -> Any:
    if version == api.max_version and not api.canonical and api.downgrade is None:
        return message  # of the version's own class
    canonical = type(message)
    if api.downgrade is not None:
        message = api.downgrade(message, version)
    if type(message) is not canonical:
        return message
    classes: tuple[Any, Any] = _request_class(api.key, version), canonical
    for name, default in dropped_fields(*classes).items():
        if getattr(message, name) != default and name not in api.ignorable:
            raise ValueError(f"{api.name} version {version} has no {name}")
    return message


def decode_response(
    key: int, version: int, frame: Buffer, most_elements: int = MAX_ELEMENTS
) -> tuple[int, Any]:
    """Return (correlation id, canonical response) of a response frame without its size.

    Raises `MalformedMessage`, and `ManyElements` if it has more than `most_elements` array elements.
    """
    cursor = Cursor(frame, 0, most_elements)
    with _bounded():
        correlation_id = _response_head(cursor, key, version)
        message = _response_codec(key, version).read(cursor)
    upgrade = APIS[key].upgrade_response
    return correlation_id, message if upgrade is None else upgrade(message, version)


def decode_response_steps(key: int, version: int, frame: Buffer) -> Steps:
    """Do what `decode_response` does, in steps. Returns the canonical response alone."""
    cursor, codec = Cursor(frame), _response_codec(key, version)
    with _bounded():
        _response_head(cursor, key, version)
        if codec.read_steps is None:
            message = codec.read(cursor)
        else:
            message = yield from codec.read_steps(cursor)
    upgrade = APIS[key].upgrade_response
    return message if upgrade is None else upgrade(message, version)


def _response_head(cursor: Cursor, key: int, version: int) -> int:
    """Return the correlation id of the response at `cursor`, and move the cursor to the body."""
    correlation_id = cursor.int32()
    if has_flexible_response_header(key, version):
        cursor.skip_tagged_fields()
    return correlation_id


def api_versions_request() -> Any:
    """Return the request with which each of Firn's clients begins a connection."""
    return request_module(ApiKey.API_VERSIONS).ApiVersionsRequest(
        client_software_name="firn", client_software_version="0"
    )


def common_ranges(response: Any) -> dict[int, tuple[int, int]]:
    """Return, by API key, the oldest and newest version that this node and the sender of `response`, a
    canonical ApiVersions response, have in common.
    """
    common = {}
    for served in response.api_keys:
        ours = APIS.get(served.api_key)
        if ours is not None:
            oldest = max(ours.min_version, served.min_version)
            newest = min(ours.max_version, served.max_version)
            if newest >= oldest:
                common[int(ours.key)] = (oldest, newest)
    return common


def refused_api_versions(frame: Buffer) -> int | None:
    """Return the newest version of ApiVersions that a broker serves, if `frame` refuses the requested one
    with UNSUPPORTED_VERSION; else None. Such a response is always of version 0 (KIP-511).
    """
    if len(frame) < _CORRELATION_AND_ERROR.size:
        return None
    if _CORRELATION_AND_ERROR.unpack_from(frame)[1] != _UNSUPPORTED_VERSION:
        return None
    keys = decode_response(ApiKey.API_VERSIONS, 0, frame)[1].api_keys
    return min((key.max_version for key in keys if key.api_key == ApiKey.API_VERSIONS), default=0)
