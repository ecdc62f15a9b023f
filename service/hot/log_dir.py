"""One directory of ``log.dirs``: its lock, its identity, its checkpoints and its clean-shutdown marker.

All are Kafka's but the last:

    .lock                              held for the life of the process, against us and against a Kafka broker
    meta.properties                    version=1, cluster.id, node.id, directory.id
    .kafka_cleanshutdown               {"version":0,"brokerEpoch":N}; taken away before a log is opened
    recovery-point-offset-checkpoint   "<topic> <partition> <offset>" lines: below it all is on disk
    log-start-offset-checkpoint        likewise; only for logs that begin above their first segment
    cleaner-offset-checkpoint          likewise; for logs that are or were compacted, up to where
    replication-offset-checkpoint      likewise; high watermarks
    .fsync-failed                      empty; data that was not known to be durable is to be written again
                                       (a .lock that is not empty says the same: it needs no descriptor)
    .boot-id                           boot id of the machine when the directory was last in use, and the
                                       replica directories found damaged then, one a line

Its log ends are also kept in memory that outlives the process (`kept_ends`).
Blocking; for start, stop and the `log-io` threads.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from crc32c import crc32c

from service.base.disk import Disk, DiskError, LockHeld, MissingFile, Open
from service.base.errors import ConfigError, CorruptionError, StorageError
from service.base.files import (
    exists,
    make_directory,
    read_checkpoint,
    read_file,
    remove_file,
    write_atomically,
    write_checkpoint,
)
from service.base.uuids import decode_uuid as decode_uuid
from service.base.uuids import encode_uuid as encode_uuid
from service.base.world import World
from service.hot import names
from service.hot.fsync_failure import Latch
from service.hot.kept_ends import KeptEnd, KeptEnds
from service.hot.state import LogState
from service.records.checkpoint_lines import decode_offsets, encode_offsets

_log = logging.getLogger(__name__)

LOCK: Final = ".lock"
META: Final = "meta.properties"
CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"
DOUBTFUL: Final = ".fsync-failed"
BOOT_ID: Final = ".boot-id"
_META_CHECKSUM: Final = "#firn.crc32c="
_ID_CHECKSUM: Final = "\nfirn.crc32c: "
RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
LOG_START_OFFSETS: Final = "log-start-offset-checkpoint"
CLEANER_OFFSETS: Final = "cleaner-offset-checkpoint"
HIGH_WATERMARKS: Final = "replication-offset-checkpoint"

_RESERVED_IDS: Final = 100

MAX_SMALL_BYTES: Final = 1 << 20
"""More than any of these small files has; a larger one is invalid."""

Offsets = dict[tuple[str, int], int]
"""(topic, partition) to offset."""


class MetaProperties(NamedTuple):
    """The cluster and the node that a directory belongs to, and its id."""

    cluster_id: str
    node_id: int
    directory_id: UUID


class Boot(NamedTuple):
    """A run of the machine, and the directories whose replicas were found damaged in it."""

    boot_id: str
    damaged: frozenset[str] = frozenset()


def _encode_boot(boot: Boot) -> bytes:
    """Write the id, a line for each directory and one with the checksum of these."""
    return _with_checksum("".join(f"{line}\n" for line in (boot.boot_id, *sorted(boot.damaged))))


def _decode_boot(text: str) -> Boot:
    """Read what `_encode_boot` wrote. `CorruptionError` for a wrong checksum; earlier versions wrote none."""
    if not _is_whole(text):
        raise CorruptionError("its checksum is wrong")
    boot_id, *damaged = (line for line in text.splitlines() if not line.startswith(_META_CHECKSUM))
    return Boot(boot_id, frozenset(damaged))


def _with_checksum(body: str) -> bytes:
    """Add the line that `_is_whole` compares."""
    return f"{body}{_META_CHECKSUM}{crc32c(body.encode()):08x}\n".encode()


def _is_whole(text: str) -> bool:
    """Compare with the checksum in the last line, where there is one."""
    body, marker, _ = text.rpartition(_META_CHECKSUM)
    return not marker or text.encode() == _with_checksum(body)


def is_reserved(directory_id: UUID) -> bool:
    """Return whether the id is reserved, and no directory's (Kafka ``DirectoryId.reserved``)."""
    high, low = divmod(directory_id.int, 1 << 64)
    return not high and (low < _RESERVED_IDS or low >= 1 << 63)


