"""Files that are either whole or not there, directories made and removed, and Kafka's checkpoint text format.

A checkpoint file is ``<version>\\n<number of lines>\\n<line>\\n…`` (Apache Kafka ``CheckpointFile``); what a
line holds is its owner's business. Everything raises `DiskError` where the disk refuses.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from service.base.disk import Disk, DiskError, MissingFile, NotOpened, Open
from service.base.errors import CorruptionError

MAX_CHECKPOINT_BYTES: Final = 256 << 20
TEMPORARY: Final = ".tmp"


class FsyncFailed(DiskError):
    """What was written since the last fsync may be lost, whatever later ones say: nobody knows."""


def fsync_file(disk: Disk, fd: int) -> None:
    """As `Disk.fsync`, with an error of its own: `FsyncFailed`."""
    try:
        disk.fsync(fd)
    except DiskError as e:
        raise FsyncFailed(e.doing, e.path, e.errno) from e


def sync_data(disk: Disk, fd: int) -> None:
    """As `Disk.fdatasync`, with an error of its own: `FsyncFailed`."""
    try:
        disk.fdatasync(fd)
    except DiskError as e:
        raise FsyncFailed(e.doing, e.path, e.errno) from e


def fsync_dir(disk: Disk, path: Path) -> None:
    """As `Disk.fsync_dir`: `FsyncFailed`, but `MissingFile` where there is no such directory, and `NotOpened`
    where it was not asked for, say for want of descriptors."""
    try:
        disk.fsync_dir(path)
    except (MissingFile, NotOpened):
        raise
    except DiskError as e:
        raise FsyncFailed(e.doing, e.path, e.errno) from e


def read_file(disk: Disk, path: Path, most_bytes: int) -> bytes:
    """The whole file. `MissingFile` where there is none, `CorruptionError` where it is larger than that."""
    fd = disk.open(path)
    try:
        size = disk.size(fd)
        if size > most_bytes:
            raise CorruptionError(f"{path}: {size} bytes, at most {most_bytes} are read")
        return disk.pread(fd, size, 0)
    finally:
        disk.close(fd)


def exists(disk: Disk, path: Path) -> bool:
    """Whether anything is at `path`."""
    try:
        disk.stat(path)
    except MissingFile:
        return False
    return True


def write_atomically(disk: Disk, path: Path, data: bytes, *, fsync: bool = True) -> None:
    """Replace `path` by `data` so that a crash leaves either the old or the new content."""
    temporary = path.with_name(path.name + TEMPORARY)
    fd = disk.open(temporary, Open.ANEW)
    try:
        disk.pwrite(fd, data, 0)
        if fsync:
            fsync_file(disk, fd)
    finally:
        disk.close(fd)
    disk.rename(temporary, path)
    if fsync:
        fsync_dir(disk, path.parent)


def make_directory(disk: Disk, path: Path) -> None:
    """Make a directory, and its parents, where they are missing. Durable, but for what was there before."""
    missing = []
    while not exists(disk, path):
        missing.append(path)
        path = path.parent
    for one in reversed(missing):
        disk.mkdir(one)
        fsync_dir(disk, one.parent)


def remove_tree(disk: Disk, path: Path) -> None:
    """Remove a directory with all that is in it, links not followed. What is gone already is not missed."""
    try:
        for entry in disk.list(path):
            if entry.is_dir:
                remove_tree(disk, path / entry.name)
            else:
                remove_file(disk, path / entry.name)
        disk.rmdir(path)
    except MissingFile:
        return


def remove_file(disk: Disk, path: Path) -> None:
    """Remove a file that may be gone already."""
    try:
        disk.unlink(path)
    except MissingFile:
        return


def write_checkpoint(
    disk: Disk, path: Path, lines: Iterable[str], *, version: int = 0, fsync: bool = True
) -> None:
    """Write a checkpoint file in Kafka's format."""
    body = list(lines)
    text = "\n".join([str(version), str(len(body)), *body]) + "\n"
    write_atomically(disk, path, text.encode(), fsync=fsync)


def read_checkpoint(disk: Disk, path: Path, *, version: int = 0) -> list[str]:
    """Lines of a checkpoint file, none where the file is not there.

    Raises `CorruptionError` when the version, the count or the encoding is not as written.
    """
    try:
        text = read_file(disk, path, MAX_CHECKPOINT_BYTES).decode()
    except MissingFile:
        return []
    except UnicodeDecodeError as e:
        raise CorruptionError(f"{path}: not text: {e}") from e
    if not text.endswith("\n"):
        raise CorruptionError(f"{path}: ends in the middle of a line")  # of which a number may be cut short
    lines = text.splitlines()
    if len(lines) < 2 or lines[0] != str(version) or not lines[1].isdigit():
        raise CorruptionError(f"{path}: not a checkpoint file of version {version}")
    if len(lines) - 2 != int(lines[1]):
        raise CorruptionError(f"{path}: {lines[1]} lines promised, {len(lines) - 2} found")
    return lines[2:]
