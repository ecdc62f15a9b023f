"""A bucket as version 1 of the format had it: what is written today, taken back field by field.

Buckets of before version 2 are read for ever, and nothing writes them any more but this.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from typing import Any

import zstandard
from crc32c import crc32c

from service.remote.format.keys import (
    HeadKey,
    ManifestKey,
    MetadataKey,
    PageKey,
    SegmentKey,
    SharedKey,
    parse_key,
)
from service.remote.format.segment_object import TRAILER

_NEW = (
    *("written_ms", "writer", "generation", "parent_key", "block_row_bytes", "metadata", "owner"),
    "document_crc32c",
)


def version_1(objects: Mapping[str, bytes]) -> dict[str, bytes]:
    """The same bucket in version 1. Its segments, pages and manifests name each other as before."""
    taken = _Back(objects)
    for key in sorted(objects, key=_order):
        if not isinstance(parse_key(key), MetadataKey):
            taken.take(key)
    return taken.older


def older_key(key: str) -> str:
    """Return the key of this object in version 1."""
    return key.removesuffix(".gz") + ".zst" if key.endswith(".json.gz") else key


def _order(key: str) -> tuple[int, int]:
    """Order objects so that each precedes those that name it."""
    parsed = parse_key(key)
    kinds = (SegmentKey, PageKey, ManifestKey, HeadKey, SharedKey, MetadataKey)
    kind = next(number for number, one in enumerate(kinds) if isinstance(parsed, one))
    return kind, parsed.level if isinstance(parsed, PageKey) else 0


class _Back:
    def __init__(self, objects: Mapping[str, bytes]) -> None:
        self.objects = objects
        self.older: dict[str, bytes] = {}
        self._children: dict[str, list[dict[str, Any]]] = {}

    def take(self, key: str) -> None:
        data = self.objects[key]
        parsed = parse_key(key)
        if isinstance(parsed, SegmentKey):
            self.older[key] = _segment(data)
        elif isinstance(parsed, (ManifestKey, PageKey)):
            document = _fields(json.loads(gzip.decompress(data)))
            rows = [row for name in ("pages", "segments", "children") for row in document.get(name, ())]
            for row in rows:
                self._row(row)
            self._children[older_key(key)] = rows
            if "dropped_bytes" in document:
                document["dropped_bytes"] = self._below(rows, document["start_offset"])
            packer = zstandard.ZstdCompressor(level=3, write_checksum=True, write_content_size=True)
            self.older[older_key(key)] = packer.compress(_dump(document))
        else:
            document = _fields(json.loads(data))
            if "layout_version" in document:
                document["layout_version"] = 1
            if "manifest" in document:
                document["manifest"] = older_key(document["manifest"])
                document.update(self._sums(document["manifest"]))
            self.older[key] = _dump(document)

    def _row(self, row: dict[str, Any]) -> None:
        """A segment or a page as its parent names it: sizes and checksums are other ones."""
        for name in _NEW:
            row.pop(name, None)
        row["key"] = older_key(row["key"])
        if row["key"] not in self.older:
            return  # deleted: what still lists it is replaced, or does not count it any more
        if "stored_size" in row:
            row.update(self._sums(row["key"]))
            children = self._children[row["key"]]
            row["size_bytes"] = sum(child.get("size") or child["size_bytes"] for child in children)
            return
        data = self.older[row["key"]]
        length, crc, _ = TRAILER.unpack(data[-TRAILER.size :])
        footer = json.loads(data[-TRAILER.size - length : -TRAILER.size])
        row.update(
            size=len(data), footer_crc=crc, footer_position=footer["sections"]["block_table"]["position"]
        )

    def _below(self, rows: list[dict[str, Any]], start: int) -> int:
        """Bytes of segments that pages list below `start`."""
        size = 0
        for row in rows:
            if "size_bytes" in row and row["base_offset"] < start:
                size += self._below(self._children.get(row["key"], []), start)
            elif row["last_offset"] < start:
                size += row["size"]
        return size

    def _sums(self, key: str) -> dict[str, int]:
        return {"stored_size": len(self.older[key]), "crc32c": crc32c(self.older[key])}


def _fields(document: dict[str, Any]) -> dict[str, Any]:
    assert document["format_version"] == 2
    return {name: value for name, value in document.items() if name not in _NEW} | {"format_version": 1}


def _segment(data: bytes) -> bytes:
    length, _, magic = TRAILER.unpack(data[-TRAILER.size :])
    assert magic == b"FIRNSEG2"
    fields = _fields(json.loads(data[-TRAILER.size - length : -TRAILER.size]))
    before = data[: -TRAILER.size - length]
    for name in ("epoch_history", "key_filter"):
        if (later := fields["sections"].pop(name, None)) is not None:
            at, size = later["position"], later["length"]
            before = before[:at] + before[at + size :]
            for section in fields["sections"].values():
                section["position"] -= size if section["position"] > at else 0
    body = _dump(fields)
    crc = crc32c(len(body).to_bytes(4, "big"), crc32c(body))
    return before + body + TRAILER.pack(len(body), crc, b"FIRNSEG1")


def _dump(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
