"""Segment objects and manifests opened over a store: blocking calls, for pool threads and offline tools."""

from __future__ import annotations

from crc32c import crc32c

from service.base.errors import CorruptionError
from service.base.types import NO_TIMESTAMP
from service.remote.errors import ObjectTruncated
from service.remote.keys import HeadKey, ManifestKey, head_key, parse_key
from service.remote.manifest import Manifest, Page, PageRef, SegmentEntry
from service.remote.manifest_codec import (
    MAX_SMALL_BYTES,
    MAX_STORED_BYTES,
    Head,
    decode_head,
    decode_manifest,
    decode_page,
)
from service.remote.segment_object import SUFFIX_HINT, Footer, Section, decode_footer, tail_length
from service.remote.store import ObjectStore

_GUESSES = 3
"""The trailer, then the JSON, then the block table may each be beyond the suffix at hand."""


def open_footer(store: ObjectStore, key: str) -> Footer:
    """The verified footer of the object under `key`: one suffix GET, more for a tail beyond 64 KiB.

    Raises `CorruptionError` when the object is not the segment that its key names.
    """
    wanted = SUFFIX_HINT
    for _ in range(_GUESSES):
        suffix, size = store.get_suffix(key, wanted)
        wanted = tail_length(suffix, size)
        if wanted <= len(suffix):
            footer = decode_footer(suffix, size)
            if footer.identity.key != key:
                raise CorruptionError(f"{key}: the footer is of {footer.identity.key}")
            return footer
    raise CorruptionError(f"{key}: the footer's length changes while it is read")


def open_footer_of(store: ObjectStore, entry: SegmentEntry) -> Footer:
    """The footer of a segment that a manifest lists: one ranged GET, checked against the entry."""
    length = entry.size - entry.footer_position
    tail = store.get_range(entry.key, entry.footer_position, length)
    footer = decode_footer(tail, entry.size)
    if footer.crc != entry.footer_crc or footer.identity.key != entry.key:
        raise CorruptionError(f"{entry.key}: not the footer that the manifest names")
    if footer.log_length != entry.log_length or footer.tail_position != entry.footer_position:
        raise CorruptionError(f"{entry.key}: lengths differ from the manifest's")
    return footer


def entry_of(footer: Footer) -> SegmentEntry:
    """The manifest entry for an object with this footer."""
    identity = footer.identity
    return SegmentEntry(
        base_offset=identity.base_offset,
        last_offset=identity.last_offset,
        size=footer.object_size,
        log_length=footer.log_length,
        max_timestamp=footer.max_timestamp,
        max_timestamp_offset=footer.max_timestamp_offset,
        leader_epochs=footer.leader_epochs,
        key=identity.key,
        footer_position=footer.tail_position,
        footer_crc=footer.crc,
        min_timestamp=footer.min_timestamp,
    )


def check_entry(entry: SegmentEntry, footer: Footer) -> None:
    """`CorruptionError` unless the manifest says of a segment what its footer says.

    A least timestamp may be missing from the manifest: a writer of before that field does not hand it on.
    """
    expected = entry_of(footer)
    if entry.min_timestamp == NO_TIMESTAMP:
        expected = expected._replace(min_timestamp=NO_TIMESTAMP)
    if entry != expected:
        raise CorruptionError(f"the footer says {expected}, the manifest {entry}")


def read_section(store: ObjectStore, key: str, section: Section) -> bytes:
    """The bytes of one section of an object, verified."""
    if not section.length:
        return b""
    data = bytes(store.get_range(key, section.position, section.length))
    if crc32c(data) != section.crc32c:
        raise CorruptionError(f"{key}: the section at {section.position} has a wrong checksum")
    return data


def open_manifest(store: ObjectStore, key: str) -> tuple[Manifest, int]:
    """The manifest under `key`, checked against its name, and its stored size in bytes."""
    data = store.get(key, max_size=MAX_STORED_BYTES)
    manifest = decode_manifest(data)
    parsed = parse_key(key)
    expected = (manifest.topic_id, manifest.partition, manifest.version, manifest.leader_epoch)
    if not isinstance(parsed, ManifestKey) or parsed[:4] != expected:
        raise CorruptionError(f"{key}: holds version {manifest.version} of {manifest.topic_id}")
    return manifest, len(data)


def open_page(store: ObjectStore, ref: PageRef, manifest: Manifest) -> Page:
    """The page that `ref` in `manifest` names."""
    try:
        data = bytes(store.get_range(ref.key, 0, ref.stored_size))
    except ObjectTruncated as e:
        raise CorruptionError(f"{ref.key}: shorter than the manifest says") from e
    return decode_page(data, ref, manifest.topic_id, manifest.partition)


def open_head(store: ObjectStore, key: HeadKey) -> Head:
    """The HEAD of one partition; `ObjectNotFound` where nothing was ever committed."""
    name = head_key(key.topic_id, key.partition)
    head = decode_head(store.get(name, max_size=MAX_SMALL_BYTES))
    if (head.topic_id, head.partition) != key:
        raise CorruptionError(f"{name}: the HEAD of {head.topic_id}/{head.partition}")
    return head
