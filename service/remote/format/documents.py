"""JSON documents of the bucket: written, packed, and read within bounds. [P]

Each is UTF-8 with a `format` and a `format_version`: 2 is written, 1 is read. Manifests and their pages are
packed, as one gzip member in version 2 and as one zstd frame in version 1. Small documents, which are
replaced in place, are sealed: their last member is the checksum of all bytes before it.

>>> data = pack({"format": "f", "format_version": 2})
>>> open_document(unpack(data, "it"), "f").version
2
>>> data = seal({"format": "f", "format_version": 2})
>>> data
b'{"format":"f","format_version":2,"document_crc32c":3788351883}'
>>> open_sealed(data, "f", frozenset()).version
2
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import zstandard
from crc32c import crc32c

from service.base.errors import CorruptionError, UnknownVersion
from service.remote.format.fields import MAX_INTEGER, parse_json_object
from service.remote.format.keys import MAX_OFFSET

FORMAT_VERSION: Final = 2
MAX_STORED_BYTES: Final = 16 << 20
MAX_INFLATED_BYTES: Final = 64 << 20
MAX_WINDOW_BYTES: Final = 128 << 20

CHECKSUM: Final = "document_crc32c"
"""The last member of a sealed document: crc32c of every byte in front of the comma before it."""
_ENVELOPE: Final = frozenset(("format", "format_version"))
_SEAL: Final = f',"{CHECKSUM}":'.encode()

_GZIP_MAGIC: Final = b"\x1f\x8b"
_GZIP_HEAD: Final = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
"""Deflate, no flags, no mtime, no operating system: the same document gives the same bytes."""
_GZIP: Final = 16 + zlib.MAX_WBITS
_LEVEL: Final = 2
"""A manifest of 1,024 segments takes 1 ms more than by zstd; level 6 would save a sixth of it for 4 ms."""


class Document(NamedTuple):
    """A parsed document of version `version`."""

    fields: dict[str, Any]
    version: int

    @property
    def most(self) -> int:
        """Greatest integer of the version: in version 2 one that every JSON parser carries exactly."""
        return MAX_OFFSET if self.version == 1 else MAX_INTEGER


_encode: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
_ROWS: Final = 32
"""Elements of a list that are encoded at a time: the encoder holds the GIL, 5 us for each segment."""


def dump(document: Mapping[str, Any]) -> bytes:
    """Return the document's bytes, the same every time. Other threads run between parts of long lists."""
    if not any(_is_long(value) for value in document.values()):
        return _encode(document).encode()
    members = (f"{_encode(name)}:{_dump_value(value)}" for name, value in document.items())
    return f"{{{','.join(members)}}}".encode()


def _is_long(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) > _ROWS


def _dump_value(value: Any) -> str:
    if not _is_long(value):
        return _encode(value)
    parts = (_encode(value[at : at + _ROWS])[1:-1] for at in range(0, len(value), _ROWS))
    return f"[{','.join(parts)}]"


def seal(document: Mapping[str, Any]) -> bytes:
    """Return the document's bytes with their checksum at the end."""
    return _sealed(dump(document)[:-1])


def seal_rows(document: Mapping[str, Any], name: str, rows: Iterable[Mapping[str, Any]]) -> bytes:
    """Return `document`, sealed, with the list `rows` as its last member.

    Rows are encoded one by one, because the JSON encoder holds the GIL.

    >>> seal_rows({"format": "f"}, "rows", [{"a": 1}, {}]) == seal({"format": "f", "rows": [{"a": 1}, {}]})
    True
    """
    return _sealed(dump({**document, name: []})[:-2] + b",".join(map(dump, rows)) + b"]")


def _sealed(body: bytes) -> bytes:
    """Seal `body`, a document without its last brace."""
    return b"%b%b%d}" % (body, _SEAL, crc32c(body))


def pack(document: Mapping[str, Any]) -> bytes:
    """Return the document's bytes as one gzip member. Raises `ValueError` when it exceeds what readers
    accept."""
    body = dump(document)
    if len(body) > MAX_INFLATED_BYTES:
        raise ValueError(f"{document['format']} of {len(body)} bytes, at most {MAX_INFLATED_BYTES} fit")
    data = gzip(body)
    if len(data) > MAX_STORED_BYTES:
        raise ValueError(
            f"{document['format']} compresses to {len(data)} bytes, at most {MAX_STORED_BYTES} fit"
        )
    return data


