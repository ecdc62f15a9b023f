"""FILE of a restore: a `.checkpoint` with the first records of the restored cluster's metadata log.

Batches between a snapshot's header and footer, as Kafka's tools read them. The first record names in JSON
what the file is for: the heir's cluster id, its brokers, the cut. `firn format --restore` checks that and
puts the other records where a new log's first records are. Functions that access files block.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from service.base.disk import Disk, MissingFile
from service.base.errors import ConfigError, CorruptionError
from service.base.files import read_file, write_atomically
from service.base.types import Buffer
from service.metadata.batches import ControlType, decode_batches
from service.metadata.bootstrap import levels_of
from service.metadata.frames import Frame, UnknownRecord, newest
from service.metadata.image import METADATA_VERSION
from service.metadata.records import BeginTransactionRecord, EndTransactionRecord, MetadataRecord
from service.metadata.snapshot_codec import encode_snapshot
from service.remote.format.fields import int_field, list_field, parse_json_object, str_field

FORMAT: Final = "firn-restore"
FORMAT_VERSION: Final = 1
MAX_FILE_BYTES: Final = 1 << 30
_MOST_BROKERS: Final = 10_000
_MAX_ID: Final = (1 << 31) - 1
_NOT_A_FILE: Final = "is not a file of `firn restore apply`"


class RestoreHeader(NamedTuple):
    """Purpose of a file: the heir, and the cut that it comes from."""

    cluster_id: str
    source_id: str
    cut: int
    at_ms: int
    brokers: tuple[int, ...]


class RestoreFile(NamedTuple):
    """Parsed file: what it is for, and the first records of the log."""

    header: RestoreHeader
    frames: tuple[Frame, ...]


def encode_restore(
    header: RestoreHeader, records: Iterable[MetadataRecord], now_ms: int
) -> Iterator[bytearray]:
    """Yield the file's batches."""
    return encode_snapshot(
        map(newest, _enveloped(header, records)), epoch=0, last_timestamp_ms=header.at_ms, now_ms=now_ms
    )


def _enveloped(header: RestoreHeader, records: Iterable[MetadataRecord]) -> Iterator[MetadataRecord]:
    facts = {"format": FORMAT, "format_version": FORMAT_VERSION, **header._asdict()}
    yield BeginTransactionRecord(name=json.dumps(facts, separators=(",", ":")))
    yield from records
    yield EndTransactionRecord()


def write_restore(
    disk: Disk, path: Path, header: RestoreHeader, records: Iterable[MetadataRecord], now_ms: int
) -> None:
    """Write the file, whole or not at all."""
    write_atomically(disk, path, b"".join(encode_restore(header, records, now_ms)))


def read_restore(disk: Disk, path: Path) -> RestoreFile:
    """Read and verify the file. Raises `ConfigError` for one that is not, or not yet, such a file."""
    try:
        return decode_restore(read_file(disk, path, MAX_FILE_BYTES))
    except MissingFile as e:
        raise ConfigError(f"--restore {path}: there is no such file") from e
    except CorruptionError as e:
        raise ConfigError(f"--restore {path} {_NOT_A_FILE}: {e}; make it again") from e


def decode_restore(data: Buffer) -> RestoreFile:
    """Parse the file. Raises `CorruptionError` where it is damaged, incomplete or another kind of file."""
    frames: list[Frame] = []
    seen: list[int] = []
    next_offset = 0
    for batch in decode_batches(data):
        if ControlType.SNAPSHOT_FOOTER in seen or (batch.base_offset, batch.epoch) != (next_offset, 0):
            raise CorruptionError(f"a batch of offset {batch.base_offset} where {next_offset} is due")
        next_offset = batch.last_offset + 1
        seen.extend(record.control_type for record in batch.control)
        frames.extend(batch.frames)
    if seen[:1] != [ControlType.SNAPSHOT_HEADER] or seen[-1:] != [ControlType.SNAPSHOT_FOOTER]:
        raise CorruptionError("no whole snapshot")
    if len(frames) < 2:
        raise CorruptionError("it has no records")
    first, last = frames[0].record, frames[-1].record
    if not isinstance(first, BeginTransactionRecord) or not isinstance(last, EndTransactionRecord):
        raise CorruptionError("it does not begin with what it is for")
    header = _header(parse_json_object((first.name or "").encode(), "first record"))
    found = tuple(frames[1:-1])
    unknown = next((one for one in found if isinstance(one.record, UnknownRecord)), None)
    if unknown is not None:
        raise CorruptionError(f"a record of unknown type {unknown.api_key}, version {unknown.version}")
    if METADATA_VERSION not in levels_of(found):
        raise CorruptionError(f"no level of {METADATA_VERSION}")
    return RestoreFile(header, found)


def _header(fields: dict[str, Any]) -> RestoreHeader:
    version = fields.get("format_version")
    if fields.get("format") != FORMAT or version != FORMAT_VERSION:
        raise CorruptionError(
            f"expected {FORMAT} {FORMAT_VERSION}, found {str((fields.get('format'), version))[:120]}"
        )
    brokers = list_field(fields, "brokers", _MOST_BROKERS)
    if any(type(one) is not int or not 0 <= one <= _MAX_ID for one in brokers):
        raise CorruptionError("brokers that are no ids")
    return RestoreHeader(
        str_field(fields, "cluster_id"),
        str_field(fields, "source_id"),
        int_field(fields, "cut", 1, (1 << 53) - 1),
        int_field(fields, "at_ms", 0, (1 << 53) - 1),
        tuple(brokers),
    )


def check_restore(found: RestoreFile, *, cluster_id: str, node_id: int, is_broker: bool) -> None:
    """Raise `ConfigError` unless the file is for this cluster, and a broker is one that it has."""
    header = found.header
    if header.cluster_id != cluster_id:
        raise ConfigError(
            f"--restore: the file is for cluster {header.cluster_id}, not {cluster_id}: give that id by "
            f"--cluster-id, the one that `firn restore apply` printed"
        )
    if is_broker and node_id not in header.brokers:
        raise ConfigError(
            f"--restore: the file is for brokers {', '.join(map(str, header.brokers))}, and this node is "
            f"{node_id}: give it one of these ids, or run `firn restore apply` with --brokers"
        )
