"""Files that are either whole or not there, and Kafka's checkpoint text format.

A checkpoint file is ``<version>\\n<number of lines>\\n<line>\\n…`` (Apache Kafka ``CheckpointFile``); what a
line holds is its owner's business.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from service.base.errors import CorruptionError


def fsync_dir(path: Path) -> None:
    """Make the directory's entries durable (a rename or an unlink is not, until this is done)."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_atomically(path: Path, data: bytes, *, fsync: bool = True) -> None:
    """Replace `path` by `data` so that a crash leaves either the old or the new content."""
    temporary = path.with_name(path.name + ".tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        if fsync:
            os.fsync(fd)
    finally:
        os.close(fd)
    os.replace(temporary, path)
    if fsync:
        fsync_dir(path.parent)


def write_checkpoint(path: Path, lines: Iterable[str], *, version: int = 0, fsync: bool = True) -> None:
    """Write a checkpoint file in Kafka's format."""
    body = list(lines)
    text = "\n".join([str(version), str(len(body)), *body]) + "\n"
    write_atomically(path, text.encode(), fsync=fsync)


def read_checkpoint(path: Path, *, version: int = 0) -> list[str]:
    """Lines of a checkpoint file, none where the file is not there.

    Raises `CorruptionError` when the version, the count or the encoding is not as written.
    """
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return []
    except UnicodeDecodeError as e:
        raise CorruptionError(f"{path}: not text: {e}") from e
    lines = text.splitlines()
    if len(lines) < 2 or lines[0] != str(version) or not lines[1].isdigit():
        raise CorruptionError(f"{path}: not a checkpoint file of version {version}")
    if len(lines) - 2 != int(lines[1]):
        raise CorruptionError(f"{path}: {lines[1]} lines promised, {len(lines) - 2} found")
    return lines[2:]
