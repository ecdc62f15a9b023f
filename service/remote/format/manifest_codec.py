"""Codecs of manifests, pages, HEAD, cluster.json and topics.json. [P]

Decoders bound the data before they inflate it and verify it before it is used: names, numbers, keys that
belong to the partition, a chain without gaps. They raise `CorruptionError` otherwise. Version 2 is written, 1
is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

from crc32c import crc32c

from service.base.errors import CorruptionError, UnknownVersion
from service.base.types import NO_TIMESTAMP
from service.remote.format.ancestors import Ancestor, ancestor_fields, ancestors_of
from service.remote.format.documents import (
    CHECKSUM,
    FORMAT_VERSION,
    MAX_STORED_BYTES,
    open_document,
    open_sealed,
    pack,
    seal,
    seal_rows,
    unpack,
)
from service.remote.format.fields import (
    MAX_INTEGER,
    int_field,
    object_field,
    objects_field,
    optional_int_field,
    saturated,
    str_field,
    uuid_field,
    uuids_field,
)
from service.remote.format.keys import (
    MAX_EPOCH,
    MAX_PARTITION,
    ManifestKey,
    parse_key,
    partition_prefix,
)
from service.remote.format.manifest import (
    MAX_LEVELS,
    MAX_MANIFEST_ENTRIES,
    MAX_PAGE_REFS,
    Child,
    KeyOwner,
    Manifest,
    ManifestPage,
    PageRef,
    SegmentEntry,
    check_chain,
    oldest,
)
from service.remote.format.metadata_ref import MAX_LIFE, MetadataRef, metadata_ref_fields, parse_metadata_ref
from service.remote.format.rows import entry_row, parse_entries, parse_ref, ref_row
from service.remote.format.stamp import Stamp, stamp_fields, stamp_of

MANIFEST_FORMAT: Final = "firn-manifest"
PAGE_FORMAT: Final = "firn-manifest-page"
HEAD_FORMAT: Final = "firn-head"
CLUSTER_FORMAT: Final = "firn-cluster"
TOPICS_FORMAT: Final = "firn-topics"
LAYOUT_VERSION: Final = 2

MAX_SMALL_BYTES: Final = 64 << 10
MAX_TOPICS_BYTES: Final = 64 << 20
MAX_TOPICS: Final = 1_000_000
MAX_MEMBERS: Final = 1_500
MAX_PRESENT: Final = 100

_STAMP_FIELDS: Final = ("written_ms", "writer")
_HEAD_FIELDS: Final = frozenset(
    ("topic_id", "partition", "manifest", "version", "leader_epoch", "stored_size", "crc32c", *_STAMP_FIELDS)
)
_CLUSTER_FIELDS: Final = frozenset(("layout_version", "cluster_id", "metadata", *_STAMP_FIELDS))
_TOPICS_FIELDS: Final = frozenset(("cluster_id", "metadata_offset", "topics", *_STAMP_FIELDS))
"""Members that the documents had before they were sealed; every later member comes with a checksum."""


class Head(NamedTuple):
    """HEAD: the last committed manifest, its stored size and crc32c; `stamp` is the manifest's."""

    topic_id: UUID
    partition: int
    manifest_key: str
    version: int
    leader_epoch: int
    stored_size: int
    crc32c: int
    stamp: Stamp | None = None


class ClusterFile(NamedTuple):
    """`cluster.json`: the prefix's cluster, its keeper, and the newest snapshot of its metadata.

    `members` are the incarnations of the processes that may write beside the keeper, by its metadata.
    `present` are those that have read this file; each adds itself. `renewals` counts the keeper's renewals
    since it took the prefix over; 0: its version does not renew. `ancestors` are the clusters that wrote here
    before.
    """

    cluster_id: str
    stamp: Stamp | None = None
    metadata: MetadataRef | None = None
    members: tuple[UUID, ...] = ()
    present: tuple[UUID, ...] = ()
    renewals: int = 0
    ancestors: tuple[Ancestor, ...] = ()


