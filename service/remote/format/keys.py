"""Keys of the objects in the bucket: built and parsed only here. [P]

Layout (docs/bucket-format.md), relative to the prefix::

    cluster.json
    topics.json
    metadata/<offset>-<epoch>-<uuid>.checkpoint
    CUT
    cut/<cut>-<uuid>.json.gz
    tail/<cut>-<level>-<node>-<uuid>.tail
    erase/<uuid>.json.gz
    data/<topic-id>/<partition>/<base>-<last>-<epoch>-<uuid>.seg
    data/<topic-id>/<partition>/manifest/<version>-<epoch>-<uuid>.json.gz
    data/<topic-id>/<partition>/page/<base>-<last>-<level>-<uuid>.json.gz
    data/<topic-id>/<partition>/HEAD

Offsets, versions and cuts have 20 digits, epochs and nodes 10, levels 2, so that byte order of keys is
numeric order; ids are lower-case UUIDs with hyphens. The key alone identifies an object: a sweeper finds
orphans without opening anything. Layout version 1 wrote manifests and pages as `.json.zst`, which are parsed
alike.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from uuid import UUID

CLUSTER_KEY = "cluster.json"
TOPICS_KEY = "topics.json"
DATA_PREFIX = "data"
METADATA_PREFIX = "metadata"
CUT_NAME = "CUT"
CUT_PREFIX = "cut"
TAIL_PREFIX = "tail"
ERASE_PREFIX = "erase"
HEAD_NAME = "HEAD"

MAX_OFFSET = (1 << 63) - 1
MAX_EPOCH = (1 << 31) - 1
MAX_PARTITION = (1 << 31) - 1
MAX_LEVEL = 99

_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_PARTITION = re.compile(rf"data/({_UUID})/(0|[1-9][0-9]{{0,9}})/(.+)", re.ASCII)
_SEGMENT = re.compile(rf"([0-9]{{20}})-([0-9]{{20}})-([0-9]{{10}})-({_UUID})\.seg", re.ASCII)
_MANIFEST = re.compile(rf"manifest/([0-9]{{20}})-([0-9]{{10}})-({_UUID})\.json\.(?:gz|zst)", re.ASCII)
_METADATA = re.compile(rf"metadata/([0-9]{{20}})-([0-9]{{10}})-({_UUID})\.checkpoint", re.ASCII)
_CUT = re.compile(rf"cut/([0-9]{{20}})-({_UUID})\.json\.gz", re.ASCII)
_TAIL = re.compile(rf"tail/([0-9]{{20}})-([0-9]{{2}})-([0-9]{{10}})-({_UUID})\.tail", re.ASCII)
_ERASURE = re.compile(rf"erase/({_UUID})\.json\.gz", re.ASCII)
_SEGMENT_END = re.compile(rf"([0-9]{{10}})-{_UUID}\.seg", re.ASCII)
_PAGE = re.compile(rf"page/([0-9]{{20}})-([0-9]{{20}})-([0-9]{{2}})-({_UUID})\.json\.(?:gz|zst)", re.ASCII)


class SegmentKey(NamedTuple):
    """One segment object: `base_offset` and `last_offset` are inclusive."""

    topic_id: UUID
    partition: int
    base_offset: int
    last_offset: int
    leader_epoch: int
    uuid: UUID


class ManifestKey(NamedTuple):
    topic_id: UUID
    partition: int
    version: int
    leader_epoch: int
    uuid: UUID


class PageKey(NamedTuple):
    """A manifest page over the offsets `base_offset` to `last_offset`; level 0 lists segments."""

    topic_id: UUID
    partition: int
    base_offset: int
    last_offset: int
    level: int
    uuid: UUID


class HeadKey(NamedTuple):
    topic_id: UUID
    partition: int


class SharedKey(NamedTuple):
    """`cluster.json`, `topics.json` or `CUT`."""

    name: str


class MetadataKey(NamedTuple):
    """A snapshot of the cluster's metadata up to `offset`, exclusive; `epoch` is that of its last record."""

    offset: int
    epoch: int
    uuid: UUID


class CutKey(NamedTuple):
    """A document of one cut; cuts are counted from 1."""

    cut: int
    uuid: UUID


class TailKey(NamedTuple):
    """Unsealed records that one node saved at `cut`; level 1 replaces what level 0 has."""

    cut: int
    level: int
    node_id: int
    uuid: UUID


class ErasureKey(NamedTuple):
    """The keys, hashed, that the order `id` erases."""

    id: UUID


PartitionKey = SegmentKey | ManifestKey | PageKey | HeadKey
ParsedKey = PartitionKey | SharedKey | MetadataKey | CutKey | TailKey | ErasureKey


def topic_prefix(topic_id: UUID) -> str:
    """Return the folder of all objects of one topic."""
    return f"{DATA_PREFIX}/{topic_id}"


def partition_prefix(topic_id: UUID, partition: int) -> str:
    """Return the folder of all objects of one partition."""
    return f"{DATA_PREFIX}/{topic_id}/{partition}"