def random_id(world: World, taken: Collection[UUID] = ()) -> UUID:
    """Return a random id that is none of `taken`, and whose text does not begin with a dash, as an option
    does."""
    while True:
        value = world.new_uuid()
        if value not in taken and not encode_uuid(value).startswith("-"):
            return value


class LogDir:
    """A locked log directory; `close` unlocks it. ``latch``: whether its device has failed."""

    def __init__(self, path: Path, world: World) -> None:
        """Make the directory if it does not exist, and lock it.

        `StorageError` if another process holds it, `DiskError` if it cannot be used.
        """
        self.path = path
        self.disk = world.disk
        self._world = world
        self.latch = Latch(self._mark_doubtful)
        self._boot = Boot("")
        self.kept: KeptEnds | None = None
        """its log ends, for the next process; None: they are not kept"""
        self._is_marked_clean = False
        make_directory(world.disk, path)
        try:
            self._lock_fd = world.disk.lock(path / LOCK)
        except LockHeld as e:
            raise StorageError(
                f"log directory {path} is in use: named twice, or by another process, which holds {LOCK}"
            ) from e

    def close(self) -> None:
        if self.kept is not None:
            self.kept.close(is_clean=self._is_marked_clean)
            self.kept = None
        if self._lock_fd >= 0:
            fd, self._lock_fd = self._lock_fd, -1
            self.disk.close(fd)

    def claim(self, cluster_id: str, node_id: int, taken: Collection[UUID] = ()) -> MetaProperties:
        """Write meta.properties where it is missing, with an id that is none of `taken`;
        `ConfigError` if the directory is another node's or cluster's.
        """
        known = read_meta(self.disk, self.path)
        if known is None:
            known = MetaProperties(cluster_id, node_id, random_id(self._world, taken))
            write_meta(self.disk, self.path, known)
        if known.node_id != node_id:
            raise ConfigError(f"node.id: {self.path} belongs to node {known.node_id}, not {node_id}")
        if known.cluster_id != cluster_id:
            raise ConfigError(
                f"cluster.id: {self.path} belongs to cluster {known.cluster_id}, not {cluster_id}"
            )
        return known

    def keep_ends(self, directory_id: UUID) -> None:
        """Keep log ends, and read those that the previous process kept, if the system has memory for that."""
        memory = self._world.memory
        block = None if memory is None else memory.open(f"firn-{directory_id}")
        if block is not None:
            self.kept = KeptEnds(block, self._world.boot_id)

    def previous_epoch(self) -> int:
        """Return the previous broker process's epoch if this directory has all that it acknowledged: it was
        stopped cleanly, or killed in this run of the machine. Else -1."""
        marked, kept = self.read_clean_epoch(), self.kept
        if marked >= 0 or kept is None or kept.epoch < 0:
            return marked
        why = "an fsync failed in it" if self.is_doubtful() else self._lacks(kept.before)
        if why:
            _log.warning(
                "%s may have lost records that this broker acknowledged: %s. It registers as after a loss of "
                "power, so that replicas elsewhere lead",
                self.path,
                why,
            )
            return -1
        return kept.epoch

    def _lacks(self, kept: Mapping[tuple[UUID, int], KeptEnd]) -> str:
        """Describe what is missing of what the previous process had written; empty if nothing is. Opening the
        logs verifies the bytes."""
        missing = dict(kept)
        try:
            for entry in self.disk.list(self.path):
                named = names.parse_partition_dir(entry.name) if entry.is_dir else None
                topic_id = None if named is None else read_topic_id(self.disk, self.path / entry.name)
                if named is None or topic_id is None:
                    continue
                end = missing.pop((topic_id, named[1]), None)
                if end is None:
                    continue
                active = self.path / entry.name / names.offset_file(end.base_offset, names.LOG)
                size = self.disk.stat(active).size
                if size < end.size:
                    return f"{active} has {size} bytes, before it had {end.size}"
        except (StorageError, CorruptionError) as e:
            return str(e)
        if missing:
            (topic_id, partition), _ = missing.popitem()
            return f"partition {partition} of topic id {encode_uuid(topic_id)} is missing"
        return ""

    def keep(self, state: LogState) -> None:
        """Keep the log's end from now on: it is in use."""
        if self.kept is not None:
            active = state.segments.active
            end = KeptEnd(state.end_offset, active.base_offset, active.size)
            state.on_end_moved = self.kept.keep(state.tip, end)

    def forget(self, state: LogState) -> None:
        """Keep the log's end no longer: it is not in use any more."""
        state.on_end_moved = None
        if self.kept is not None:
            self.kept.forget(state.tip)

    def _mark_doubtful(self) -> None:
        """Tell the next process that an fsync failed: bytes that it reads here may be in memory only, though
        the kernel takes them for written.

        The file need not be durable: after a power loss only what is on the device is read.
        """
        if self.kept is not None:
            self.kept.distrust(f"an fsync failed in {self.path}")
        try:
            self.disk.close(self.disk.open(self.path / DOUBTFUL, Open.CREATE))
            return
        except DiskError as e:
            _log.error("%s: cannot create %s: %s", self.path, DOUBTFUL, e)
        try:
            self.disk.pwrite(self._lock_fd, b"fsync failed", 0)  # open already: it needs no descriptor
        except DiskError as e:
            _log.error("%s: cannot note the failed fsync: %s", self.path, e)

    def is_doubtful(self) -> bool:
        """Return whether an fsync failed here in an earlier process."""
        return exists(self.disk, self.path / DOUBTFUL) or self.disk.size(self._lock_fd) > 0

    def trust_again(self) -> None:
        """Remove that note, once all data in doubt was written again and flushed."""
        remove_file(self.disk, self.path / DOUBTFUL)
        self.disk.truncate(self._lock_fd, 0)

    def read_boot(self) -> Boot:
        """Read in which run of the machine the directory was last in use; id "" if that is unknown."""
        path = self.path / BOOT_ID
        try:
            self._boot = _decode_boot(read_file(self.disk, path, MAX_SMALL_BYTES).decode())
        except MissingFile:
            pass
        except (CorruptionError, ValueError) as e:
            _log.warning("%s: cannot tell whether the machine was restarted: %s", path, e)
        return self._boot

    def lost_power(self, boot: Boot) -> bool:
        """Return whether the machine was restarted since: anything that was not flushed may be missing then.
        False if that is unknown."""
        return bool(boot.boot_id and self._world.boot_id) and boot.boot_id != self._world.boot_id

    @property
    def is_boot_due(self) -> bool:
        """True until the directory says in which run of the machine it is in use."""
        return self._boot.boot_id != self._world.boot_id

    def note_boot(self, damaged: Iterable[str]) -> None:
        """Write this run's boot id, after recovery: later losses are not those of the previous run.

        `damaged`: directories of replicas that cannot be opened; they wait for an operator, also over
        restarts of the machine.
        """
        boot = Boot(self._world.boot_id, frozenset(damaged))
        if boot == self._boot:
            return
        try:
            write_atomically(self.disk, self.path / BOOT_ID, _encode_boot(boot))
        except DiskError as e:
            self.latch.note(e)
            _log.error("cannot update %s: %s", self.path / BOOT_ID, e)
        else:
            self._boot = boot

    def remove_clean_marker(self) -> bool:
        """Remove the clean-shutdown marker, so that a later crash is known; returns whether it existed."""
        try:
            self.disk.unlink(self.path / CLEAN_SHUTDOWN)
        except MissingFile:
            return False
        self.disk.fsync_dir(self.path)
        return True

    def read_clean_epoch(self) -> int:
        """Read the broker epoch of the last clean shutdown; -1 if there was none, or it is not in the
        marker."""
        try:
            said = json.loads(read_file(self.disk, self.path / CLEAN_SHUTDOWN, MAX_SMALL_BYTES))
            epoch = said["brokerEpoch"]
        except (StorageError, CorruptionError, ValueError, KeyError, TypeError):
            return -1
        return epoch if isinstance(epoch, int) and epoch >= 0 else -1

    def write_clean_marker(self, broker_epoch: int) -> None:
        content = json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":"))
        write_atomically(self.disk, self.path / CLEAN_SHUTDOWN, content.encode())
        self._is_marked_clean = True

    def read_offsets(self, name: str) -> Offsets:
        """Read an offset checkpoint; an unreadable one counts as empty, which makes recovery longer."""
        path = self.path / name
        try:
            return decode_offsets(read_checkpoint(self.disk, path))
        except CorruptionError as e:
            _log.warning("ignoring %s: %s", path, e)
            return {}

    def write_offsets(self, name: str, offsets: Mapping[tuple[str, int], int]) -> None:
        write_checkpoint(self.disk, self.path / name, encode_offsets(offsets))


