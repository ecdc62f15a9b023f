"""Segment object: one sealed Kafka segment and everything needed to read it, in one immutable object. [P]

Byte layout (docs/bucket-format.md; integers big-endian)::

    [Kafka .log bytes]           log_length bytes, from position 0: a valid .log file by themselves
    [offset index]               Kafka's .index bytes
    [time index]                 Kafka's .timeindex bytes
    [transaction index]          Kafka's .txnindex bytes, often empty
    [producer snapshot]          Kafka's .snapshot bytes at the segment's end, may be empty
    [leader epochs]              text as in Kafka's leader-epoch-checkpoint
    [epoch history]              the same of the whole log up to the segment's end; older objects have none
    [key filter]                 which keys its records may have; older objects have none
    [block table]                rows of 56 bytes, see `block_table`
    [JSON footer]                UTF-8
    [u32 length of the JSON][u32 crc32c of JSON and length][8 bytes b"FIRNSEG2"]

Readers need the *tail*: block table, JSON, trailer. It is at the end, so one suffix GET opens the object; a
manifest entry has its position, so one ranged GET of the exact size does, too.

Version 2 is written. Its footer may name sections that we do not know, anywhere after the log, and longer
rows of the block table: both are ignored. Version 1 (b"FIRNSEG1") has exactly the sections above.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Final, NamedTuple
from uuid import UUID

from crc32c import crc32c

from service.base.errors import CorruptionError
from service.base.types import NO_OFFSET, Buffer
from service.remote.format.block_table import MAX_ROW_BYTES, ROW, BlockTable, LogBlock
from service.remote.format.fields import (
    MAX_INTEGER,
    epochs_field,
    int_field,
    later_int_field,
    object_field,
    optional_int_field,
    parse_json_object,
    saturated,
    str_field,
    uuid_field,
)
from service.remote.format.keys import MAX_EPOCH, MAX_OFFSET, MAX_PARTITION, SegmentKey, segment_key
from service.remote.format.manifest import SegmentEntry
from service.remote.format.rewrite_origin import RewriteOrigin, origin_fields, parse_origin
from service.remote.format.rows import MAX_GENERATION
from service.remote.format.stamp import Stamp, stamp_fields, stamp_of

MAGICS: Final = {b"FIRNSEG1": 1, b"FIRNSEG2": 2}
MAGIC: Final = b"FIRNSEG2"
TRAILER: Final = struct.Struct(">II8s")
FORMAT: Final = "firn-segment"
FORMAT_VERSION: Final = 2

MAX_LOG_LENGTH: Final = (1 << 31) - 1  # Kafka keeps positions in a segment as int32
MAX_SECTION_LENGTH: Final = 1 << 30
MAX_SECTIONS: Final = 64
MAX_TXN_INDEX_BYTES: Final = 64 << 20
"""More rows, nearly two million, do not belong to one segment."""
MAX_JSON_LENGTH: Final = 1 << 20
MAX_TAIL_LENGTH: Final = 256 << 20
SUFFIX_HINT: Final = 64 << 10
"""A suffix of this many bytes holds the whole tail of a 1 GiB segment with blocks of 1 MiB."""

SECTION_NAMES: Final = (
    "offset_index",
    "time_index",
    "txn_index",
    "producer_snapshot",
    "leader_epochs",
    "block_table",
)

EPOCH_HISTORY: Final = "epoch_history"
"""Section that objects have beside those: a reader of before passes over it."""
MAX_HISTORY_BYTES: Final = 4 << 20
"""More than 100,000 leader epochs do not belong to one log."""

KEY_FILTER: Final = "key_filter"
"""Section with a filter of the records' keys: a reader of before passes over it, too."""
MAX_FILTER_BYTES: Final = 2 << 20

LeaderEpochs = tuple[tuple[int, int], ...]
"""(leader epoch, its first offset), both strictly rising."""


