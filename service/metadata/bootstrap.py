"""Initial content of a formatted directory: ``bootstrap.checkpoint``, and the first voters.

    bootstrap.checkpoint                          feature levels of a new log; all metadata of a restored one
    __cluster_metadata-0/0…0-0….checkpoint        kraft.version and the voters, of a dynamic quorum

Both are snapshots in Kafka's format, batches between a header and a footer. The controller writes the records
of the first into an empty log. The second has no records, and two control records beside its header
(KIP-853). Sources: Apache Kafka ``BootstrapDirectory``, ``BootstrapMetadata``,
``Formatter.writeDynamicQuorumSnapshot``. Functions that access files block.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from service.base.disk import Disk, MissingFile
from service.base.errors import ConfigError, CorruptionError
from service.base.files import read_file, write_atomically
from service.base.types import Buffer
from service.hot.log_dir import decode_uuid, encode_uuid, is_reserved
from service.metadata.batches import ControlType, decode_batches
from service.metadata.endpoint import Endpoint
from service.metadata.frames import Frame, UnknownRecord, newest
from service.metadata.image import METADATA_VERSION, FeatureRange
from service.metadata.raft.control import VoterRecords
from service.metadata.raft.keys import ReplicaKey
from service.metadata.raft.voters import VoterNode, VoterSet
from service.metadata.records import FeatureLevelRecord, MetadataRecord
from service.metadata.snapshot_codec import encode_snapshot

_logger = logging.getLogger(__name__)

FILE_NAME: Final = "bootstrap.checkpoint"
KRAFT_VERSION: Final = "kraft.version"
"""Level in control records of the quorum, not in a FeatureLevelRecord."""
MAX_KRAFT_VERSION: Final = 1
MAX_BOOTSTRAP_BYTES: Final = 1 << 30
"""Bound of the file, which has all topics and partitions where a cluster is restored."""
_MAX_PORT: Final = 65535
_MAX_ID: Final = 2**31 - 1


class InitialController(NamedTuple):
    """Initial voter of a dynamic quorum."""

    node_id: int
    host: str
    port: int
    directory_id: UUID

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.node_id}@{host}:{self.port}:{encode_uuid(self.directory_id)}"


def parse_initial_controllers(text: str) -> tuple[InitialController, ...]:
    """Parse ``id@host:port:directory-id,…``, sorted by id. Raises `ConfigError` (``DynamicVoters.parse``).

    >>> [str(one) for one in parse_initial_controllers("2@[::1]:9093:JEXY6aqzQY-32P5TStzaFg")]
    ['2@[::1]:9093:JEXY6aqzQY-32P5TStzaFg']
    """
    controllers: dict[int, InitialController] = {}
    seen: dict[UUID, int] = {}
    for entry in filter(None, text.strip().split(",")):
        controller = _parse_initial_controller(entry.strip())
        if controller.node_id in controllers:
            raise ConfigError(f"Node id {controller.node_id} was specified more than once.")
        other = seen.setdefault(controller.directory_id, controller.node_id)
        if other != controller.node_id:
            raise ConfigError(
                f"Directory ID {encode_uuid(controller.directory_id)} was specified for node {other} and for "
                f"node {controller.node_id}."
            )
        controllers[controller.node_id] = controller
    if not controllers:
        raise ConfigError("No voters given.")
    return tuple(controllers[node_id] for node_id in sorted(controllers))


def _parse_initial_controller(entry: str) -> InitialController:
    node_id, at, rest = entry.partition("@")
    if not at:
        raise ConfigError("No @ found in dynamic voter string.")
    if not _is_number(node_id, _MAX_ID):
        raise ConfigError(f"Failed to parse node id in dynamic voter string: {entry}")
    if rest.startswith("["):
        host, bracket, rest = rest[1:].partition("]")
        if not bracket:
            raise ConfigError("Hostname began with left bracket, but no right bracket was found.")
        if not rest.startswith(":"):
            raise ConfigError("Port section must start with a colon.")
        rest = rest[1:]
    else:
        host, colon, rest = rest.partition(":")
        if not colon:
            raise ConfigError("No colon following hostname could be found.")
    if not host:
        raise ConfigError("No hostname found after node id.")
    port, colon, directory_id = rest.partition(":")
    if not colon:
        raise ConfigError("No colon following port could be found.")
    if not _is_number(port, _MAX_PORT) or not int(port):
        raise ConfigError(f"Invalid port {port} in dynamic voter string.")
    try:
        directory = decode_uuid(directory_id)
    except ValueError:
        raise ConfigError(f"Failed to parse directory ID in dynamic voter string: {directory_id}") from None
    if is_reserved(directory):
        raise ConfigError(f"Invalid reserved directory ID {directory_id} in dynamic voter string.")
    return InitialController(int(node_id), host, int(port), directory)


def _is_number(text: str, most: int) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 10 and int(text) <= most


def feature_frames(levels: Mapping[str, int]) -> tuple[Frame, ...]:
    """Return the records of feature `levels`, ``metadata.version`` first, the others by name.

    A feature at level 0 has no record.
    """
    names = sorted(name for name in levels if name not in (METADATA_VERSION, KRAFT_VERSION))
    chosen = [METADATA_VERSION, *(name for name in names if levels[name] > 0)]
    return tuple(newest(FeatureLevelRecord(name=name, feature_level=levels[name])) for name in chosen)


def levels_of(frames: Iterable[Frame]) -> dict[str, int]:
    """Return the feature levels that `frames` set."""
    records = (frame.record for frame in frames)
    return {one.name: one.feature_level for one in records if isinstance(one, FeatureLevelRecord)}


def split_supported(
    frames: Sequence[Frame], features: Iterable[FeatureRange]
) -> tuple[tuple[Frame, ...], tuple[FeatureLevelRecord, ...]]:
    """Split `frames` into those that this software can write into a new log, and unsupported features.

    Apache Kafka formats directories with features that Firn does not serve: they stay at level 0.
    """
    ranges = {one.name: one for one in features}
    taken: list[Frame] = []
    left: list[FeatureLevelRecord] = []
    for frame in frames:
        record = frame.record
        if isinstance(record, FeatureLevelRecord):
            known = ranges.get(record.name)
            if known is None or not known.min_level <= record.feature_level <= known.max_level:
                left.append(record)
                continue
        taken.append(frame)
    return tuple(taken), tuple(left)


def encode_bootstrap(frames: Iterable[Frame], now_ms: int) -> bytes:
    """Encode the content of ``bootstrap.checkpoint``."""
    return b"".join(encode_snapshot(frames, epoch=0, last_timestamp_ms=0, now_ms=now_ms))


def decode_bootstrap(data: Buffer) -> tuple[Frame, ...]:
    """Decode a ``bootstrap.checkpoint``.

    Raises `CorruptionError` where it is invalid, incomplete, or has no ``metadata.version``.
    """
    frames: list[Frame] = []
    seen: list[int] = []
    for batch in decode_batches(data):
        if ControlType.SNAPSHOT_FOOTER in seen:
            raise CorruptionError("a batch follows the footer")
        seen.extend(record.control_type for record in batch.control)
        if seen[:1] != [ControlType.SNAPSHOT_HEADER]:
            raise CorruptionError("the snapshot header is missing")
        frames.extend(batch.frames)
    if seen[-1:] != [ControlType.SNAPSHOT_FOOTER]:
        raise CorruptionError("the footer is missing, so the file is incomplete")
    for frame in frames:
        if isinstance(frame.record, UnknownRecord):
            raise CorruptionError(f"a record of unknown type {frame.api_key}, version {frame.version}")
    if METADATA_VERSION not in levels_of(frames):
        raise CorruptionError(f"No FeatureLevelRecord for {METADATA_VERSION} was found")
    return tuple(frames)


def write_bootstrap(disk: Disk, directory: Path, frames: Iterable[Frame], now_ms: int) -> None:
    """Write ``bootstrap.checkpoint`` durably."""
    write_atomically(disk, directory / FILE_NAME, encode_bootstrap(frames, now_ms))


def read_bootstrap(disk: Disk, directory: Path) -> tuple[Frame, ...] | None:
    """Read the first records of a new log; None where the file is missing.

    `CorruptionError` names the file.
    """
    path = directory / FILE_NAME
    try:
        return decode_bootstrap(read_file(disk, path, MAX_BOOTSTRAP_BYTES))
    except MissingFile:
        return None
    except CorruptionError as e:
        raise CorruptionError(f"{path}: {e}") from e


def first_records(
    disk: Disk, directory: Path, features: Iterable[FeatureRange]
) -> tuple[MetadataRecord, ...] | None:
    """Return the records that the controller writes into an empty log; None where the file is missing.

    Raises as `read_bootstrap`. Unsupported features are omitted, with a warning.
    """
    frames = read_bootstrap(disk, directory)
    if frames is None:
        return None
    taken, left = split_supported(frames, features)
    if left:
        _logger.warning(
            "%s has unsupported features, which stay at level 0: %s",
            directory / FILE_NAME,
            ", ".join(f"{one.name}={one.feature_level}" for one in left),
        )
    return tuple(frame.record for frame in taken if not isinstance(frame.record, UnknownRecord))


def encode_first_voters(
    controllers: Iterable[InitialController], listener: str, now_ms: int
) -> Iterator[bytearray]:
    """Encode the first snapshot of a dynamic quorum: ``kraft.version`` 1 and its voters.

    `listener`: the first of ``controller.listener.names``, the listener of their endpoints.
    """
    voters = VoterSet(
        VoterNode(
            ReplicaKey(one.node_id, one.directory_id),
            (Endpoint(listener.upper(), one.host, one.port),),
            0,
            MAX_KRAFT_VERSION,
        )
        for one in controllers
    )
    voter_records = VoterRecords(voters, MAX_KRAFT_VERSION)
    return encode_snapshot((), epoch=0, last_timestamp_ms=now_ms, now_ms=now_ms, voters=voter_records)
