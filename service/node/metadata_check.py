"""Whether a node may begin with the metadata log that its directories hold. Blocking.

A controller notes the id of its metadata directory in each of its directories before it takes part in the
quorum. So a lost metadata log is told from a directory that is new:

- The id is the noted one: what the node has promised under it (votes, records) is forgotten. It is refused,
  as a voter that votes twice in an epoch makes two leaders. `firn format` gives the directory a new id.
- The id is another one: it never voted. In a dynamic quorum the node fetches the metadata from the others,
  and has no vote until it is added under the new id. Its partitions are known before its logs are opened.
- Nothing is noted, and there are partitions: nobody knows what was lost. It is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final
from uuid import UUID

from service.base.disk import Disk
from service.base.errors import CorruptionError, StorageError
from service.base.files import exists, read_file, write_atomically
from service.config.cluster import ClusterConfig
from service.hot import names
from service.hot.log_dir import MAX_SMALL_BYTES, decode_uuid, encode_uuid
from service.metadata.formatting import FIRST_SNAPSHOT, SelfFormatting, self_formatting

_log = logging.getLogger(__name__)

NOTE: Final = ".metadata-directory"
"""The id of the metadata directory that this node has voted with last"""
_SNAPSHOT: Final = ".checkpoint"
_READ: Final = 'see docs/operations.md, "A directory is lost"'


def check_metadata(
    disk: Disk, cluster: ClusterConfig, log_dirs: Sequence[Path], directory_id: UUID, *, recovers: bool
) -> None:
    """Refuse to begin with empty metadata where something depends on what was lost: `CorruptionError`.

    `log_dirs`: those that work; `directory_id`: of the metadata directory; `recovers`: the archive is to be
    taken over, and brings the metadata back. Raises `StorageError` where a directory cannot be read.
    """
    metadata = cluster.metadata_log_dir / names.CLUSTER_METADATA_DIR
    found = [entry.name for entry in disk.list(metadata)] if exists(disk, metadata) else []
    if any(one.endswith((names.LOG, _SNAPSHOT)) and one != FIRST_SNAPSHOT.file_name for one in found):
        return
    noted: set[UUID] = set()
    if self_formatting(cluster) is SelfFormatting.NEVER:
        noted = _noted(disk, _directories(cluster, log_dirs))
        if noted and cluster.is_static_voter:
            raise CorruptionError(
                f"{metadata} is lost or empty, and this node has voted: of a static quorum it comes back "
                f"from a copy of the directory alone, as it would vote twice, {_READ}"
            )
        if directory_id in noted:
            raise CorruptionError(
                f"{metadata} is lost or empty, and this node has voted under its directory id "
                f"{encode_uuid(directory_id)}: it would vote twice. Put the directory back as it was, or "
                f"{_way_back(disk, cluster.metadata_log_dir)}, {_READ}"
            )
    is_fetched = bool(noted) and FIRST_SNAPSHOT.file_name not in found
    if recovers or is_fetched:
        return
    for path in log_dirs:
        if replicas := _replicas(disk, path):
            raise CorruptionError(
                f"{metadata} is lost or empty, and {path} holds {len(replicas)} partitions, {replicas[0]} "
                f"among them, which would be set aside: {_READ}"
            )


def _way_back(disk: Disk, metadata_log_dir: Path) -> str:
    """Say what gives the node another directory id, and deletes no partition."""
    if replicas := _replicas(disk, metadata_log_dir):
        return (
            f"leave {metadata_log_dir} as it is, which holds {len(replicas)} partitions: "
            f"set metadata.log.dir to a new directory and format that one"
        )
    return f"empty {metadata_log_dir} and format it under a new id"


def _replicas(disk: Disk, path: Path) -> list[str]:
    found = [e.name for e in disk.list(path) if e.is_dir and names.parse_partition_dir(e.name)]
    return [name for name in found if name != names.CLUSTER_METADATA_DIR]


def note_metadata(disk: Disk, cluster: ClusterConfig, log_dirs: Sequence[Path], directory_id: UUID) -> None:
    """Note the id of a controller's metadata directory in all of its directories, where several vote.

    Raises `StorageError` where the metadata directory cannot be written. One of the others that cannot says
    less at the next start.
    """
    if self_formatting(cluster) is not SelfFormatting.NEVER:
        return
    note = f"{encode_uuid(directory_id)}\n".encode()
    for path in _directories(cluster, log_dirs):
        try:
            if not exists(disk, path / NOTE) or read_file(disk, path / NOTE, MAX_SMALL_BYTES) != note:
                write_atomically(disk, path / NOTE, note)
        except StorageError as e:
            if path == cluster.metadata_log_dir:
                raise
            _log.warning(
                "%s is not written: %s; should the metadata log be lost, it is missed", path / NOTE, e
            )


def _directories(cluster: ClusterConfig, log_dirs: Sequence[Path]) -> list[Path]:
    return list(dict.fromkeys((cluster.metadata_log_dir, *log_dirs)))


def _noted(disk: Disk, directories: Iterable[Path]) -> set[UUID]:
    noted = set()
    for path in directories:
        if exists(disk, path / NOTE):
            text = read_file(disk, path / NOTE, MAX_SMALL_BYTES).decode("ascii", "replace").strip()
            try:
                noted.add(decode_uuid(text))
            except ValueError as e:
                raise CorruptionError(f"{path / NOTE} holds no directory id: {text[:40]!r}") from e
    return noted
