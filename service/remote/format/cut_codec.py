"""Codecs of cuts and of `CUT`, which names those that are kept. [P]

A cut is one moment of the whole cluster: how far its metadata goes, where each partition's log begins and
ends, and which tails have the records that no segment has. Its document is written once; `CUT` is replaced in
place, as HEAD is. Decoders bound data before they inflate it and verify all that is used; they raise
`CorruptionError`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple
from uuid import UUID

from crc32c import crc32c

from service.base.errors import CorruptionError
from service.remote.format.documents import (
    FORMAT_VERSION,
    MAX_STORED_BYTES,
    open_document,
    open_sealed,
    pack,
    seal,
    unpack,
)
from service.remote.format.fields import (
    MAX_INTEGER,
    int_field,
    list_field,
    object_field,
    objects_field,
    str_field,
    uuid_field,
    uuid_value,
)
from service.remote.format.keys import MAX_EPOCH, CutKey, ErasureKey, TailKey, parse_key
from service.remote.format.manifest_codec import MAX_SMALL_BYTES
from service.remote.format.metadata_ref import (
    MAX_LIFE,
    MetadataRef,
    metadata_ref_fields,
    parse_metadata_ref,
)
from service.remote.format.stamp import Stamp, stamp_fields, stamp_of
from service.remote.format.tail_object import MAX_FOOTER_BYTES, MAX_TAIL_BYTES, TRAILER

Place = tuple[UUID, int]
"""topic id and partition"""

METADATA_TOPIC_ID: Final = UUID(int=1)
"""Kafka's id of `__cluster_metadata`: its records behind a cut's snapshot are in tails, as partition 0."""
METADATA_PLACE: Final = (METADATA_TOPIC_ID, 0)

CUT_FORMAT: Final = "firn-cut"
CUTS_FORMAT: Final = "firn-cuts"

MAX_TAILS: Final = 100_000
MAX_TOPICS: Final = 1_000_000
MAX_PARTITIONS: Final = 1_000_000
MAX_KEPT: Final = 256
MAX_ERASURES: Final = 64
NO_LEADER: Final = -1
"""Leader epoch of a partition that nobody led at a loose cut: its other numbers are those of the cut
before."""


class PartitionCut(NamedTuple):
    """One partition at a cut.

    The log has records from `start` to `end`, exclusive; `stable` is the last stable offset. Records below
    `saved` are in the chain or in tails, those below `saved_high` in the chain or in tails of level 1 or
    higher; `last_epoch` is the leader epoch of the last batch saved. `version` is that of the partition's
    entry in the catalog, 0 without one. `waits`: a segment that will hold the records up to `end` is awaited,
    no tail is written.
    """

    leader_epoch: int
    start: int
    end: int
    stable: int
    saved: int
    saved_high: int
    last_epoch: int
    version: int
    waits: bool

    @property
    def is_promised(self) -> bool:
        """True if a complete cut has all records; another partition comes back as far as its chain goes."""
        return self.end > self.start and (self.waits or self.saved >= self.end)

    @property
    def tailed_end(self) -> int:
        """Offset below which tails have records of this very log. A section may reach beyond, with records of
        an earlier leader that an unclean election took back."""
        return min(self.saved, self.end)


NEVER_LED: Final = PartitionCut(NO_LEADER, 0, 0, 0, 0, 0, NO_LEADER, 0, False)
"""Row of a partition that nobody has led since it was made."""


class MetadataEnd(NamedTuple):
    """End of metadata, exclusive, in one life of a cluster. Later lives are greater."""

    life: int
    offset: int


class TailRef(NamedTuple):
    """A tail object: its key, its size in bytes, and where its footer begins."""

    key: str
    size: int
    footer_position: int
    footer_crc: int


class Cut(NamedTuple):
    """One moment of a cluster.

    `at_ms` is the keeper's clock. The metadata is the snapshot `metadata` and the records behind it up to
    `metadata_end`, exclusive, whose last is of `metadata_epoch`. `tails` are all that are live at that
    moment. `is_exact`: every broker held its gate, so that whatever was visible to who caused something in
    the cut is in it, too. `follows` is the number of the newest cut that `CUT` had then, 0 where there was
    no `CUT`; None from software that does not say it.
    """

    cluster_id: str
    cut: int
    at_ms: int
    is_exact: bool
    metadata: MetadataRef
    metadata_end: int
    metadata_epoch: int
    tails: tuple[TailRef, ...]
    topics: Mapping[UUID, tuple[PartitionCut, ...]]
    stamp: Stamp | None = None
    follows: int | None = None


class CutRef(NamedTuple):
    """A cut's document: its stored size in bytes and its checksum.

    `is_complete`: everything below each end is in chains or in live tails.
    """

    cut: int
    key: str
    stored_size: int
    crc32c: int
    at_ms: int
    is_exact: bool
    is_complete: bool


class ErasureRef(NamedTuple):
    """Reference to an order to erase keys, which a restore must carry out: its document lies under `key`."""

    id: UUID
    key: str
    stored_size: int
    crc32c: int


class Cuts(NamedTuple):
    """`CUT`: the cuts that are kept, oldest first, the newest among them.

    `oldest_metadata`: the metadata of all of them goes at least up to there; None where that is not told.
    Objects that were dropped from chains beyond it may still be needed. `holds_chains`: what they name of
    chains stays as long as they do, as the keeper's settings say; None of software of before.
    """

    cluster_id: str
    kept: tuple[CutRef, ...]
    erasures: tuple[ErasureRef, ...] = ()
    stamp: Stamp | None = None
    oldest_metadata: MetadataEnd | None = None
    holds_chains: bool | None = None

    @property
    def newest(self) -> CutRef:
        return self.kept[-1]

    @property
    def complete(self) -> CutRef | None:
        """Newest complete cut."""
        return next((ref for ref in reversed(self.kept) if ref.is_complete), None)

    @property
    def exact(self) -> CutRef | None:
        """Newest cut that is complete and exact: what a restore takes unless it is told otherwise."""
        return next((ref for ref in reversed(self.kept) if ref.is_complete and ref.is_exact), None)


def encode_cut(cut: Cut) -> bytes:
    """Return the document's bytes. Raises `ValueError` where readers would refuse it."""
    document = {
        "format": CUT_FORMAT,
        "format_version": FORMAT_VERSION,
        "cluster_id": cut.cluster_id,
        "cut": cut.cut,
        **({} if cut.follows is None else {"follows": cut.follows}),
        "at_ms": cut.at_ms,
        "is_exact": cut.is_exact,
        **stamp_fields(cut.stamp),
        "metadata": metadata_ref_fields(cut.metadata),
        "metadata_end": cut.metadata_end,
        "metadata_epoch": cut.metadata_epoch,
        "tails": [list(ref) for ref in cut.tails],
        "topics": {
            str(topic_id): dict(zip(PartitionCut._fields, map(list, zip(*rows, strict=True)), strict=True))
            for topic_id, rows in cut.topics.items()
        },
    }
    try:
        _cut(document)
    except CorruptionError as e:
        raise ValueError(str(e)) from e
    return pack(document)