def gzip(body: bytes) -> bytes:
    """Return `body` as one gzip member; the same bytes for the same body, as long as zlib's version is the
    same."""
    deflate = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    check = zlib.crc32(body).to_bytes(4, "little") + len(body).to_bytes(4, "little")
    return b"".join((_GZIP_HEAD, deflate.compress(body), deflate.flush(), check))


def unpack(data: bytes, what: str) -> bytes:
    """Return the packed document, its checksum verified. Raises `CorruptionError`, which names `what`.

    Bytes after the document are an error, too.
    """
    if len(data) > MAX_STORED_BYTES:
        raise CorruptionError(f"{what}: {len(data)} bytes, at most {MAX_STORED_BYTES} are read")
    return gunzip(data, what) if data[:2] == _GZIP_MAGIC else _unzstd(data, what)


def gunzip(data: bytes, what: str, most: int = MAX_INFLATED_BYTES) -> bytes:
    """Inflate one gzip member to at most `most` bytes. Raises `CorruptionError`, which names `what`."""
    # zlib compares checksum and length at the end; until then at most the bound is held.
    inflate = zlib.decompressobj(_GZIP)
    try:
        body = inflate.decompress(data, most + 1)
    except zlib.error as e:
        raise CorruptionError(f"{what}: {e}") from e
    if len(body) > most:
        raise CorruptionError(f"{what}: inflates beyond {most} bytes")
    if not inflate.eof or inflate.unused_data:
        raise CorruptionError(f"{what}: not one whole gzip member")
    return body


def _unzstd(data: bytes, what: str) -> bytes:
    """Inflate one zstd frame with content size and checksum, and nothing after it."""
    try:
        frame = zstandard.get_frame_parameters(data)
        size = frame.content_size
        if not frame.has_checksum or not 0 < size <= MAX_INFLATED_BYTES:
            raise CorruptionError(f"{what}: zstd frame of {size} bytes, checksum {frame.has_checksum}")
        # Allocates the claimed size, bounded above, and never more; refuses bytes after the frame.
        inflate = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)
        return inflate.decompress(data, allow_extra_data=False)
    except zstandard.ZstdError as e:
        raise CorruptionError(f"{what}: {e}") from e


def open_document(data: bytes, expected_format: str) -> Document:
    """Return `data` as a document of this format, of a known version. Raises `CorruptionError` otherwise."""
    return _checked(parse_json_object(data, expected_format), expected_format)


def _checked(fields: dict[str, Any], expected_format: str) -> Document:
    found, version = fields.get("format"), fields.get("format_version")
    if found != expected_format or type(version) is not int or not 1 <= version <= FORMAT_VERSION:
        raise CorruptionError(
            f"expected {expected_format} 1 to {FORMAT_VERSION}, found {str((found, version))[:120]}"
        )
    return Document(fields, version)


def open_sealed(data: bytes, expected_format: str, known: frozenset[str]) -> Document:
    """Return `data` as a document whose checksum is verified, as `open_document` does.

    Raises `UnknownVersion` where the checksum is right and the version is not known. Documents older than the
    checksum have none, and only the `known` members: any other member is a damaged name of the checksum.
    """
    fields = parse_json_object(data, expected_format)
    if CHECKSUM in fields:
        if data != _sealed(data.rpartition(_SEAL)[0]):
            raise CorruptionError(f"{expected_format}: wrong checksum")
        version = fields.get("format_version")
        if fields.get("format") == expected_format and type(version) is int and version > FORMAT_VERSION:
            raise UnknownVersion(f"{expected_format} {version}, this software knows 1 to {FORMAT_VERSION}")
        return _checked(fields, expected_format)
    document = _checked(fields, expected_format)
    strange = sorted(fields.keys() - known - _ENVELOPE)
    if strange:
        raise CorruptionError(f"{expected_format}: no checksum, and {str(strange)[:120]} in its place")
    return document


def is_damage_of(found: bytes, written: bytes) -> bool:
    """Return whether `found` is `written` with a few bytes changed, and not another process's document.

    >>> is_damage_of(b"incarnation 1", b"incarnation 1"), is_damage_of(b"incarnatiom 1", b"incarnation 1")
    (False, True)
    """
    if len(found) != len(written):
        return False
    return 0 < sum(a != b for a, b in zip(found, written, strict=True)) <= MAX_CHANGED_BYTES


MAX_CHANGED_BYTES: Final = 4
"""Documents of two processes differ in far more: in their incarnations, of 30 random digits, and
checksums."""