def cluster_id_of(disk: Disk, paths: Sequence[Path]) -> str | None:
    """Return the cluster id of the log directories, None if all are new. `ConfigError` if they disagree.

    Ignores a directory that cannot be used.
    """
    found: set[str] = set()
    for path in paths:
        with contextlib.suppress(DiskError):
            meta = read_meta(disk, path)
            found.update([meta.cluster_id] if meta is not None else ())
    if len(found) > 1:
        raise ConfigError(f"log.dirs: directories of different clusters: {', '.join(sorted(found))}")
    return found.pop() if found else None


def read_meta(disk: Disk, path: Path) -> MetaProperties | None:
    """Read meta.properties of a log directory, None if it does not exist; `StorageError` if it is invalid."""
    file = path / META
    try:
        text = read_file(disk, file, MAX_SMALL_BYTES).decode()
    except MissingFile:
        return None
    except (CorruptionError, UnicodeDecodeError) as e:
        raise StorageError(f"{file}: {e}") from e
    _check_meta(file, text)
    pairs = (line.partition("=") for line in text.splitlines() if line.strip() and line[0] not in "#!")
    fields = {key.strip(): value.strip() for key, _, value in pairs}
    try:
        if fields["version"] != "1":
            raise ValueError(f"version {fields['version']}")
        return MetaProperties(
            fields["cluster.id"], int(fields["node.id"]), decode_uuid(fields["directory.id"])
        )
    except (KeyError, ValueError) as e:
        raise StorageError(f"{file} is invalid: {e}") from e