def decode_cut(data: bytes) -> Cut:
    """Parse and verify a cut's document."""
    return _cut(open_document(unpack(data, CUT_FORMAT), CUT_FORMAT).fields)


def open_cut(data: bytes, ref: CutRef) -> Cut:
    """Return the cut that `ref` names, its bytes checked against it."""
    if len(data) != ref.stored_size or crc32c(data) != ref.crc32c:
        raise CorruptionError(f"{ref.key}: {len(data)} bytes with another checksum than CUT's")
    cut = decode_cut(data)
    if (cut.cut, cut.at_ms, cut.is_exact) != (ref.cut, ref.at_ms, ref.is_exact):
        raise CorruptionError(f"{ref.key}: has cut {cut.cut} of {cut.at_ms}, which CUT does not say of it")
    return cut


def _cut(fields: dict[str, Any]) -> Cut:
    number = int_field(fields, "cut", 1, MAX_INTEGER)
    metadata = parse_metadata_ref(object_field(fields, "metadata"))
    topics = object_field(fields, "topics")
    if len(topics) > MAX_TOPICS:
        raise CorruptionError(f"{len(topics)} topics, at most {MAX_TOPICS} are read")
    left = MAX_PARTITIONS
    found: dict[UUID, tuple[PartitionCut, ...]] = {}
    for name in topics:
        found[uuid_value(name, "topic_id")] = rows = _partitions(object_field(topics, name), left)
        left -= len(rows)
    return Cut(
        str_field(fields, "cluster_id"),
        number,
        int_field(fields, "at_ms", 0, MAX_INTEGER),
        _truth(fields.get("is_exact"), "is_exact"),
        metadata,
        int_field(fields, "metadata_end", metadata.end_offset, MAX_INTEGER),
        int_field(fields, "metadata_epoch", metadata.epoch, MAX_EPOCH),
        _tails(list_field(fields, "tails", MAX_TAILS), number),
        found,
        stamp_of(fields),
        int_field(fields, "follows", 0, number - 1) if "follows" in fields else None,
    )


