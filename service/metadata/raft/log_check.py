"""Checks at start-up that the metadata log's files still hold what was durable, before it changes any.

A crash tears the tail: it leaves an incomplete batch that was written and not flushed, and so not
acknowledged. The tail is cut. Any other defect is damage, and refused with the file and the position:

- below the durable point (`durable-offset`, or the newest snapshot's end where that cannot be read);
- before a valid batch in the same file, except for an observer, which acknowledges nothing, and except where
  a page in front of that batch was never written: batches follow each other while an fsync goes on, and a
  loss of power keeps any of their pages;
- a complete batch that does not belong there: another offset, an epoch that goes back or never began;
- files that are missing, or that overlap.

Complete batches beyond the durable point are kept, and rewritten in place: if a failed fsync ended the last
process, the kernel believes those pages to be clean, and the next fsync would not write them.

Blocking; for a `log-io` thread.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from service.base.disk import Disk, Open
from service.base.errors import CorruptionError
from service.base.files import exists
from service.hot import names
from service.hot.recovery_walk import PAGE_BYTES, has_unwritten_page
from service.records.batch import (
    HEADER_SIZE,
    LOG_OVERHEAD,
    BatchHeader,
    complete_headers,
    read_header,
    verify_crc,
)
from service.records.walk import find_sound

_READ_BYTES: Final = 4 * 1024 * 1024
_MAX_BATCH_BYTES: Final = 32 * 1024 * 1024
"""Above every batch that is written (8 MiB)."""

_logger = logging.getLogger(__name__)


class Durable(NamedTuple):
    """Durable part that the log must hold. `start`: end of the loaded snapshot; the log is needed from here
    on.

    `offset`: everything below was flushed; it may be less than `start`. `is_exact`: nothing was acknowledged
    beyond it, except what a crash of the machine kept from the file. `epoch`: newest epoch that ever began;
    None: unknown.
    """

    start: int
    offset: int
    is_exact: bool
    epoch: int | None
    is_acknowledged: bool = True
    """True where the log's records are acknowledged. Those of an observer are not, and it flushes none."""


class LogEnd(NamedTuple):
    """End of the log (exclusive), and the epoch of its last batch; -1 for none.

    `epoch_at_start`: epoch of the batch before `Durable.start`; -1 where there is none.
    """

    offset: int
    epoch: int
    epoch_at_start: int = -1


class _Break(NamedTuple):
    """Position where a file stops being a valid log. `is_whole`: a complete batch is there, so no crash made
    it. `is_unwritten`: the page with its first bytes was never written."""

    path: Path
    position: int
    offset: int
    reason: str
    is_whole: bool = False
    is_unwritten: bool = False


def check_log(disk: Disk, directory: Path, durable: Durable, control: list[bytes] | None = None) -> LogEnd:
    """Check every batch from `durable.start` on, cut a torn tail, and rewrite what is not known to be
    durable.

    The caller's fsync makes that durable. Batches of control records are added to `control`. Raises
    `CorruptionError` for damage, before it changes anything, and `DiskError`.
    """
    return _Check(disk, directory, durable, control).run()


