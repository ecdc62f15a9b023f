"""Open segment objects, manifests and small documents: blocking calls, for pool threads and offline tools.

Each object is checked against what names it: HEAD by its key, a manifest by HEAD or its key, a page by its
manifest, a footer by its entry. Every `CorruptionError` names the object.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final, NamedTuple

from crc32c import crc32c

from service.base.errors import CorruptionError
from service.base.types import NO_OFFSET, NO_TIMESTAMP, Buffer, TopicIdPartition
from service.remote.format.documents import MAX_STORED_BYTES
from service.remote.format.fields import saturated
from service.remote.format.keys import CLUSTER_KEY, TOPICS_KEY, HeadKey, ManifestKey, head_key, parse_key
from service.remote.format.manifest import Manifest, ManifestPage, PageRef, SegmentEntry
from service.remote.format.manifest_codec import (
    MAX_SMALL_BYTES,
    MAX_TOPICS_BYTES,
    ClusterFile,
    Head,
    TopicsFile,
    decode_cluster,
    decode_head,
    decode_manifest,
    decode_page,
    decode_topics,
    head_of,
)
from service.remote.format.metadata_ref import MetadataRef
from service.remote.format.segment_object import SUFFIX_HINT, Footer, Section, decode_footer, tail_length
from service.remote.stores.errors import ObjectNotFound, ObjectTruncated, naming
from service.remote.stores.store import ObjectStore

_GUESSES: Final = 3
"""The trailer, then the JSON, then the block table may each exceed the suffix read so far."""
_ATTEMPTS: Final = 3
"""A manifest may be replaced and expire between HEAD and its GET, if HEAD was read from a cache."""


class Chain(NamedTuple):
    """One stored manifest, and the HEAD that names it."""

    manifest: Manifest
    head: Head

    @property
    def key(self) -> str:
        return self.head.manifest_key


def open_footer(store: ObjectStore, key: str) -> Footer:
    """Return the verified footer of the object under `key`: one suffix GET, more for a tail beyond 64 KiB.

    Raises `CorruptionError` when the object is not the segment that its key names.
    """
    with naming(key):
        footer = decode_footer(*read_suffix(store, key, SUFFIX_HINT, tail_length, _GUESSES))
        if footer.identity.key != key:
            raise CorruptionError(f"{key}: the footer is of {footer.identity.key}")
    return footer


def read_suffix(
    store: ObjectStore, key: str, wanted: int, length_of: Callable[[Buffer, int], int], most_gets: int
) -> tuple[Buffer, int]:
    """Return the end of an object with its whole footer, and the object's size.

    `wanted` bytes are read first. `length_of` returns, of an end and the size, how long the end has to be, as
    far as it tells.
    """
    for _ in range(most_gets):
        suffix, size = store.get_suffix(key, wanted)
        wanted = length_of(suffix, size)
        if wanted <= len(suffix):
            return suffix, size
    raise CorruptionError("the footer's length changes while it is read")


def open_footer_of(store: ObjectStore, entry: SegmentEntry) -> Footer:
    """Return the footer of a segment that a manifest lists: one ranged GET, checked against the entry."""
    with naming(entry.key):
        length = entry.size - entry.footer_position
        return footer_of(entry, store.get_range(entry.key, entry.footer_position, length))


def footer_of(entry: SegmentEntry, tail: Buffer) -> Footer:
    """Return the footer in the tail of a segment's object, checked against its entry."""
    with naming(entry.key):
        footer = decode_footer(tail, entry.size)
        if footer.crc != entry.footer_crc or footer.identity.key != entry.key:
            raise CorruptionError("not the footer that the manifest names")
        if footer.log_length != entry.log_length or footer.tail_position != entry.footer_position:
            raise CorruptionError("lengths differ from the manifest's")
    return footer


def entry_of(footer: Footer) -> SegmentEntry:
    """Return the manifest entry for an object with this footer."""
    identity = footer.identity
    return SegmentEntry(
        base_offset=identity.base_offset,
        last_offset=identity.last_offset,
        size=footer.object_size,
        log_length=footer.log_length,
        max_timestamp=saturated(footer.max_timestamp),
        max_timestamp_offset=footer.max_timestamp_offset,
        leader_epochs=footer.leader_epochs,
        key=identity.key,
        footer_position=footer.tail_position,
        footer_crc=footer.crc,
        min_timestamp=saturated(footer.min_timestamp),
        generation=footer.generation,
        open_from=footer.open_from,
    )


def check_entry(entry: SegmentEntry, footer: Footer) -> None:
    """Raise `CorruptionError` unless a segment's manifest entry and footer agree.

    The manifest may lack a least timestamp, or where transactions are open: a writer older than those fields
    drops them. Footers do not name owners.
    """
    expected = entry_of(footer)._replace(owner=entry.owner)
    if entry.min_timestamp == NO_TIMESTAMP:
        expected = expected._replace(min_timestamp=NO_TIMESTAMP)
    if entry.open_from == NO_OFFSET:
        expected = expected._replace(open_from=NO_OFFSET)
    said = entry._replace(
        max_timestamp=saturated(entry.max_timestamp), min_timestamp=saturated(entry.min_timestamp)
    )
    if said != expected:
        raise CorruptionError(f"the footer says {expected}, the manifest {entry}")