class SegmentIdentity(NamedTuple):
    """Cluster, partition and offsets of an object's records. Both offsets are inclusive; `uuid` is the
    upload's."""

    cluster_id: str
    topic_id: UUID
    topic: str
    partition: int
    base_offset: int
    last_offset: int
    leader_epoch: int
    uuid: UUID

    @property
    def key(self) -> str:
        """Key of the object, relative to the prefix."""
        return segment_key(
            SegmentKey(
                self.topic_id,
                self.partition,
                self.base_offset,
                self.last_offset,
                self.leader_epoch,
                self.uuid,
            )
        )


class Section(NamedTuple):
    """A run of bytes inside the object, with its crc32c."""

    position: int
    length: int
    crc32c: int

    @property
    def end(self) -> int:
        return self.position + self.length


@dataclass(frozen=True, slots=True)
class Footer:
    """Verified tail of a segment object: enough to plan every read of it.

    `transactional_batch_count` counts the batches with the transactional or the control bit; None where that
    is not known, because the object is older than that field. `max_timestamp` is -1 when no record has one;
    `max_timestamp_offset` is the offset of a record that has it, -1 where that is not known. `sections` are
    the known ones. `open_from` is as in `manifest.SegmentEntry`. `rewrite` is None for an uploaded segment,
    whose generation is 0. `keyed_record_count` counts the records with a key; None where it is not known.
    """

    identity: SegmentIdentity
    log_length: int
    record_count: int
    batch_count: int
    transactional_batch_count: int | None
    max_timestamp: int
    max_timestamp_offset: int
    leader_epochs: LeaderEpochs
    sections: Mapping[str, Section]
    blocks: BlockTable
    object_size: int
    crc: int
    generation: int = 0
    stamp: Stamp | None = None
    format_version: int = FORMAT_VERSION
    open_from: int = NO_OFFSET
    rewrite: RewriteOrigin | None = None
    keyed_record_count: int | None = None

    @property
    def tail_position(self) -> int:
        """First byte of the tail (block table, JSON, trailer)."""
        return self.sections["block_table"].position

    @property
    def min_timestamp(self) -> int:
        """Least timestamp of any record, -1 where that is not known of every block."""
        return min(block.min_timestamp for block in self.blocks)


class OpenSegment(NamedTuple):
    """A segment ready to be read: its footer locates the blocks of its log."""

    entry: SegmentEntry
    footer: Footer


class PlannedObject(NamedTuple):
    """An object ready to be written: its key and size are known before the first byte is read.

    `parts()` yields buffers that add up to `size`; each call starts over, so an upload can be retried.
    """

    footer: Footer
    size: int
    tail: bytes
    middle: tuple[bytes, ...]
    parts: Callable[[], Iterator[Buffer]]

    @property
    def key(self) -> str:
        return self.footer.identity.key


def encode_leader_epochs(epochs: LeaderEpochs) -> bytes:
    """Return the text of Kafka's ``leader-epoch-checkpoint``: version 0, count, one ``epoch offset`` per
    line."""
    lines = "".join(f"{epoch} {start}\n" for epoch, start in epochs)
    return f"0\n{len(epochs)}\n{lines}".encode()


def decode_epoch_history(data: Buffer, footer: Footer) -> LeaderEpochs:
    """Return the leader epochs in an object's section `epoch_history`, which is verified already.

    Raises `CorruptionError` unless they rise, and end in those that the footer has of its segment.
    """
    lines = bytes(data).split(b"\n")
    if lines[0] != b"0" or lines[-1] or len(lines) < 4 or lines[1] != b"%d" % (len(lines) - 3):
        raise CorruptionError(f"epoch history: {bytes(data[:40])!r} is not a checkpoint of leader epochs")
    if len(data) > MAX_HISTORY_BYTES or not all(map(_EPOCH_LINE.fullmatch, lines[2:-1])):
        raise CorruptionError("epoch history: not lines of an epoch and an offset")
    found = tuple((int(epoch), int(start)) for epoch, start in (line.split(b" ") for line in lines[2:-1]))
    for one, after in pairwise(found):
        if after[0] <= one[0] or after[1] <= one[1]:
            raise CorruptionError(f"epoch history: {after} behind {one}")
    check_history(found, footer.leader_epochs, footer.identity.last_offset)
    return found