def _partitions(columns: dict[str, Any], most: int) -> tuple[PartitionCut, ...]:
    """Return the partitions of one topic, from 0 on. Columns that are not known are of later software."""
    lists = [list_field(columns, name, most) for name in PartitionCut._fields]
    if not lists[0] or any(len(one) != len(lists[0]) for one in lists):
        raise CorruptionError(f"columns of {[len(one) for one in lists]} partitions")
    for values, (name, low, high) in zip(lists, _BOUNDS, strict=False):
        for value in values:
            if type(value) is not int or not low <= value <= high:
                raise CorruptionError(f"{name}: {str(value)[:80]} is not an integer from {low} to {high}")
    for value in lists[-1]:
        _truth(value, "waits")
    rows = tuple(map(PartitionCut._make, zip(*lists, strict=True)))
    for row in rows:
        if not row.start <= row.stable <= row.end or not row.saved_high <= row.saved:
            raise CorruptionError(f"a partition's numbers do not fit: {row}")
    return rows


_BOUNDS: Final = (
    ("leader_epoch", NO_LEADER, MAX_EPOCH),
    ("start", 0, MAX_INTEGER),
    ("end", 0, MAX_INTEGER),
    ("stable", 0, MAX_INTEGER),
    ("saved", 0, MAX_INTEGER),
    ("saved_high", 0, MAX_INTEGER),
    ("last_epoch", NO_LEADER, MAX_EPOCH),
    ("version", 0, MAX_INTEGER),
)


def _tails(rows: Sequence[object], cut: int) -> tuple[TailRef, ...]:
    refs: list[TailRef] = []
    for row in rows:
        if not isinstance(row, list) or len(row) < len(TailRef._fields):
            raise CorruptionError("a tail that is not a row of key, size, footer's position and checksum")
        key, *numbers = row[: len(TailRef._fields)]
        size, position, crc = (_number(value, "tail") for value in numbers)
        parsed = parse_key(key) if isinstance(key, str) else None
        if not isinstance(parsed, TailKey) or parsed.cut > cut:
            raise CorruptionError(f"{str(key)[:120]!r} is not the key of a tail up to cut {cut}")
        is_there = 0 < size - position <= MAX_FOOTER_BYTES + TRAILER.size and size <= MAX_TAIL_BYTES
        if not is_there or crc > 0xFFFFFFFF:
            raise CorruptionError(f"{key}: a footer at {position} of {size} bytes")
        refs.append(TailRef(key, size, position, crc))
    if len({ref.key for ref in refs}) != len(refs):
        raise CorruptionError("a tail is named twice")
    return tuple(refs)


