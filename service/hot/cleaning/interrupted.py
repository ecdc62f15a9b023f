"""Undoing or finishing a compaction that a crash interrupted, at the next start; for the names see `swap`.

Source: Kafka `LogLoader.removeTempFilesAndCollectSwapFiles`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from service.base.disk import Disk, Entry, MissingFile, Open
from service.base.files import exists, fsync_dir, remove_file
from service.hot import names
from service.records.scan import scan_pieces

_log = logging.getLogger(__name__)

SIDE_FILES: Final = (names.OFFSET_INDEX, names.TIME_INDEX, names.TXN_INDEX)


def marked(path: Path, mark: str) -> Path:
    """Add a mark to the file's name."""
    return path.with_name(path.name + mark)


def rename(disk: Disk, source: Path, target: Path, *, must_be: bool) -> None:
    """Rename a file; if it does not exist, raise `MissingFile` if it `must_be`, else do nothing."""
    try:
        disk.rename(source, target)
    except MissingFile:
        if must_be:
            raise


def take_names(disk: Disk, log: Path) -> None:
    """Do the last two steps: from ``.swap`` to final names, which no other file has any more.

    The log is first, durably: while it ends with ``.swap``, so do the others.
    """
    rename(disk, marked(log, names.SWAP), log, must_be=True)
    fsync_dir(disk, log.parent)
    for suffix in SIDE_FILES:
        path = log.with_suffix(suffix)
        rename(disk, marked(path, names.SWAP), path, must_be=False)
    fsync_dir(disk, log.parent)


def clear(disk: Disk, log: Path) -> None:
    """Delete a copy that will not be used.

    The log is last: while it exists, a start knows that the other files are unused.
    """
    for path in (*(log.with_suffix(suffix) for suffix in SIDE_FILES), log):
        for mark in (names.SWAP, names.CLEANED):
            remove_file(disk, marked(path, mark))


def tidy(disk: Disk, directory: Path, entries: Iterable[Entry]) -> list[Entry]:
    """Undo or finish an interrupted compaction; returns the directory's entries afterwards.

    `CorruptionError` if a copy that is to be finished is damaged, `DiskError`.
    """
    entries = list(entries)
    marks = [(entry, *split) for entry in entries if entry.is_file and (split := _split(entry.name))]
    if not marks:
        return entries
    undone = {base for _, base, _, mark in marks if mark == names.CLEANED}
    swaps: dict[int, list[str]] = {}
    for entry, base, suffix, _ in sorted(marks, key=lambda found: found[2] == names.LOG):
        if base not in undone:
            swaps.setdefault(base, []).append(suffix)
        else:
            # The log last, as it shows that the other files are unused.
            _log.warning("deleting an unfinished compacted copy: %s", directory / entry.name)
            remove_file(disk, directory / entry.name)
    for base, suffixes in sorted(swaps.items()):
        _finish(disk, directory, base, suffixes)
    return disk.list(directory)


def _split(name: str) -> tuple[int, str, str] | None:
    """Parse (base offset, suffix, mark) of a segment's file with one of the two marks."""
    stem, dot, mark = name.rpartition(".")
    if dot + mark not in (names.CLEANED, names.SWAP):
        return None
    parsed = names.parse_offset_file(stem)
    return (*parsed, dot + mark) if parsed is not None and parsed[1] in names.SEGMENT_SUFFIXES else None


def _finish(disk: Disk, directory: Path, base: int, suffixes: Sequence[str]) -> None:
    log = directory / names.offset_file(base, names.LOG)
    if names.LOG in suffixes:
        end_offset = _end_of(disk, marked(log, names.SWAP), base)
        _log.warning("finishing an interrupted compaction: %s, up to offset %d", log, end_offset)
        for entry in disk.list(directory):
            parsed = names.parse_offset_file(entry.name)
            if parsed is not None and parsed[1] in names.SEGMENT_SUFFIXES and base <= parsed[0] < end_offset:
                remove_file(disk, directory / entry.name)
        fsync_dir(disk, directory)
        take_names(disk, log)
        return
    for path in (log.with_suffix(suffix) for suffix in suffixes):
        if exists(disk, path):  # the copy was never complete
            remove_file(disk, marked(path, names.SWAP))
        else:
            rename(disk, marked(path, names.SWAP), path, must_be=True)
    fsync_dir(disk, directory)


def _end_of(disk: Disk, path: Path, base: int) -> int:
    """Return the offset behind the last batch of a log file. `CorruptionError` unless sound batches fill
    it."""
    fd = disk.open(path, Open.READ)

    def read(position: int, size: int) -> bytes:
        return disk.pread(fd, size, position)

    end_offset = base
    try:
        for batches, _, _ in scan_pieces(read, 0, disk.size(fd), first_offset=base, name=str(path)):
            end_offset = batches.last_offsets[-1] + 1
    finally:
        disk.close(fd)
    return end_offset