class TopicsFileRow(NamedTuple):
    """One topic in `topics.json`.

    `settings_unknown`: nothing of it expires until an operator has set its retention
    (`image.RecoveredTopic`).
    """

    name: str
    topic_id: UUID
    partitions: int
    configs: Mapping[str, str]
    settings_unknown: bool = False


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the object's bytes. The same manifest gives the same JSON; gzip's bytes may vary with zlib's
    version.

    Raises `ValueError` when the manifest, or a number in it, is too large for readers.
    """
    _carried(manifest.version, manifest.end_offset, manifest.size_bytes)
    return pack(
        {
            "format": MANIFEST_FORMAT,
            "format_version": FORMAT_VERSION,
            "cluster_id": manifest.cluster_id,
            "topic_id": str(manifest.topic_id),
            "topic": manifest.topic,
            "partition": manifest.partition,
            "version": manifest.version,
            "parent_version": manifest.parent_version,
            "parent_key": manifest.parent_key,
            "leader_epoch": manifest.leader_epoch,
            **stamp_fields(manifest.stamp),
            "start_offset": manifest.start_offset,
            "end_offset": manifest.end_offset,
            "dropped_segments": manifest.dropped_segments,
            "dropped_bytes": manifest.dropped_bytes,
            "pages": [ref_row(ref) for ref in manifest.pages],
            "segments": [entry_row(entry) for entry in manifest.entries],
        }
    )


def _carried(*numbers: int) -> None:
    """Raise `ValueError` for a number beyond the format. The greatest of those that only grow stand for
    all."""
    for number in numbers:
        if number > MAX_INTEGER:
            raise ValueError(f"{number} is beyond {MAX_INTEGER}, the greatest integer of the format")


def decode_manifest(data: bytes) -> Manifest:
    """Parse and verify a manifest."""
    document = open_document(unpack(data, MANIFEST_FORMAT), MANIFEST_FORMAT)
    fields, most = document.fields, document.most
    topic_id = uuid_field(fields, "topic_id")
    partition = int_field(fields, "partition", 0, MAX_PARTITION)
    version = int_field(fields, "version", 1, most)
    parent_version = int_field(fields, "parent_version", 0, version - 1)
    refs = objects_field(fields, "pages", MAX_PAGE_REFS * (MAX_LEVELS + 1))
    rows = objects_field(fields, "segments", MAX_MANIFEST_ENTRIES)
    home = partition_prefix(topic_id, partition)
    manifest = Manifest(
        cluster_id=str_field(fields, "cluster_id"),
        topic_id=topic_id,
        topic=str_field(fields, "topic"),
        partition=partition,
        version=version,
        parent_version=parent_version,
        leader_epoch=int_field(fields, "leader_epoch", 0, MAX_EPOCH),
        start_offset=int_field(fields, "start_offset", 0, most),
        pages=tuple(parse_ref(ref, topic_id, partition, most) for ref in refs),
        entries=parse_entries(rows, home, most),
        dropped_segments=int_field(fields, "dropped_segments", 0, most),
        dropped_bytes=int_field(fields, "dropped_bytes", 0, most),
        parent_key=_parent_key(fields, topic_id, partition, parent_version),
        stamp=stamp_of(fields),
    )
    _check_manifest(manifest, int_field(fields, "end_offset", 0, most))
    return manifest


def _parent_key(fields: dict[str, Any], topic_id: UUID, partition: int, version: int) -> str | None:
    if fields.get("parent_key") is None:
        return None
    key = str_field(fields, "parent_key")
    parsed = parse_key(key)
    if not isinstance(parsed, ManifestKey) or parsed[:3] != (topic_id, partition, version):
        raise CorruptionError(f"{key!r} is not the key of manifest {version} of {topic_id}/{partition}")
    return key


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


def encode_page(page: ManifestPage) -> bytes:
    """Return the object's bytes; `Manifest.append` takes this function."""
    children = [
        entry_row(child) if isinstance(child, SegmentEntry) else ref_row(child) for child in page.children
    ]
    return pack(
        {
            "format": PAGE_FORMAT,
            "format_version": FORMAT_VERSION,
            "topic_id": str(page.topic_id),
            "partition": page.partition,
            "level": page.level,
            **stamp_fields(page.stamp),
            "children": children,
        }
    )


def decode_page(data: bytes, ref: PageRef, topic_id: UUID, partition: int) -> ManifestPage:
    """Parse and verify the page that `ref` names: its checksum, and its sums against those of `ref`.

    A page of another partition lists keys of its own partition: in the result they have that owner.
    """
    if len(data) != ref.stored_size or crc32c(data) != ref.crc32c:
        raise CorruptionError(f"{ref.key}: {len(data)} bytes with another checksum than the manifest's")
    document = open_document(unpack(data, PAGE_FORMAT), PAGE_FORMAT)
    fields, most = document.fields, document.most
    home = ref.owner if ref.owner is not None else KeyOwner(topic_id, partition)
    if uuid_field(fields, "topic_id") != home.topic_id:
        raise CorruptionError(f"{ref.key}: the page of another topic")
    int_field(fields, "partition", home.partition, home.partition)
    level = int_field(fields, "level", ref.level, ref.level)
    rows = objects_field(fields, "children", MAX_MANIFEST_ENTRIES if level == 0 else MAX_PAGE_REFS)
    children: list[Child]
    if level == 0:
        folder = partition_prefix(*home)
        children = list(parse_entries(rows, folder, most))
    else:
        children = [parse_ref(row, *home, most) for row in rows]
        if any(child.level >= level for child in children if isinstance(child, PageRef)):
            raise CorruptionError(f"{ref.key}: lists a page of its own level")
    _check_page(ref, children)
    if ref.owner is not None:
        children = [c if c.owner is not None else c._replace(owner=ref.owner) for c in children]
    return ManifestPage(topic_id, partition, level, tuple(children), stamp_of(fields))


