"""Bytes of manifests, pages, HEAD, cluster.json and topics.json. [P]

All are JSON in UTF-8 with a `format` and a `format_version`; manifests and pages are compressed as one zstd
frame that carries its content size and checksum. Whatever is decoded is bounded before it is inflated and
verified before it is used: names, numbers, keys that belong to the partition, a chain without gaps.
`CorruptionError` otherwise.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

import zstandard
from crc32c import crc32c

from service.base.errors import CorruptionError
from service.base.types import NO_TIMESTAMP
from service.remote.format.fields import (
    epochs_field,
    int_field,
    later_int_field,
    object_field,
    objects_field,
    optional_int_field,
    parse_json_object,
    str_field,
    uuid_field,
)
from service.remote.format.keys import (
    MAX_EPOCH,
    MAX_OFFSET,
    MAX_PARTITION,
    ManifestKey,
    PageKey,
    is_segment_of,
    parse_key,
    partition_prefix,
)
from service.remote.format.manifest import (
    MAX_LEVELS,
    MAX_MANIFEST_ENTRIES,
    MAX_PAGE_REFS,
    Child,
    Manifest,
    Page,
    PageRef,
    SegmentEntry,
    check_chain,
    oldest,
)

MANIFEST_FORMAT: Final = "firn-manifest"
PAGE_FORMAT: Final = "firn-manifest-page"
HEAD_FORMAT: Final = "firn-head"
CLUSTER_FORMAT: Final = "firn-cluster"
TOPICS_FORMAT: Final = "firn-topics"
FORMAT_VERSION: Final = 1
LAYOUT_VERSION: Final = 1

MAX_STORED_BYTES: Final = 16 << 20
MAX_INFLATED_BYTES: Final = 64 << 20
MAX_SMALL_BYTES: Final = 64 << 10
MAX_TOPICS_BYTES: Final = 64 << 20
MAX_TOPICS: Final = 1_000_000
MAX_SEGMENT_BYTES: Final = 1 << 40


class Head(NamedTuple):
    """What HEAD says: the last committed manifest, its stored size and crc32c."""

    topic_id: UUID
    partition: int
    manifest_key: str
    version: int
    leader_epoch: int
    stored_size: int
    crc32c: int


class TopicRow(NamedTuple):
    """One topic as `topics.json` lists it."""

    name: str
    topic_id: UUID
    partitions: int
    configs: Mapping[str, str]


def _dump(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def _compress(document: Mapping[str, Any]) -> bytes:
    body = _dump(document)
    if len(body) > MAX_INFLATED_BYTES:
        raise ValueError(f"{document['format']} of {len(body)} bytes, at most {MAX_INFLATED_BYTES} fit")
    data = zstandard.ZstdCompressor(level=3, write_checksum=True, write_content_size=True).compress(body)
    if len(data) > MAX_STORED_BYTES:
        raise ValueError(
            f"{document['format']} compresses to {len(data)} bytes, at most {MAX_STORED_BYTES} fit"
        )
    return data


def _inflate(data: bytes, what: str) -> bytes:
    """One zstd frame with content size and checksum, and nothing after it."""
    if len(data) > MAX_STORED_BYTES:
        raise CorruptionError(f"{what}: {len(data)} bytes, at most {MAX_STORED_BYTES} are read")
    try:
        frame = zstandard.get_frame_parameters(data)
        size = frame.content_size
        if not frame.has_checksum or not 0 < size <= MAX_INFLATED_BYTES:
            raise CorruptionError(f"{what}: zstd frame of {size} bytes, checksum {frame.has_checksum}")
        # Allocates the claimed size, bounded above, and never more; refuses bytes after the frame.
        return zstandard.ZstdDecompressor(max_window_size=1 << 27).decompress(data, allow_extra_data=False)
    except zstandard.ZstdError as e:
        raise CorruptionError(f"{what}: {e}") from e


def _open(data: bytes, expected_format: str) -> dict[str, Any]:
    document = parse_json_object(data, expected_format)
    found = (document.get("format"), document.get("format_version"))
    if found != (expected_format, FORMAT_VERSION):
        raise CorruptionError(f"expected {expected_format} {FORMAT_VERSION}, found {str(found)[:120]}")
    return document


def _entry_json(entry: SegmentEntry) -> dict[str, Any]:
    document = entry._asdict()
    document["leader_epochs"] = [list(pair) for pair in entry.leader_epochs]
    return document


def _entry(document: dict[str, Any], prefix: str) -> SegmentEntry:
    base = int_field(document, "base_offset", 0, MAX_OFFSET)
    last = int_field(document, "last_offset", base, MAX_OFFSET)
    key = str_field(document, "key")
    if not is_segment_of(key, prefix, base, last):
        raise CorruptionError(f"{key!r} is not the key of segment {base} to {last} of {prefix}")
    size = int_field(document, "size", 1, MAX_SEGMENT_BYTES)
    log_length = int_field(document, "log_length", 1, size)
    epochs = epochs_field(document, "leader_epochs")
    if not epochs or epochs[0][1] > base or epochs[-1][1] > last:
        raise CorruptionError(f"{key}: leader epochs do not cover it")
    newest = optional_int_field(document, "max_timestamp", MAX_OFFSET)
    return SegmentEntry(
        base_offset=base,
        last_offset=last,
        size=size,
        log_length=log_length,
        max_timestamp=newest,
        max_timestamp_offset=optional_int_field(document, "max_timestamp_offset", MAX_OFFSET),
        leader_epochs=epochs,
        key=key,
        footer_position=int_field(document, "footer_position", log_length, size),
        footer_crc=int_field(document, "footer_crc", 0, 0xFFFFFFFF),
        min_timestamp=later_int_field(document, "min_timestamp", NO_TIMESTAMP, newest, NO_TIMESTAMP),
    )


def _ref(document: dict[str, Any], topic_id: UUID, partition: int) -> PageRef:
    base = int_field(document, "base_offset", 0, MAX_OFFSET)
    last = int_field(document, "last_offset", base, MAX_OFFSET)
    level = int_field(document, "level", 0, MAX_LEVELS)
    key = str_field(document, "key")
    parsed = parse_key(key)
    if not isinstance(parsed, PageKey) or parsed[:5] != (topic_id, partition, base, last, level):
        raise CorruptionError(f"{key!r} is not the key of page {base} to {last} of {topic_id}/{partition}")
    first_epoch = int_field(document, "first_epoch", 0, MAX_EPOCH)
    newest = optional_int_field(document, "max_timestamp", MAX_OFFSET)
    return PageRef(
        base_offset=base,
        last_offset=last,
        level=level,
        segments=int_field(document, "segments", 1, MAX_OFFSET),
        size_bytes=int_field(document, "size_bytes", 1, MAX_OFFSET),
        max_timestamp=newest,
        first_epoch=first_epoch,
        last_epoch=int_field(document, "last_epoch", first_epoch, MAX_EPOCH),
        key=key,
        stored_size=int_field(document, "stored_size", 1, MAX_STORED_BYTES),
        crc32c=int_field(document, "crc32c", 0, 0xFFFFFFFF),
        min_timestamp=later_int_field(document, "min_timestamp", NO_TIMESTAMP, newest, NO_TIMESTAMP),
    )


def encode_manifest(manifest: Manifest) -> bytes:
    """The object's bytes. The same manifest gives the same JSON; zstd's bytes may vary with its version."""
    return _compress(
        {
            "format": MANIFEST_FORMAT,
            "format_version": FORMAT_VERSION,
            "cluster_id": manifest.cluster_id,
            "topic_id": str(manifest.topic_id),
            "topic": manifest.topic,
            "partition": manifest.partition,
            "version": manifest.version,
            "parent_version": manifest.parent_version,
            "leader_epoch": manifest.leader_epoch,
            "start_offset": manifest.start_offset,
            "end_offset": manifest.end_offset,
            "dropped_segments": manifest.dropped_segments,
            "dropped_bytes": manifest.dropped_bytes,
            "pages": [ref._asdict() for ref in manifest.pages],
            "segments": [_entry_json(entry) for entry in manifest.entries],
        }
    )


def decode_manifest(data: bytes) -> Manifest:
    """Parse and verify a manifest."""
    document = _open(_inflate(data, MANIFEST_FORMAT), MANIFEST_FORMAT)
    topic_id = uuid_field(document, "topic_id")
    partition = int_field(document, "partition", 0, MAX_PARTITION)
    version = int_field(document, "version", 1, MAX_OFFSET)
    refs = objects_field(document, "pages", MAX_PAGE_REFS * (MAX_LEVELS + 1))
    rows = objects_field(document, "segments", MAX_MANIFEST_ENTRIES)
    prefix = partition_prefix(topic_id, partition)
    manifest = Manifest(
        cluster_id=str_field(document, "cluster_id"),
        topic_id=topic_id,
        topic=str_field(document, "topic"),
        partition=partition,
        version=version,
        parent_version=int_field(document, "parent_version", 0, version - 1),
        leader_epoch=int_field(document, "leader_epoch", 0, MAX_EPOCH),
        start_offset=int_field(document, "start_offset", 0, MAX_OFFSET),
        pages=tuple(_ref(ref, topic_id, partition) for ref in refs),
        entries=tuple(_entry(row, prefix) for row in rows),
        dropped_segments=int_field(document, "dropped_segments", 0, MAX_OFFSET),
        dropped_bytes=int_field(document, "dropped_bytes", 0, MAX_OFFSET),
    )
    _check_manifest(manifest, int_field(document, "end_offset", 0, MAX_OFFSET))
    return manifest


def _check_manifest(manifest: Manifest, end_offset: int) -> None:
    children = manifest.children
    check_chain(children)
    if manifest.end_offset != end_offset:
        raise CorruptionError(f"the manifest's chain ends at {manifest.end_offset}, not at {end_offset}")
    if children and not children[0].base_offset <= manifest.start_offset <= children[0].last_offset:
        raise CorruptionError(f"{children[0].key} does not hold the start offset {manifest.start_offset}")
    levels = [ref.level for ref in manifest.pages]
    if levels != sorted(levels, reverse=True):
        raise CorruptionError(f"levels of pages rise: {levels[:8]}")
    first = manifest.pages[0] if manifest.pages else None
    limits = (first.segments - 1, first.size_bytes - 1) if first else (0, 0)
    if manifest.dropped_segments > limits[0] or manifest.dropped_bytes > limits[1]:
        raise CorruptionError("more is dropped than the first page holds")


def encode_page(page: Page) -> bytes:
    """The object's bytes; `Manifest.append` takes this function."""
    children: list[dict[str, Any]] = [
        _entry_json(child) if isinstance(child, SegmentEntry) else child._asdict() for child in page.children
    ]
    return _compress(
        {
            "format": PAGE_FORMAT,
            "format_version": FORMAT_VERSION,
            "topic_id": str(page.topic_id),
            "partition": page.partition,
            "level": page.level,
            "children": children,
        }
    )