def check_history(history: LeaderEpochs, own: LeaderEpochs, last_offset: int) -> None:
    """Raise `CorruptionError` unless a log's leader epochs up to `last_offset` end in a segment's `own`.

    The first of these may begin below the segment, where the history says.
    """
    (epoch, first), *others = own
    at = len(history) - len(others) - 1
    is_same = at >= 0 and history[at + 1 :] == tuple(others) and history[at][0] == epoch
    if not is_same or history[at][1] > first or history[-1][1] > last_offset:
        raise CorruptionError(f"epoch history: ends in {history[-3:]}, the segment has {own[:3]}")


_EPOCH_LINE: Final = re.compile(rb"[0-9]{1,10} [0-9]{1,19}")


def plan_object(
    identity: SegmentIdentity,
    *,
    log: Callable[[], Iterable[Buffer]],
    log_length: int,
    blocks: Sequence[LogBlock],
    offset_index: bytes,
    time_index: bytes,
    txn_index: bytes = b"",
    producer_snapshot: bytes = b"",
    leader_epochs: LeaderEpochs,
    epoch_history: LeaderEpochs = (),
    key_filter: bytes = b"",
    keyed_record_count: int | None = None,
    transactional_batch_count: int | None,
    max_timestamp_offset: int = -1,
    generation: int = 0,
    rewrite: RewriteOrigin | None = None,
    stamp: Stamp | None = None,
    open_from: int = NO_OFFSET,
) -> PlannedObject:
    """Lay out one object. Nothing of the log is read until `PlannedObject.parts` is iterated.

    `log` starts a new pass over exactly `log_length` bytes; `blocks` cover them without a gap (see
    `BlockTableBuilder`); `transactional_batch_count` is None where it was not counted; `epoch_history` are
    the log's leader epochs up to the segment's end, empty where they are not known; `rewrite` comes with a
    `generation` above 0. Raises `ValueError` when `blocks` have a gap, or a bound of the format is exceeded:
    an object that readers would refuse is never written.
    """
    table = BlockTable.of(blocks)
    _check_plan(identity, log_length, table, leader_epochs)
    bodies = {
        "offset_index": offset_index,
        "time_index": time_index,
        "txn_index": txn_index,
        "producer_snapshot": producer_snapshot,
        "leader_epochs": encode_leader_epochs(leader_epochs),
        **({EPOCH_HISTORY: encode_leader_epochs(epoch_history)} if epoch_history else {}),
        **({KEY_FILTER: key_filter} if key_filter else {}),
        "block_table": table.encoded,
    }
    if len(bodies.get(EPOCH_HISTORY, b"")) > MAX_HISTORY_BYTES:
        raise ValueError(f"{len(epoch_history)} leader epochs in one log")
    if len(key_filter) > MAX_FILTER_BYTES:
        raise ValueError(f"a key filter of {len(key_filter)} bytes, at most {MAX_FILTER_BYTES} fit")
    sections = _lay_out(bodies, log_length)
    totals = table.totals()
    if not 0 <= (transactional_batch_count or 0) <= totals.batch_count:
        raise ValueError(f"{transactional_batch_count} of {totals.batch_count} batches are transactional")
    draft = Footer(
        identity=identity,
        log_length=log_length,
        record_count=totals.record_count,
        batch_count=totals.batch_count,
        transactional_batch_count=transactional_batch_count,
        max_timestamp=saturated(totals.max_timestamp),
        max_timestamp_offset=max_timestamp_offset,
        leader_epochs=leader_epochs,
        sections=sections,
        blocks=table,
        object_size=0,
        crc=0,
        generation=generation,
        stamp=stamp,
        open_from=open_from,
        rewrite=rewrite,
        keyed_record_count=keyed_record_count,
    )
    ending = encode_footer(draft)
    size = sections["block_table"].end + len(ending)
    tail = table.encoded + ending
    footer = _readable(tail, size)
    middle = tuple(body for name, body in bodies.items() if name != "block_table")
    return PlannedObject(footer, size, tail, middle, partial(_parts, log, footer, middle, tail))