class _Check:
    def __init__(self, disk: Disk, directory: Path, durable: Durable, control: list[bytes] | None) -> None:
        self._control = control
        self._disk = disk
        self._directory = directory
        self._durable = durable
        self._offset = 0
        self._epoch = self._epoch_at_start = -1
        self._doubtful: list[tuple[Path, int]] = []
        """Files with bytes that are not known to be durable, and the position of the first."""

    def run(self) -> LogEnd:
        bases = self._bases()
        found = self._walk(bases)
        if found is None and self._offset < self._durable.offset:
            raise self._refusal(
                self._path(bases[-1]) if bases else self._directory, None, "the log ends here"
            )
        if found is not None:
            self._refuse_damage(found)
            self._cut(found, [base for base in bases if base >= found.offset])
        for path, position in self._doubtful:
            self._rewrite(path, position)
        return LogEnd(self._offset, self._epoch, self._epoch_at_start)

    def _bases(self) -> list[int]:
        """Return the base offsets of the segments that are needed, in order."""
        parsed = (names.parse_offset_file(e.name) for e in self._disk.list(self._directory) if e.is_file)
        bases = sorted(one[0] for one in parsed if one is not None and one[1] == names.LOG)
        if not bases:
            return []
        if bases[0] > self._durable.start:
            raise CorruptionError(
                f"{self._directory}: the log begins at offset {bases[0]}, and the newest readable snapshot "
                f"ends at {self._durable.start}: the records between are missing"
            )
        return bases[max(i for i, base in enumerate(bases) if base <= self._durable.start) :]

    def _path(self, base: int) -> Path:
        return self._directory / names.offset_file(base, names.LOG)

    def _walk(self, bases: list[int]) -> _Break | None:
        """Check the batches of all segments; return the break, or None."""
        previous: Path | None = None
        for base in bases:
            path = self._path(base)
            if previous is None:
                self._offset = base
            elif base != self._offset:
                size = self._disk.stat(previous).size
                reason = f"offset {self._offset} follows, the next file begins at {base}"
                return _Break(previous, size, self._offset, reason, base < self._offset)
            previous = path
            found = self._walk_file(path)
            if found is not None:
                return found
        return None

    def _walk_file(self, path: Path) -> _Break | None:
        fd = self._disk.open(path)
        position = 0
        try:
            for header, data in _whole_batches(self._disk, fd, self._disk.size(fd)):
                defect = self._defect(header)
                if defect is not None:
                    lost = self._lost_first_bytes(fd, header.position)
                    return _Break(path, header.position, self._offset, defect, not lost, lost)
                if header.next_offset > self._durable.offset and path not in dict(self._doubtful):
                    self._doubtful.append((path, header.position))
                self._offset, self._epoch = header.next_offset, header.partition_leader_epoch
                if header.base_offset < self._durable.start:
                    self._epoch_at_start = self._epoch
                position = header.end
                if data is not None and self._control is not None:
                    self._control.append(data)
        except CorruptionError as e:
            return _Break(path, position, self._offset, str(e))
        finally:
            self._disk.close(fd)
        return None

    def _lost_first_bytes(self, fd: int, position: int) -> bool:
        """Return whether a page that was never written ends within the batch's base offset and length: what
        is left is a complete batch of another offset, which no checksum covers."""
        size = -position % PAGE_BYTES
        return 0 < size < LOG_OVERHEAD and self._disk.pread(fd, size, position) == bytes(size)

    def _defect(self, header: BatchHeader) -> str | None:
        """Return why a complete batch does not belong here. Its checksum does not cover offset and epoch."""
        epoch, newest = header.partition_leader_epoch, self._durable.epoch
        if header.base_offset != self._offset:
            return f"a batch of offset {header.base_offset} instead of {self._offset}"
        if epoch < max(self._epoch, 0):
            return f"a batch of epoch {epoch} after one of epoch {self._epoch}"
        if newest is not None and epoch > newest:
            return f"a batch of epoch {epoch}, but the newest epoch in quorum-state is {newest}"
        return None

    def _refuse_damage(self, found: _Break) -> None:
        """Raise `CorruptionError` unless the break is a torn tail."""
        below = found.offset < self._durable.offset
        if found.is_whole or below or self._is_followed(found):
            raise self._refusal(found.path, found.position, found.reason)

    def _is_followed(self, found: _Break) -> bool:
        """Return whether valid records lie behind the break: then the broken ones had been written, too."""
        if not self._durable.is_acknowledged:
            return False  # a crash may keep any part of it; it is fetched again
        if found.is_unwritten and self._durable.is_exact:
            return False
        later = [base for base in self._bases() if self._path(base) > found.path]
        if not self._durable.is_exact and any(self._disk.stat(self._path(base)).size for base in later):
            return True
        fd = self._disk.open(found.path)
        try:
            read, size = partial(self._disk.pread, fd), self._disk.size(fd)
            behind = find_sound(read, found.position + 1, size, found.offset + 1)
            if behind is None:
                return False
            return not (self._durable.is_exact and has_unwritten_page(read, found.position, behind))
        finally:
            self._disk.close(fd)

    def _refusal(self, path: Path, position: int | None, reason: str) -> CorruptionError:
        place = f"{path}" if position is None else f"{path}, position {position}"
        return CorruptionError(
            f"{place}: the metadata log is damaged at offset {self._offset}: {reason}; it was durable up to "
            f"offset {self._durable.offset} at least. Nothing was changed; see docs/operations.md"
        )

    def _cut(self, found: _Break, later: list[int]) -> None:
        fd = self._disk.open(found.path, Open.WRITE)
        try:
            cut = self._disk.size(fd) - found.position
            _logger.warning(
                "%s: cut a torn tail of %d bytes at position %d, offset %d: %s",
                found.path, cut, found.position, found.offset, found.reason,
            )  # fmt: skip
            self._disk.truncate(fd, found.position)
            self._disk.fsync(fd)
        finally:
            self._disk.close(fd)
        for base in later:
            if self._path(base) > found.path:
                _logger.warning("%s: deleted, because it lies behind a torn tail", self._path(base))
                self._disk.unlink(self._path(base))
        self._disk.fsync_dir(self._directory)

    def _rewrite(self, path: Path, position: int) -> None:
        if not exists(self._disk, path):
            return  # deleted behind a torn tail
        fd = self._disk.open(path, Open.WRITE)
        try:
            size = self._disk.size(fd)
            while position < size:
                data = self._disk.pread(fd, min(_READ_BYTES, size - position), position)
                self._disk.pwrite(fd, data, position)
                position += len(data)
        finally:
            self._disk.close(fd)


def _whole_batches(disk: Disk, fd: int, size: int) -> Iterator[tuple[BatchHeader, bytes | None]]:
    """Yield the batches that fill the file: headers, and the bytes of control batches.

    Raises `CorruptionError` at the first incomplete or invalid one.
    """
    position = 0
    while position < size:
        data = disk.pread(fd, _READ_BYTES, position)
        if len(data) >= HEADER_SIZE and read_header(data).size > len(data):
            length = read_header(data).size
            if length > min(_MAX_BATCH_BYTES, size - position):
                raise CorruptionError(f"a batch of {length} bytes, and {size - position} bytes are left")
            data = disk.pread(fd, length, position)
        end = 0
        for header in complete_headers(data):
            if not verify_crc(data, header):
                raise CorruptionError("the checksum of a batch is wrong")
            control = data[header.position : header.end] if header.is_control else None
            yield header._replace(position=position + header.position), control
            end = header.end
        if not end:
            raise CorruptionError(f"{len(data)} bytes are left, too few for a batch")
        position += end