def decode_page(data: bytes, ref: PageRef, topic_id: UUID, partition: int) -> Page:
    """Parse and verify the page that `ref` names: its checksum, and that it sums up to what `ref` says."""
    if len(data) != ref.stored_size or crc32c(data) != ref.crc32c:
        raise CorruptionError(f"{ref.key}: {len(data)} bytes with another checksum than the manifest's")
    document = _open(_inflate(data, PAGE_FORMAT), PAGE_FORMAT)
    if uuid_field(document, "topic_id") != topic_id:
        raise CorruptionError(f"{ref.key}: the page of another topic")
    int_field(document, "partition", partition, partition)
    level = int_field(document, "level", ref.level, ref.level)
    rows = objects_field(document, "children", MAX_MANIFEST_ENTRIES if level == 0 else MAX_PAGE_REFS)
    children: Sequence[Child]
    if level == 0:
        prefix = partition_prefix(topic_id, partition)
        children = [_entry(row, prefix) for row in rows]
    else:
        children = [_ref(row, topic_id, partition) for row in rows]
        if any(child.level >= level for child in children if isinstance(child, PageRef)):
            raise CorruptionError(f"{ref.key}: lists a page of its own level")
    check_chain(children)
    if not children:
        raise CorruptionError(f"{ref.key}: lists nothing")
    sums = (
        sum(child.segments for child in children),
        sum(child.size_bytes for child in children),
        max(child.max_timestamp for child in children),
        # A writer of before that field drops it from the reference and not from the page.
        ref.min_timestamp if ref.min_timestamp == NO_TIMESTAMP else oldest(children),
    )
    if sums != (ref.segments, ref.size_bytes, ref.max_timestamp, ref.min_timestamp):
        raise CorruptionError(f"{ref.key}: sums {sums} are not the manifest's")
    first, last = children[0], children[-1]
    if (first.base_offset, last.last_offset) != (ref.base_offset, ref.last_offset):
        raise CorruptionError(f"{ref.key}: holds offsets {first.base_offset} to {last.last_offset}")
    return Page(topic_id, partition, level, tuple(children))