def _check_page(ref: PageRef, children: Sequence[Child]) -> None:
    check_chain(children)
    if not children:
        raise CorruptionError(f"{ref.key}: lists nothing")
    sums = (
        sum(child.segments for child in children),
        sum(child.size_bytes for child in children),
        saturated(max(child.max_timestamp for child in children)),
        # A writer older than that field drops it from the reference and not from the page.
        ref.min_timestamp if ref.min_timestamp == NO_TIMESTAMP else saturated(oldest(children)),
    )
    if sums != (ref.segments, ref.size_bytes, saturated(ref.max_timestamp), saturated(ref.min_timestamp)):
        raise CorruptionError(f"{ref.key}: sums {sums} are not the manifest's")
    first, last = children[0], children[-1]
    if (first.base_offset, last.last_offset) != (ref.base_offset, ref.last_offset):
        raise CorruptionError(f"{ref.key}: holds offsets {first.base_offset} to {last.last_offset}")


def head_of(manifest: Manifest, key: str, data: bytes) -> Head:
    """Return the HEAD that names `manifest`, stored as `data` under `key`."""
    return Head(
        manifest.topic_id,
        manifest.partition,
        key,
        manifest.version,
        manifest.leader_epoch,
        len(data),
        crc32c(data),
        manifest.stamp,
    )


def encode_head(head: Head) -> bytes:
    """Return the bytes of HEAD."""
    return seal(
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
            **stamp_fields(head.stamp),
        }
    )


def decode_head(data: bytes) -> Head:
    """Parse and verify HEAD."""
    document = open_sealed(data, HEAD_FORMAT, _HEAD_FIELDS)
    fields = document.fields
    head = Head(
        topic_id=uuid_field(fields, "topic_id"),
        partition=int_field(fields, "partition", 0, MAX_PARTITION),
        manifest_key=str_field(fields, "manifest"),
        version=int_field(fields, "version", 1, document.most),
        leader_epoch=int_field(fields, "leader_epoch", 0, MAX_EPOCH),
        stored_size=int_field(fields, "stored_size", 1, MAX_STORED_BYTES),
        crc32c=int_field(fields, "crc32c", 0, 0xFFFFFFFF),
        stamp=stamp_of(fields),
    )
    key = parse_key(head.manifest_key)
    expected = (head.topic_id, head.partition, head.version, head.leader_epoch)
    if not isinstance(key, ManifestKey) or key[:4] != expected:
        raise CorruptionError(f"HEAD names {head.manifest_key!r} as version {head.version}")
    return head


def encode_cluster(cluster: ClusterFile) -> bytes:
    """Return the bytes of `cluster.json`. Raises `ValueError` for more members than readers accept."""
    metadata = cluster.metadata
    if len(cluster.members) > MAX_MEMBERS or len(cluster.present) > MAX_PRESENT:
        raise ValueError(
            f"{len(cluster.members)} members of a cluster and {len(cluster.present)} present, "
            f"at most {MAX_MEMBERS} and {MAX_PRESENT} fit"
        )
    return seal(
        {
            "format": CLUSTER_FORMAT,
            "format_version": FORMAT_VERSION,
            "layout_version": LAYOUT_VERSION,
            "cluster_id": cluster.cluster_id,
            **stamp_fields(cluster.stamp),
            **({"metadata": metadata_ref_fields(metadata)} if metadata is not None else {}),
            **({"members": list(map(str, cluster.members))} if cluster.members else {}),
            **({"present": list(map(str, cluster.present))} if cluster.present else {}),
            **({"renewals": cluster.renewals} if cluster.renewals else {}),
            **ancestor_fields(cluster.ancestors),
        }
    )