def _readable(tail: bytes, size: int) -> Footer:
    """Return the footer in `tail`, as readers will. Raises `ValueError` where they would refuse it."""
    try:
        return decode_footer(tail, size)
    except CorruptionError as e:
        raise ValueError(str(e)) from e


def _lay_out(bodies: Mapping[str, bytes], position: int) -> dict[str, Section]:
    """Place one section after the other, from `position` on."""
    sections: dict[str, Section] = {}
    for name, body in bodies.items():
        if len(body) > MAX_SECTION_LENGTH:
            raise ValueError(f"{name} of {len(body)} bytes, at most {MAX_SECTION_LENGTH} fit")
        sections[name] = Section(position, len(body), crc32c(body))
        position += len(body)
    return sections


def _parts(
    log: Callable[[], Iterable[Buffer]], footer: Footer, middle: Iterable[bytes], tail: bytes
) -> Iterator[Buffer]:
    left = footer.log_length
    for part in log():
        left -= len(part)
        yield part
    if left:
        raise CorruptionError(
            f"{footer.identity.key}: the log is {-left:+d} bytes off the planned {footer.log_length}"
        )
    yield from (body for body in middle if body)
    yield tail


def _check_plan(
    identity: SegmentIdentity, log_length: int, table: BlockTable, leader_epochs: LeaderEpochs
) -> None:
    if not 0 < log_length <= MAX_LOG_LENGTH:
        raise ValueError(f"a segment of {log_length} bytes cannot be offloaded")
    if identity.last_offset > MAX_INTEGER:
        raise ValueError(f"offset {identity.last_offset} is beyond {MAX_INTEGER}, the format's greatest")
    try:
        table.verify(log_length, identity.base_offset, identity.last_offset)
        _check_epochs(leader_epochs, identity)
    except CorruptionError as e:
        raise ValueError(str(e)) from e


def _check_epochs(epochs: LeaderEpochs, identity: SegmentIdentity) -> None:
    """Raise `CorruptionError` unless epochs rise and cover the segment from its first offset on."""
    if not epochs or epochs[0][1] > identity.base_offset or epochs[-1][1] > identity.last_offset:
        raise CorruptionError(f"leader epochs {epochs[:3]} do not cover offset {identity.base_offset}")
    for (epoch, start), (next_epoch, next_start) in pairwise(epochs):
        if next_epoch <= epoch or next_start <= start:
            raise CorruptionError(f"leader epochs do not rise at epoch {next_epoch}, offset {next_start}")


def encode_footer(footer: Footer) -> bytes:
    """Return JSON footer and trailer, in version 2. The same footer always gives the same bytes."""
    identity = footer.identity
    transactional, keyed = footer.transactional_batch_count, footer.keyed_record_count
    document = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "log_length": footer.log_length,
        "cluster_id": identity.cluster_id,
        "topic_id": str(identity.topic_id),
        "topic": identity.topic,
        "partition": identity.partition,
        "base_offset": identity.base_offset,
        "last_offset": identity.last_offset,
        "leader_epoch": identity.leader_epoch,
        "uuid": str(identity.uuid),
        "generation": footer.generation,
        **({} if footer.rewrite is None else {"rewrite": origin_fields(footer.rewrite)}),
        **stamp_fields(footer.stamp),
        "record_count": footer.record_count,
        "batch_count": footer.batch_count,
        **({} if transactional is None else {"transactional_batch_count": transactional}),
        **({} if footer.open_from == NO_OFFSET else {"open_from": footer.open_from}),
        **({} if keyed is None else {"keyed_record_count": keyed}),
        "max_timestamp": footer.max_timestamp,
        "max_timestamp_offset": footer.max_timestamp_offset,
        "leader_epochs": [list(pair) for pair in footer.leader_epochs],
        "block_row_bytes": ROW.size,
        "sections": {
            name: {"position": section.position, "length": section.length, "crc32c": section.crc32c}
            for name, section in footer.sections.items()
        },
    }
    body = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
    if len(body) > MAX_JSON_LENGTH:
        raise ValueError(f"JSON footer of {len(body)} bytes, at most {MAX_JSON_LENGTH} fit")
    length = len(body).to_bytes(4, "big")
    return body + TRAILER.pack(len(body), crc32c(length, crc32c(body)), MAGIC)


