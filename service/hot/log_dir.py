"""One directory of ``log.dirs``: its lock, its identity, its checkpoints and its clean-shutdown marker, all
as Kafka's.

    .lock                              held for the life of the process, against us and against a Kafka broker
    meta.properties                    version=1, cluster.id, node.id, directory.id .kafka_cleanshutdown
    {"version":0,"brokerEpoch":N}; taken away before the first log is opened recovery-point-offset-checkpoint
    "<topic> <partition> <offset>" lines: below it all is on disk log-start-offset-checkpoint        likewise;
    only for logs that begin above their first segment

Blocking; for start, stop and the `log-io` threads.
"""

from __future__ import annotations

import base64
import binascii
import fcntl
import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID, uuid4

from service.base.errors import ConfigError, CorruptionError, StorageError
from service.base.files import fsync_dir, read_checkpoint, write_atomically, write_checkpoint
from service.hot import names

_log = logging.getLogger(__name__)

LOCK: Final = ".lock"
META: Final = "meta.properties"
CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"
RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
LOG_START_OFFSETS: Final = "log-start-offset-checkpoint"

_held: set[Path] = set()
"""Directories that this process has locked.

A POSIX lock is the process's and goes when any descriptor of its file is closed: so nobody here may even open
a lock file that is held.
"""

Offsets = dict[tuple[str, int], int]
"""(topic, partition) to offset."""


class MetaProperties(NamedTuple):
    """Whose directory this is."""

    cluster_id: str
    node_id: int
    directory_id: UUID


def encode_uuid(value: UUID) -> str:
    """A UUID in Kafka's text form: URL-safe base64, 22 characters.

    >>> encode_uuid(UUID(int=1))
    'AAAAAAAAAAAAAAAAAAAAAQ'
    """
    return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=")


def decode_uuid(text: str) -> UUID:
    """`ValueError` if `text` is none."""
    try:
        return UUID(bytes=base64.b64decode(text + "==", altchars=b"-_", validate=True))
    except (binascii.Error, ValueError):
        raise ValueError(f"not an id: {text!r}") from None


def random_id() -> UUID:
    """A random id whose text does not begin with a dash (it would look like an option to the tools)."""
    while True:
        value = uuid4()
        if not encode_uuid(value).startswith("-"):
            return value


class LogDir:
    """A locked log directory; `close` gives it up."""

    def __init__(self, path: Path) -> None:
        """Make the directory if it is not there and lock it. `StorageError` if somebody else holds it."""
        self.path = path
        self._real = path.resolve()
        if self._real in _held:
            raise StorageError(
                f"log directory {path} is in use: named twice, or by another node of this process"
            )
        try:
            if not path.is_dir():
                path.mkdir(parents=True)
                fsync_dir(path.parent)
            self._lock_fd = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as e:
            raise StorageError(f"log directory {path} cannot be used: {e.strerror}") from e
        try:
            fcntl.lockf(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as e:
            os.close(self._lock_fd)
            raise StorageError(f"log directory {path} is in use: another process holds {LOCK}") from e
        _held.add(self._real)

    def close(self) -> None:
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1
            _held.discard(self._real)

    def claim(self, cluster_id: str, node_id: int) -> MetaProperties:
        """Write meta.properties where it is missing;

        `ConfigError` if the directory is another node's or cluster's.
        """
        known = read_meta(self.path)
        if known is None:
            known = MetaProperties(cluster_id, node_id, random_id())
            _write_meta(self.path, known)
        if known.node_id != node_id:
            raise ConfigError(f"node.id: {self.path} belongs to node {known.node_id}, not {node_id}")
        if known.cluster_id != cluster_id:
            raise ConfigError(
                f"cluster.id: {self.path} belongs to cluster {known.cluster_id}, not {cluster_id}"
            )
        return known

    def take_clean_marker(self) -> bool:
        """Whether the last shutdown was clean.

        Asked once: the marker is gone then, so a crash from now on shows.
        """
        marker = self.path / CLEAN_SHUTDOWN
        if not marker.exists():
            return False
        marker.unlink()
        fsync_dir(self.path)
        return True

    def write_clean_marker(self, broker_epoch: int) -> None:
        content = json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":"))
        write_atomically(self.path / CLEAN_SHUTDOWN, content.encode())

    def read_offsets(self, name: str) -> Offsets:
        """An offset checkpoint; an unreadable one counts as empty, which costs a longer recovery."""
        path = self.path / name
        try:
            offsets: Offsets = {}
            for line in read_checkpoint(path):
                topic, partition, offset = line.split()
                offsets[topic, int(partition)] = int(offset)
        except (CorruptionError, ValueError) as e:
            _log.warning("ignoring %s: %s", path, e)
            return {}
        return offsets

    def write_offsets(self, name: str, offsets: Mapping[tuple[str, int], int], *, fsync: bool = True) -> None:
        lines = [f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()]
        write_checkpoint(self.path / name, lines, fsync=fsync)


def cluster_id_of(paths: Sequence[Path]) -> str | None:
    """Cluster id that the log directories bear, None if all are new. `ConfigError` if they disagree."""
    found = {meta.cluster_id for path in paths if (meta := read_meta(path)) is not None}
    if len(found) > 1:
        raise ConfigError(f"log.dirs: directories of different clusters: {', '.join(sorted(found))}")
    return found.pop() if found else None


def read_meta(path: Path) -> MetaProperties | None:
    """meta.properties of a log directory, None if there is none; `StorageError` if it cannot be right."""
    file = path / META
    try:
        text = file.read_text("utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as e:
        raise StorageError(f"{file}: {e}") from e
    pairs = (line.partition("=") for line in text.splitlines() if line.strip() and line[0] not in "#!")
    fields = {key.strip(): value.strip() for key, _, value in pairs}
    try:
        if fields["version"] != "1":
            raise ValueError(f"version {fields['version']}")
        return MetaProperties(
            fields["cluster.id"], int(fields["node.id"]), decode_uuid(fields["directory.id"])
        )
    except (KeyError, ValueError) as e:
        raise StorageError(f"{file} is not what it must be: {e}") from e


def _write_meta(path: Path, meta: MetaProperties) -> None:
    lines = (
        "version=1",
        f"cluster.id={meta.cluster_id}",
        f"node.id={meta.node_id}",
        f"directory.id={encode_uuid(meta.directory_id)}",
    )
    write_atomically(path / META, ("\n".join(lines) + "\n").encode())


def read_topic_id(directory: Path) -> UUID | None:
    """Topic id in a replica's partition.metadata, None if the file is missing;

    `StorageError` if it is not one.
    """
    path = directory / names.PARTITION_METADATA
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return None
    fields = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    try:
        if fields["version"] != "0":
            raise ValueError(f"version {fields['version']}")
        return decode_uuid(fields["topic_id"])
    except (KeyError, ValueError) as e:
        raise StorageError(f"{path} is not what it must be: {e}") from e


def write_topic_id(directory: Path, topic_id: UUID) -> None:
    text = f"version: 0\ntopic_id: {encode_uuid(topic_id)}"
    write_atomically(directory / names.PARTITION_METADATA, text.encode(), fsync=False)
