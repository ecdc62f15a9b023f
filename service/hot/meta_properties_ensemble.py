"""The ``meta.properties`` of all directories of a node, and whether they agree.

Apache Kafka `MetaPropertiesEnsemble`. Blocking; runs before anything in the directories is opened.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from service.base.disk import Disk
from service.base.errors import ConfigError, StorageError
from service.hot.log_dir import META, MetaProperties, encode_uuid, is_reserved, read_meta


@dataclass(frozen=True, slots=True)
class MetaPropertiesEnsemble:
    """The ``meta.properties`` of each directory. A directory is in one of the three collections."""

    formatted: Mapping[Path, MetaProperties]
    empty: tuple[Path, ...]
    """directories that do not exist, or have no such file"""
    failed: Mapping[Path, StorageError]
    """directories whose file cannot be read, or is invalid"""

    @property
    def cluster_id(self) -> str | None:
        return next((meta.cluster_id for meta in self.formatted.values()), None)

    def verify(self, cluster_id: str | None, node_id: int | None) -> None:
        """Raise `ConfigError` if a directory belongs to another cluster or node (None: to another than the
        first one does), or has the id of another directory, as a copy has."""
        for path, meta in self.formatted.items():
            file = path / META
            cluster_id = cluster_id if cluster_id is not None else meta.cluster_id
            node_id = node_id if node_id is not None else meta.node_id
            if meta.cluster_id != cluster_id:
                raise ConfigError(
                    f"Invalid cluster.id in: {file}. Expected {cluster_id}, but read {meta.cluster_id}"
                )
            if meta.node_id != node_id:
                raise ConfigError(
                    f"Stored node id {meta.node_id} doesn't match previous node id {node_id} in {file}. If "
                    "you moved your data, make sure your configured node id matches. If you intend to create "
                    "a new node, you should remove all data in your data directories."
                )
        check_directory_ids(self.formatted)


def load_ensemble(disk: Disk, paths: Iterable[Path]) -> MetaPropertiesEnsemble:
    """Read the ``meta.properties`` of each directory, in the order given."""
    formatted: dict[Path, MetaProperties] = {}
    empty: list[Path] = []
    failed: dict[Path, StorageError] = {}
    for path in paths:
        try:
            meta = read_meta(disk, path)
        except StorageError as e:
            failed[path] = e
            continue
        if meta is None:
            empty.append(path)
        else:
            formatted[path] = meta
    return MetaPropertiesEnsemble(formatted, tuple(empty), failed)


def check_directory_ids(formatted: Mapping[Path, MetaProperties]) -> None:
    """Raise `ConfigError` if two directories have the same id, or one has a reserved id."""
    seen: dict[UUID, Path] = {}
    for path, meta in formatted.items():
        shown = encode_uuid(meta.directory_id)
        if is_reserved(meta.directory_id):
            raise ConfigError(f"Invalid reserved directory ID {shown} found in {path}")
        other = seen.setdefault(meta.directory_id, path)
        if other != path:
            raise ConfigError(
                f"Duplicate directory ID {shown} found. It was the ID of {other}, but also of {path}: one is "
                "a copy of the other"
            )