def head_key(topic_id: UUID, partition: int) -> str:
    return f"{partition_prefix(topic_id, partition)}/{HEAD_NAME}"


def segment_key(key: SegmentKey) -> str:
    return (
        f"{partition_prefix(key.topic_id, key.partition)}/"
        f"{key.base_offset:020d}-{key.last_offset:020d}-{key.leader_epoch:010d}-{key.uuid}.seg"
    )


def manifest_prefix(topic_id: UUID, partition: int) -> str:
    return f"{partition_prefix(topic_id, partition)}/manifest"


def manifest_key(key: ManifestKey) -> str:
    prefix = manifest_prefix(key.topic_id, key.partition)
    return f"{prefix}/{key.version:020d}-{key.leader_epoch:010d}-{key.uuid}.json.gz"


def page_key(key: PageKey) -> str:
    return (
        f"{partition_prefix(key.topic_id, key.partition)}/page/"
        f"{key.base_offset:020d}-{key.last_offset:020d}-{key.level:02d}-{key.uuid}.json.gz"
    )


def metadata_key(key: MetadataKey) -> str:
    return f"{METADATA_PREFIX}/{key.offset:020d}-{key.epoch:010d}-{key.uuid}.checkpoint"


def cut_key(key: CutKey) -> str:
    return f"{CUT_PREFIX}/{key.cut:020d}-{key.uuid}.json.gz"


def tail_key(key: TailKey) -> str:
    return f"{TAIL_PREFIX}/{key.cut:020d}-{key.level:02d}-{key.node_id:010d}-{key.uuid}.tail"


def erasure_key(erasure_id: UUID) -> str:
    return f"{ERASE_PREFIX}/{erasure_id}.json.gz"


def parse_key(key: str) -> ParsedKey | None:
    """Return the parsed key, None for a key outside this layout (which a sweeper leaves alone).

    >>> parse_key("topics.json")
    SharedKey(name='topics.json')
    """
    if key in (CLUSTER_KEY, TOPICS_KEY, CUT_NAME):
        return SharedKey(key)
    match = _PARTITION.fullmatch(key)
    if match is None:
        return _parse_metadata(key) or _parse_cut(key) or _parse_erasure(key)
    topic_id, partition, rest = UUID(match[1]), int(match[2]), match[3]
    if partition > MAX_PARTITION:
        return None
    if rest == HEAD_NAME:
        return HeadKey(topic_id, partition)
    if found := _SEGMENT.fullmatch(rest):
        base, last, epoch = int(found[1]), int(found[2]), int(found[3])
        if base <= last <= MAX_OFFSET and epoch <= MAX_EPOCH:
            return SegmentKey(topic_id, partition, base, last, epoch, UUID(found[4]))
    elif found := _MANIFEST.fullmatch(rest):
        version, epoch = int(found[1]), int(found[2])
        if version <= MAX_OFFSET and epoch <= MAX_EPOCH:
            return ManifestKey(topic_id, partition, version, epoch, UUID(found[3]))
    elif found := _PAGE.fullmatch(rest):
        base, last = int(found[1]), int(found[2])
        if base <= last <= MAX_OFFSET:
            return PageKey(topic_id, partition, base, last, int(found[3]), UUID(found[4]))
    return None


def _parse_metadata(key: str) -> MetadataKey | None:
    found = _METADATA.fullmatch(key)
    if found is None or int(found[1]) > MAX_OFFSET or int(found[2]) > MAX_EPOCH:
        return None
    return MetadataKey(int(found[1]), int(found[2]), UUID(found[3]))


def _parse_cut(key: str) -> CutKey | TailKey | None:
    if found := _CUT.fullmatch(key):
        return CutKey(int(found[1]), UUID(found[2])) if 0 < int(found[1]) <= MAX_OFFSET else None
    if found := _TAIL.fullmatch(key):
        cut, node_id = int(found[1]), int(found[3])
        if 0 < cut <= MAX_OFFSET and node_id <= MAX_EPOCH:
            return TailKey(cut, int(found[2]), node_id, UUID(found[4]))
    return None


def _parse_erasure(key: str) -> ErasureKey | None:
    found = _ERASURE.fullmatch(key)
    return ErasureKey(UUID(found[1])) if found is not None else None


def is_segment_of(key: str, prefix: str, base_offset: int, last_offset: int) -> bool:
    """Return whether `key` is a segment of these offsets in the partition whose folder is `prefix`, as by
    `parse_key`.

    It is called for every segment of a manifest, and parsing (two UUIDs) takes four times as long.
    """
    begin = f"{prefix}/{base_offset:020d}-{last_offset:020d}-"
    if not key.startswith(begin) or not 0 <= base_offset <= last_offset <= MAX_OFFSET:
        return False
    found = _SEGMENT_END.fullmatch(key, len(begin))
    return found is not None and int(found[1]) <= MAX_EPOCH