class Trailer(NamedTuple):
    """The last 16 bytes: length of the JSON before them, its checksum, and the format's version."""

    json_length: int
    crc: int
    version: int


def decode_trailer(suffix: Buffer, object_size: int) -> Trailer:
    """Parse the last 16 bytes of an object. Raises `CorruptionError` when they are not a segment object's."""
    if len(suffix) < TRAILER.size or object_size < TRAILER.size:
        raise CorruptionError(f"{object_size} bytes are too few for a segment object")
    length, crc, magic = TRAILER.unpack_from(suffix, len(suffix) - TRAILER.size)
    version = MAGICS.get(bytes(magic))
    if version is None:
        raise CorruptionError(
            f"ends in {bytes(magic)!r}, not in {MAGIC!r}: not a segment object, or cut short"
        )
    if not 2 <= length <= min(MAX_JSON_LENGTH, object_size - TRAILER.size):
        raise CorruptionError(f"claims a JSON footer of {length} bytes in {object_size} bytes")
    return Trailer(length, crc, version)


def tail_length(suffix: Buffer, object_size: int) -> int:
    """Return how many trailing bytes `decode_footer` needs, from some of them; fetch that many when they are
    more.

    A suffix that holds the JSON gives the exact answer; a shorter one the length of JSON and trailer.
    """
    trailer = decode_trailer(suffix, object_size)
    needed = trailer.json_length + TRAILER.size
    if len(suffix) < needed:
        return needed
    document = _document(suffix, trailer)
    section = _section(object_field(document, "sections"), "block_table")
    # Unknown sections may follow the block table: they are part of the tail, and ignored.
    length = object_size - section.position
    if not needed <= length <= MAX_TAIL_LENGTH:
        raise CorruptionError(f"the tail of a {object_size}-byte object cannot begin at {section.position}")
    return length


def decode_footer(suffix: Buffer, object_size: int) -> Footer:
    """Parse and verify the tail of an object of `object_size` bytes from its last ``len(suffix)`` bytes.

    Raises `CorruptionError` where magic, checksums, the order of the sections or the block table's coverage
    of the log are wrong. When the suffix is merely too short, `tail_length` tells by how much.
    """
    view = memoryview(suffix)
    trailer = decode_trailer(view, object_size)
    needed = tail_length(view, object_size)
    if needed > len(view):
        raise CorruptionError(f"the tail has {needed} bytes, {len(view)} given")
    document = _document(view, trailer)
    most = MAX_OFFSET if trailer.version == 1 else MAX_INTEGER
    identity = _identity(document, most)
    log_length = int_field(document, "log_length", 1, MAX_LOG_LENGTH)
    end = object_size - trailer.json_length - TRAILER.size
    sections = _sections(object_field(document, "sections"), log_length, end, trailer.version)
    section = sections["block_table"]
    start = len(view) - (object_size - section.position)
    encoded = view[start : start + section.length]
    if crc32c(encoded) != section.crc32c:
        raise CorruptionError("block table: wrong checksum")
    row_bytes = ROW.size
    if trailer.version > 1:
        row_bytes = int_field(document, "block_row_bytes", ROW.size, MAX_ROW_BYTES)
    table = BlockTable.decode(encoded, row_bytes)
    table.verify(log_length, identity.base_offset, identity.last_offset)
    epochs = epochs_field(document, "leader_epochs", most)
    _check_epochs(epochs, identity)
    totals = table.totals()
    generation = later_int_field(document, "generation", 0, MAX_GENERATION, 0)
    footer = Footer(
        identity=identity,
        log_length=log_length,
        record_count=int_field(document, "record_count", 0, most),
        batch_count=int_field(document, "batch_count", 0, most),
        transactional_batch_count=later_int_field(
            document, "transactional_batch_count", 0, totals.batch_count, None
        ),
        max_timestamp=optional_int_field(document, "max_timestamp", most),
        max_timestamp_offset=optional_int_field(document, "max_timestamp_offset", most),
        leader_epochs=epochs,
        sections=sections,
        blocks=table,
        object_size=object_size,
        crc=trailer.crc,
        generation=generation,
        stamp=stamp_of(document),
        format_version=trailer.version,
        open_from=later_int_field(document, "open_from", 0, identity.last_offset + 1, NO_OFFSET),
        rewrite=parse_origin(document, generation),
        keyed_record_count=later_int_field(document, "keyed_record_count", 0, totals.record_count, None),
    )
    counted = (footer.record_count, footer.batch_count, footer.max_timestamp)
    if counted != totals._replace(max_timestamp=min(totals.max_timestamp, most)):
        raise CorruptionError("the footer's totals are not the block table's")
    return footer