def decode_cluster(data: bytes) -> ClusterFile:
    """Parse and verify `cluster.json`. Raises `CorruptionError` when the layout is unknown."""
    fields, _ = open_sealed(data, CLUSTER_FORMAT, _CLUSTER_FIELDS)
    layout = fields.get("layout_version")
    if CHECKSUM in fields and type(layout) is int and layout > LAYOUT_VERSION:
        raise UnknownVersion(f"layout version {layout}, this software knows 1 to {LAYOUT_VERSION}")
    int_field(fields, "layout_version", 1, LAYOUT_VERSION)
    metadata = parse_metadata_ref(object_field(fields, "metadata")) if "metadata" in fields else None
    members = uuids_field(fields, "members", MAX_MEMBERS) if "members" in fields else ()
    present = uuids_field(fields, "present", MAX_PRESENT) if "present" in fields else ()
    renewals = int_field(fields, "renewals", 0, MAX_INTEGER) if "renewals" in fields else 0
    return ClusterFile(
        str_field(fields, "cluster_id"),
        stamp_of(fields),
        metadata,
        members,
        present,
        renewals,
        ancestors_of(fields),
    )


def encode_topics(
    cluster_id: str,
    metadata_offset: int,
    topics: Sequence[TopicsFileRow],
    stamp: Stamp | None = None,
    *,
    life: int = 0,
    foreign: Sequence[TopicsFileRow] = (),
    ancestors: Sequence[Ancestor] = (),
) -> bytes:
    """Return the bytes of `topics.json`: the committed image of `life` up to `metadata_offset`, sorted by
    name.

    `foreign` are topics that have objects in the bucket and that the image lacks.
    """
    head = {
        "format": TOPICS_FORMAT,
        "format_version": FORMAT_VERSION,
        "cluster_id": cluster_id,
        "metadata_offset": metadata_offset,
        **({"life": life} if life else {}),
        **stamp_fields(stamp),
        **ancestor_fields(ancestors),
        **({"foreign": list(_topic_rows(foreign))} if foreign else {}),
    }
    return seal_rows(head, "topics", _topic_rows(topics))


def _topic_rows(topics: Sequence[TopicsFileRow]) -> Iterator[dict[str, Any]]:
    for topic in sorted(topics, key=lambda topic: (topic.name, topic.topic_id)):
        yield {
            "name": topic.name,
            "topic_id": str(topic.topic_id),
            "partitions": topic.partitions,
            "configs": dict(sorted(topic.configs.items())),
            **({"settings_unknown": True} if topic.settings_unknown else {}),
        }


class TopicsFile(NamedTuple):
    """`topics.json`, parsed. `foreign`: topics that its writer's metadata lacked, and that have objects."""

    cluster_id: str
    metadata_offset: int
    topics: tuple[TopicsFileRow, ...]
    stamp: Stamp | None = None
    life: int = 0
    foreign: tuple[TopicsFileRow, ...] = ()
    ancestors: tuple[Ancestor, ...] = ()


def decode_topics(data: bytes) -> TopicsFile:
    """Parse and verify `topics.json`. Raises `CorruptionError` also where two topics have one name or one
    id."""
    document = open_sealed(data, TOPICS_FORMAT, _TOPICS_FIELDS)
    fields = document.fields
    topics = _parse_topics(fields, "topics")
    foreign = _parse_topics(fields, "foreign") if "foreign" in fields else ()
    _refuse_doubles([topic.name for topic in topics])
    _refuse_doubles([topic.topic_id for topic in (*topics, *foreign)])
    return TopicsFile(
        str_field(fields, "cluster_id"),
        optional_int_field(fields, "metadata_offset", document.most),
        topics,
        stamp_of(fields),
        int_field(fields, "life", 0, MAX_LIFE) if "life" in fields else 0,
        foreign,
        ancestors_of(fields),
    )


def _parse_topics(fields: dict[str, Any], name: str) -> tuple[TopicsFileRow, ...]:
    rows = []
    for row in objects_field(fields, name, MAX_TOPICS):
        configs = object_field(row, "configs")
        rows.append(
            TopicsFileRow(
                name=str_field(row, "name"),
                topic_id=uuid_field(row, "topic_id"),
                partitions=int_field(row, "partitions", 1, MAX_PARTITION),
                configs={name: str_field(configs, name) for name in configs},
                settings_unknown=row.get("settings_unknown") is True,
            )
        )
    return tuple(rows)


def _refuse_doubles(values: Sequence[Hashable]) -> None:
    if len(set(values)) < len(values):
        double = next(value for value, count in Counter(values).items() if count > 1)
        raise CorruptionError(f"two topics are {double}")
