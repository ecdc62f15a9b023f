"""Check of an empty metadata log at the start: refuses one that was lost. Blocking.

A controller notes the id of its metadata directory in each of its directories before it joins the quorum.
The note tells a lost metadata log from a new directory:

- The id is the noted one: the node has lost its votes and records under it. The start is refused: a voter
  that votes twice in an epoch makes two leaders. `firn format` gives the directory a new id.
- The id is another one: it never voted. In a dynamic quorum the node fetches the metadata from the others
  before it opens its logs, and has no vote until it is added under the new id.
- There is no note, but there are partitions: the lost metadata is not known. The start is refused.
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
from service.metadata.raft.state_file import FILE_NAME

_log = logging.getLogger(__name__)

NOTE: Final = ".metadata-directory"
"""File with the id of the metadata directory under which this node joined the quorum last"""
_SNAPSHOT: Final = ".checkpoint"
_READ: Final = 'see docs/operations.md, "A directory is lost"'


def check_metadata(
    disk: Disk, cluster: ClusterConfig, log_dirs: Sequence[Path], directory_id: UUID, *, recovers: bool
) -> None:
    """Raise `CorruptionError` if the metadata log is empty and votes or partitions depend on the lost one.

    `log_dirs`: the online ones; `directory_id`: id of the metadata directory; `recovers`: a recovery from the
    bucket follows, which brings the metadata back. Raises `StorageError` where a directory cannot be read.
    """
    metadata = cluster.metadata_log_dir / names.CLUSTER_METADATA_DIR
    found = [entry.name for entry in disk.list(metadata)] if exists(disk, metadata) else []
    if any(one.endswith((names.LOG, _SNAPSHOT)) and one != FIRST_SNAPSHOT.file_name for one in found):
        return
    noted: set[UUID] = set()
    # A first start that ended between the note and the log has not voted, if its directory is as it was.
    has_voted = FIRST_SNAPSHOT.file_name not in found or FILE_NAME in found
    is_begun = has_voted or not exists(disk, cluster.metadata_log_dir / NOTE)
    if is_begun and self_formatting(cluster) is SelfFormatting.NEVER:
        noted = _noted(disk, _directories(cluster, log_dirs))
        if noted and cluster.is_static_voter:
            raise CorruptionError(
                f"{metadata} is lost or empty, and this node has voted: it would vote twice. In a static "
                f"quorum only a copy of the directory brings it back, {_READ}"
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
    """Describe how to give the node another directory id without deleting a partition."""
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
    """Note the id of the metadata directory in all directories of a node that is one of several controllers.

    Raises `StorageError` where the metadata directory cannot be written. A note that is missing in another
    directory weakens the check at the next start.
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
                "cannot write %s: %s; without it a lost metadata log may not be noticed", path / NOTE, e
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