def head_of(manifest: Manifest, key: str, data: bytes) -> Head:
    """The HEAD that names `manifest`, stored as `data` under `key`."""
    return Head(
        manifest.topic_id,
        manifest.partition,
        key,
        manifest.version,
        manifest.leader_epoch,
        len(data),
        crc32c(data),
    )


def encode_head(head: Head) -> bytes:
    return _dump(
        {
            "format": HEAD_FORMAT,
            "format_version": FORMAT_VERSION,
            "topic_id": str(head.topic_id),
            "partition": head.partition,
            "manifest": head.manifest_key,
            "version": head.version,
            "leader_epoch": head.leader_epoch,
            "stored_size": head.stored_size,
            "crc32c": head.crc32c,
        }
    )


def decode_head(data: bytes) -> Head:
    """Parse and verify HEAD."""
    document = _open(data, HEAD_FORMAT)
    head = Head(
        topic_id=uuid_field(document, "topic_id"),
        partition=int_field(document, "partition", 0, MAX_PARTITION),
        manifest_key=str_field(document, "manifest"),
        version=int_field(document, "version", 1, MAX_OFFSET),
        leader_epoch=int_field(document, "leader_epoch", 0, MAX_EPOCH),
        stored_size=int_field(document, "stored_size", 1, MAX_STORED_BYTES),
        crc32c=int_field(document, "crc32c", 0, 0xFFFFFFFF),
    )
    key = parse_key(head.manifest_key)
    expected = (head.topic_id, head.partition, head.version, head.leader_epoch)
    if not isinstance(key, ManifestKey) or key[:4] != expected:
        raise CorruptionError(f"HEAD names {head.manifest_key!r} as version {head.version}")
    return head


