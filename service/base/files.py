"""Atomic replacement of files, creation and removal of directories, and Kafka's checkpoint file format.

A checkpoint file is ``<version>\\n<number of lines>\\n<line>\\n…`` (Apache Kafka ``CheckpointFile``); the
caller defines the lines. Every function raises `DiskError` if a call on the disk fails.
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
    """A failed fsync. Writes since the last successful fsync may be lost even if a later fsync succeeds."""


def fsync_file(disk: Disk, fd: int) -> None:
    """Call `Disk.fsync`; raise its error as `FsyncFailed`."""
    try:
        disk.fsync(fd)
    except DiskError as e:
        raise FsyncFailed(e.doing, e.path, e.errno) from e


def sync_data(disk: Disk, fd: int) -> None:
    """Call `Disk.fdatasync`; raise its error as `FsyncFailed`."""
    try:
        disk.fdatasync(fd)
    except DiskError as e:
        raise FsyncFailed(e.doing, e.path, e.errno) from e


def fsync_dir(disk: Disk, path: Path) -> None:
    """Make a directory's names durable: raises `FsyncFailed`, but `MissingFile` where there is no such
    directory, and `NotOpened` where it was not asked for, say for want of descriptors."""
    try:
        disk.fsync_dir(path)
    except (MissingFile, NotOpened):
        raise
    except DiskError as e:
        raise FsyncFailed(e.doing, e.path, e.errno) from e


def read_file(disk: Disk, path: Path, most_bytes: int) -> bytes:
    """Read the whole file. `MissingFile` if there is none, `CorruptionError` above `most_bytes`."""
    fd = disk.open(path)
    try:
        size = disk.size(fd)
        if size > most_bytes:
            raise CorruptionError(f"{path}: {size} bytes, at most {most_bytes} are read")
        return disk.pread(fd, size, 0)
    finally:
        disk.close(fd)


def exists(disk: Disk, path: Path) -> bool:
    """Return whether anything is at `path`."""
    try:
        disk.stat(path)
    except MissingFile:
        return False
    return True


def write_atomically(disk: Disk, path: Path, data: bytes, *, fsync: bool = True) -> None:
    """Replace the file at `path` by `data`; after a crash it has either the old or the new content."""
    temporary = path.with_name(path.name + TEMPORARY)
    fd = disk.open(temporary, Open.TRUNCATE)
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
    """Create a directory and its missing parents, durably."""
    missing = []
    while not exists(disk, path):
        missing.append(path)
        path = path.parent
    for one in reversed(missing):
        disk.mkdir(one)
        fsync_dir(disk, one.parent)


def remove_tree(disk: Disk, path: Path) -> None:
    """Remove a directory with all its content, links not followed. Missing entries are ignored."""
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
    """Remove a file; do nothing if it is missing."""
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
    """Read the lines of a checkpoint file; return none if there is no file.

    Raises `CorruptionError` if the version, the number of lines or the encoding is wrong.
    """
    try:
        text = read_file(disk, path, MAX_CHECKPOINT_BYTES).decode()
    except MissingFile:
        return []
    except UnicodeDecodeError as e:
        raise CorruptionError(f"{path}: not text: {e}") from e
    if not text.endswith("\n"):
        raise CorruptionError(f"{path}: ends in the middle of a line")  # a number in it may be cut short
    lines = text.splitlines()
    if len(lines) < 2 or lines[0] != str(version) or not lines[1].isdigit():
        raise CorruptionError(f"{path}: not a checkpoint file of version {version}")
    if len(lines) - 2 != int(lines[1]):
        raise CorruptionError(f"{path}: {lines[1]} lines expected, {len(lines) - 2} found")
    return lines[2:]