def encode_cuts(cuts: Cuts) -> bytes:
    """Return the bytes of `CUT`. Raises `ValueError` where readers would refuse it."""
    document = {
        "format": CUTS_FORMAT,
        "format_version": FORMAT_VERSION,
        "cluster_id": cuts.cluster_id,
        **stamp_fields(cuts.stamp),
        "kept": [ref._asdict() for ref in cuts.kept],
        "erasures": [{**one._asdict(), "id": str(one.id)} for one in cuts.erasures],
    }
    if cuts.oldest_metadata is not None:
        document["oldest_metadata"] = cuts.oldest_metadata._asdict()
    if cuts.holds_chains is not None:
        document["holds_chains"] = cuts.holds_chains
    data = seal(document)
    try:
        decode_cuts(data)
    except CorruptionError as e:
        raise ValueError(str(e)) from e
    return data


def decode_cuts(data: bytes) -> Cuts:
    """Parse and verify `CUT`. Raises `UnknownVersion`, too, where its checksum is right and its version
    later."""
    if len(data) > MAX_SMALL_BYTES:
        raise CorruptionError(f"CUT has {len(data)} bytes, at most {MAX_SMALL_BYTES} are read")
    fields = open_sealed(data, CUTS_FORMAT, frozenset()).fields
    kept = tuple(map(_cut_ref, objects_field(fields, "kept", MAX_KEPT)))
    if not kept:
        raise CorruptionError("CUT names no cut")
    for one, after in pairwise(kept):
        if after.cut <= one.cut:
            raise CorruptionError(f"CUT names cut {after.cut} behind {one.cut}")
    erasures = tuple(map(_erasure, objects_field(fields, "erasures", MAX_ERASURES)))
    oldest: MetadataEnd | None = None
    if "oldest_metadata" in fields:
        row = object_field(fields, "oldest_metadata")
        oldest = MetadataEnd(int_field(row, "life", 0, MAX_LIFE), int_field(row, "offset", 0, MAX_INTEGER))
    holds = _truth(fields["holds_chains"], "holds_chains") if "holds_chains" in fields else None
    return Cuts(str_field(fields, "cluster_id"), kept, erasures, stamp_of(fields), oldest, holds)


def _cut_ref(row: dict[str, Any]) -> CutRef:
    number = int_field(row, "cut", 1, MAX_INTEGER)
    key = str_field(row, "key")
    parsed = parse_key(key)
    if not isinstance(parsed, CutKey) or parsed.cut != number:
        raise CorruptionError(f"{key[:120]!r} is not the key of cut {number}")
    return CutRef(
        number,
        key,
        int_field(row, "stored_size", 1, MAX_STORED_BYTES),
        int_field(row, "crc32c", 0, 0xFFFFFFFF),
        int_field(row, "at_ms", 0, MAX_INTEGER),
        _truth(row.get("is_exact"), "is_exact"),
        _truth(row.get("is_complete"), "is_complete"),
    )


def _erasure(row: dict[str, Any]) -> ErasureRef:
    erasure_id, key = uuid_field(row, "id"), str_field(row, "key")
    if parse_key(key) != ErasureKey(erasure_id):
        raise CorruptionError(f"{key[:120]!r} is not the key of erasure {erasure_id}")
    return ErasureRef(
        erasure_id,
        key,
        int_field(row, "stored_size", 1, MAX_STORED_BYTES),
        int_field(row, "crc32c", 0, 0xFFFFFFFF),
    )


def _truth(value: object, name: str) -> bool:
    if type(value) is not bool:
        raise CorruptionError(f"{name}: {str(value)[:80]} is neither true nor false")
    return value


def _number(value: object, name: str) -> int:
    if type(value) is not int or not 0 <= value <= MAX_INTEGER:
        raise CorruptionError(f"{name}: {str(value)[:80]} is not an integer from 0 to {MAX_INTEGER}")
    return value