def encode_cluster(cluster_id: str) -> bytes:
    """`cluster.json`."""
    return _dump(
        {
            "format": CLUSTER_FORMAT,
            "format_version": FORMAT_VERSION,
            "layout_version": LAYOUT_VERSION,
            "cluster_id": cluster_id,
        }
    )


def decode_cluster(data: bytes) -> str:
    """The cluster id of `cluster.json`. `CorruptionError` when the layout is one we do not know."""
    document = _open(data, CLUSTER_FORMAT)
    int_field(document, "layout_version", LAYOUT_VERSION, LAYOUT_VERSION)
    return str_field(document, "cluster_id")


def encode_topics(cluster_id: str, metadata_offset: int, topics: Sequence[TopicRow]) -> bytes:
    """`topics.json`: the committed image up to `metadata_offset`, sorted by name."""
    rows = [
        {
            "name": topic.name,
            "topic_id": str(topic.topic_id),
            "partitions": topic.partitions,
            "configs": dict(sorted(topic.configs.items())),
        }
        for topic in sorted(topics, key=lambda topic: topic.name)
    ]
    return _dump(
        {
            "format": TOPICS_FORMAT,
            "format_version": FORMAT_VERSION,
            "cluster_id": cluster_id,
            "metadata_offset": metadata_offset,
            "topics": rows,
        }
    )


class Topics(NamedTuple):
    """`topics.json`, parsed."""

    cluster_id: str
    metadata_offset: int
    topics: tuple[TopicRow, ...]


def decode_topics(data: bytes) -> Topics:
    """Parse and verify `topics.json`."""
    document = _open(data, TOPICS_FORMAT)
    rows = []
    for row in objects_field(document, "topics", MAX_TOPICS):
        configs = object_field(row, "configs")
        rows.append(
            TopicRow(
                name=str_field(row, "name"),
                topic_id=uuid_field(row, "topic_id"),
                partitions=int_field(row, "partitions", 1, MAX_PARTITION),
                configs={name: str_field(configs, name) for name in configs},
            )
        )
    return Topics(
        str_field(document, "cluster_id"),
        optional_int_field(document, "metadata_offset", MAX_OFFSET),
        tuple(rows),
    )
