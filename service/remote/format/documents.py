"""JSON documents of the bucket: written, packed, and read within bounds. [P]

Each is UTF-8 with a `format` and a `format_version`: 2 is written, 1 is read. Manifests and their pages are
packed, as one gzip member in version 2 and as one zstd frame in version 1.

>>> data = pack({"format": "f", "format_version": 2})
>>> open_document(unpack(data, "it"), "f").version
2
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import zstandard

from service.base.errors import CorruptionError
from service.remote.format.fields import MAX_INTEGER, parse_json_object
from service.remote.format.keys import MAX_OFFSET

FORMAT_VERSION: Final = 2
MAX_STORED_BYTES: Final = 16 << 20
MAX_INFLATED_BYTES: Final = 64 << 20
MAX_WINDOW_BYTES: Final = 128 << 20

_GZIP_MAGIC: Final = b"\x1f\x8b"
_GZIP_HEAD: Final = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
"""Deflate, no flags, no time of change, no operating system: the same document gives the same bytes."""
_GZIP: Final = 16 + zlib.MAX_WBITS
_LEVEL: Final = 2
"""A manifest of 1,024 segments takes 1 ms more than by zstd; level 6 would save a sixth of it for 4 ms."""


class Document(NamedTuple):
    """A parsed document of version `version`."""

    fields: dict[str, Any]
    version: int

    @property
    def most(self) -> int:
        """The greatest integer: in version 2 one that every JSON parser carries exactly."""
        return MAX_OFFSET if self.version == 1 else MAX_INTEGER


def dump(document: Mapping[str, Any]) -> bytes:
    """The document's bytes, the same every time."""
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def pack(document: Mapping[str, Any]) -> bytes:
    """The document's bytes as one gzip member. `ValueError` when no reader would take it."""
    body = dump(document)
    if len(body) > MAX_INFLATED_BYTES:
        raise ValueError(f"{document['format']} of {len(body)} bytes, at most {MAX_INFLATED_BYTES} fit")
    deflate = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    check = zlib.crc32(body).to_bytes(4, "little") + len(body).to_bytes(4, "little")
    data = b"".join((_GZIP_HEAD, deflate.compress(body), deflate.flush(), check))
    if len(data) > MAX_STORED_BYTES:
        raise ValueError(
            f"{document['format']} compresses to {len(data)} bytes, at most {MAX_STORED_BYTES} fit"
        )
    return data


def unpack(data: bytes, what: str) -> bytes:
    """What was packed, checksum verified, and nothing after it. `CorruptionError`, naming `what`."""
    if len(data) > MAX_STORED_BYTES:
        raise CorruptionError(f"{what}: {len(data)} bytes, at most {MAX_STORED_BYTES} are read")
    return _gunzip(data, what) if data[:2] == _GZIP_MAGIC else _unzstd(data, what)


def _gunzip(data: bytes, what: str) -> bytes:
    # zlib compares checksum and length at the end; until then no more than the bound is ever held.
    inflate = zlib.decompressobj(_GZIP)
    try:
        body = inflate.decompress(data, MAX_INFLATED_BYTES + 1)
    except zlib.error as e:
        raise CorruptionError(f"{what}: {e}") from e
    if len(body) > MAX_INFLATED_BYTES:
        raise CorruptionError(f"{what}: inflates beyond {MAX_INFLATED_BYTES} bytes")
    if not inflate.eof or inflate.unused_data:
        raise CorruptionError(f"{what}: not one whole gzip member")
    return body


def _unzstd(data: bytes, what: str) -> bytes:
    """One zstd frame with content size and checksum, and nothing after it."""
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
    """`data` as a document of this format, of a version that we know. `CorruptionError` otherwise."""
    fields = parse_json_object(data, expected_format)
    found, version = fields.get("format"), fields.get("format_version")
    if found != expected_format or type(version) is not int or not 1 <= version <= FORMAT_VERSION:
        raise CorruptionError(
            f"expected {expected_format} 1 to {FORMAT_VERSION}, found {str((found, version))[:120]}"
        )
    return Document(fields, version)