def _check_meta(file: Path, text: str) -> None:
    """Compare with the checksum in the last line, a comment to Kafka, where there is one."""
    if not _is_whole(text):
        raise StorageError(
            f"{file} is damaged: its checksum is wrong. If you changed it on purpose, remove its last line"
        )


def write_meta(disk: Disk, path: Path, meta: MetaProperties) -> None:
    """Write meta.properties in Kafka's format, and a checksum behind; it is durable on return."""
    lines = (
        "version=1",
        f"cluster.id={meta.cluster_id}",
        f"node.id={meta.node_id}",
        f"directory.id={encode_uuid(meta.directory_id)}",
    )
    body = "\n".join(lines) + "\n"
    write_atomically(disk, path / META, _with_checksum(body))


def read_topic_id(disk: Disk, directory: Path) -> UUID | None:
    """Read the topic id in a replica's partition.metadata, None if the file is missing or empty, as a crash
    leaves it while a replica is made. `CorruptionError` if it has any other content."""
    path = directory / names.PARTITION_METADATA
    try:
        text = read_file(disk, path, MAX_SMALL_BYTES).decode("utf-8", "replace")
    except MissingFile:
        return None
    if not text.strip("\0 \n"):
        return None
    body, marker, checksum = text.partition(_ID_CHECKSUM)
    try:
        if marker and checksum != f"{crc32c(body.encode()):08x}":
            raise ValueError("its checksum is wrong")
        version, topic_id = body.splitlines()
        if version != "version: 0" or not topic_id.startswith("topic_id: "):
            raise ValueError("version 0 and a topic id are expected")
        return decode_uuid(topic_id.removeprefix("topic_id: "))
    except ValueError as e:
        raise CorruptionError(f"{path} is invalid: {e}") from e


def write_topic_id(disk: Disk, directory: Path, topic_id: UUID) -> None:
    """Write Kafka's two lines, and a checksum that Kafka does not read: a flipped bit makes another id."""
    body = f"version: 0\ntopic_id: {encode_uuid(topic_id)}"
    text = f"{body}{_ID_CHECKSUM}{crc32c(body.encode()):08x}"
    write_atomically(disk, directory / names.PARTITION_METADATA, text.encode())