def _document(suffix: Buffer, trailer: Trailer) -> dict[str, Any]:
    view = memoryview(suffix)
    end = len(view) - TRAILER.size
    body = view[end - trailer.json_length : end]
    if crc32c(trailer.json_length.to_bytes(4, "big"), crc32c(body)) != trailer.crc:
        raise CorruptionError("footer: wrong checksum")
    document = parse_json_object(bytes(body), "footer")
    if document.get("format") != FORMAT or document.get("format_version") != trailer.version:
        raise CorruptionError(
            f"footer of format {document.get('format')!r} {document.get('format_version')!r}, "
            f"not {FORMAT!r} {trailer.version}"
        )
    return document


def _identity(document: dict[str, Any], most: int) -> SegmentIdentity:
    base_offset = int_field(document, "base_offset", 0, most)
    return SegmentIdentity(
        cluster_id=str_field(document, "cluster_id"),
        topic_id=uuid_field(document, "topic_id"),
        topic=str_field(document, "topic"),
        partition=int_field(document, "partition", 0, MAX_PARTITION),
        base_offset=base_offset,
        last_offset=int_field(document, "last_offset", base_offset, most),
        leader_epoch=int_field(document, "leader_epoch", 0, MAX_EPOCH),
        uuid=uuid_field(document, "uuid"),
    )


def _section(document: dict[str, Any], name: str) -> Section:
    fields = object_field(document, name)
    return Section(
        int_field(fields, "position", 1, MAX_INTEGER),
        int_field(fields, "length", 0, MAX_SECTION_LENGTH),
        int_field(fields, "crc32c", 0, 0xFFFFFFFF),
    )


def _sections(document: dict[str, Any], log_length: int, end: int, version: int) -> dict[str, Section]:
    """Return the known sections; all must follow the log and each other without a gap, up to the JSON."""
    for name in SECTION_NAMES:
        object_field(document, name)
    if len(document) > MAX_SECTIONS or (version == 1 and len(document) != len(SECTION_NAMES)):
        raise CorruptionError(f"{len(document)} sections")
    found = {name: _section(document, name) for name in document}
    position = log_length
    for name, section in sorted(found.items(), key=lambda item: item[1][:2]):
        if section.position != position:
            raise CorruptionError(f"{name} begins at {section.position}, expected {position}")
        position = section.end
    if position != end:
        raise CorruptionError(f"sections end at {position}, the JSON footer begins at {end}")
    return {name: found[name] for name in (*SECTION_NAMES, EPOCH_HISTORY, KEY_FILTER) if name in found}