def read_section(store: ObjectStore, key: str, section: Section) -> bytes:
    """Return the bytes of one section of an object, verified."""
    if not section.length:
        return b""
    with naming(key):
        return checked_section(section, store.get_range(key, section.position, section.length))


def checked_section(section: Section, data: Buffer) -> bytes:
    """Return the bytes of a section. Raises `CorruptionError` where its checksum is another."""
    if crc32c(data) != section.crc32c:
        raise CorruptionError(f"the section at {section.position} has a wrong checksum")
    return bytes(data)


def open_head(store: ObjectStore, key: HeadKey) -> Head:
    """Return the HEAD of one partition; raise `ObjectNotFound` where nothing was ever committed."""
    name = head_key(key.topic_id, key.partition)
    with naming(name):
        head = decode_head(store.get(name, max_size=MAX_SMALL_BYTES))
        if (head.topic_id, head.partition) != key:
            raise CorruptionError(f"the HEAD of {head.topic_id}/{head.partition}")
    return head


def open_chain(store: ObjectStore, key: str) -> Chain:
    """Return the manifest under `key`, checked against its name, with the HEAD that names it."""
    with naming(key):
        data = store.get(key, max_size=MAX_STORED_BYTES)
    return decode_chain(key, data)


def decode_chain(key: str, data: bytes) -> Chain:
    """Return the manifest in `data`, as `open_chain` does of an object that was read already."""
    with naming(key):
        manifest = _decode_named(data, key)
    return Chain(manifest, head_of(manifest, key, data))


def open_named(store: ObjectStore, head: Head) -> Manifest:
    """Return the manifest that HEAD names, checked against HEAD's size and checksum."""
    with naming(head.manifest_key):
        data = store.get(head.manifest_key, max_size=MAX_STORED_BYTES)
        if len(data) != head.stored_size or crc32c(data) != head.crc32c:
            raise CorruptionError(f"{len(data)} bytes with another checksum than HEAD's")
        return _decode_named(data, head.manifest_key)


def _decode_named(data: bytes, key: str) -> Manifest:
    manifest = decode_manifest(data)
    parsed = parse_key(key)
    expected = (manifest.topic_id, manifest.partition, manifest.version, manifest.leader_epoch)
    if not isinstance(parsed, ManifestKey) or parsed[:4] != expected:
        raise CorruptionError(
            f"holds version {manifest.version} of {manifest.topic_id}/{manifest.partition}, "
            f"leader epoch {manifest.leader_epoch}"
        )
    return replace(manifest, stored_key=key)


def _unknown(head: Head) -> Manifest | None:
    return None


def open_published(
    store: ObjectStore,
    key: HeadKey,
    known: Callable[[Head], Manifest | None] = _unknown,
    attempts: int = _ATTEMPTS,
) -> Chain | None:
    """Return the chain that HEAD names now; None where nothing of the partition was ever committed.

    `known` may have the manifest from earlier. HEAD is read again when its manifest is missing, as HEAD may
    have been replaced meanwhile; raises `ObjectNotFound` when that does not help.
    """
    try:
        head = open_head(store, key)
    except ObjectNotFound:
        return None
    try:
        return Chain(known(head) or open_named(store, head), head)
    except ObjectNotFound:
        if attempts <= 1:
            raise
    return open_published(store, key, known, attempts - 1)


def open_page(store: ObjectStore, ref: PageRef, owner: Manifest | TopicIdPartition) -> ManifestPage:
    """Return the page that `ref` names in the manifest of `owner`."""
    with naming(ref.key):
        try:
            data = bytes(store.get_range(ref.key, 0, ref.stored_size))
        except ObjectTruncated as e:
            raise CorruptionError("shorter than the manifest says") from e
        return decode_page(data, ref, owner.topic_id, owner.partition)


def open_cluster(store: ObjectStore) -> str:
    """Return the id of the cluster that the prefix belongs to; raise `ObjectNotFound` where it belongs to
    none."""
    return open_cluster_file(store).cluster_id


def open_cluster_file(store: ObjectStore) -> ClusterFile:
    """Return `cluster.json`; raise `ObjectNotFound` where the prefix belongs to no cluster."""
    with naming(CLUSTER_KEY):
        return decode_cluster(store.get(CLUSTER_KEY, max_size=MAX_SMALL_BYTES))


def open_metadata(store: ObjectStore, attempts: int = _ATTEMPTS) -> tuple[MetadataRef, bytes] | None:
    """Return the newest snapshot of the cluster's metadata, verified; None where `cluster.json` names none.

    The snapshot may be replaced between `cluster.json` and its GET: then both are read again.
    """
    ref = open_cluster_file(store).metadata
    if ref is None:
        return None
    try:
        with naming(ref.key):
            data = store.get(ref.key, max_size=ref.size)
            if len(data) != ref.size or crc32c(data) != ref.crc32c:
                raise CorruptionError(f"{len(data)} bytes with another checksum than cluster.json's")
        return ref, data
    except ObjectNotFound:
        if attempts <= 1:
            raise
    return open_metadata(store, attempts - 1)


def open_topics(store: ObjectStore) -> TopicsFile:
    """Return `topics.json`; raise `ObjectNotFound` where it was not written yet."""
    with naming(TOPICS_KEY):
        return decode_topics(store.get(TOPICS_KEY, max_size=MAX_TOPICS_BYTES))
