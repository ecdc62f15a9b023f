"""Whether the metadata log's files still hold what was made durable: looked at before anything is changed.

A crash tears the tail: bytes at the end of the log that were written and not flushed, in a batch that nobody
was told of. They are cut. Whatever else is wrong is damage, and refused with the file and the position:

- below the durable point (`durable-offset`, or the newest snapshot's end where that says nothing);
- with a valid batch behind it in the same file, but for an observer's, which promised nobody anything;
- a batch that is whole, and not the one that belongs there: another offset, an epoch that goes back or was
  never begun;
- files that are missing, or that overlap.

What lies beyond the durable point and is whole is kept, and written again where it lies: if it was a failed
fsync that ended the process before, the system believes those pages to be on the device, and the next fsync
would prove nothing.

Blocking; for a `log-io` thread.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from service.base.disk import Disk, Open
from service.base.errors import CorruptionError
from service.base.files import exists
from service.hot import names
from service.records.batch import (
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    MIN_BATCH_LENGTH,
    BatchHeader,
    complete_headers,
    read_header,
    verify_crc,
)

_READ_BYTES: Final = 4 * 1024 * 1024
_MAX_BATCH_BYTES: Final = 32 * 1024 * 1024
"""Far beyond what is ever written (8 MiB)."""
_MAGIC_AT: Final = 16
_OFFSET_LENGTH: Final = struct.Struct(">qi")

_logger = logging.getLogger(__name__)


class Durable(NamedTuple):
    """What must be there. `start`: the snapshot that is read ends here, so the log is needed from here on.

    `offset`: all below it was flushed, be it less than `start`. `is_exact`: nothing was acknowledged beyond
    it but for what a crash of the machine may have forgotten to note. `epoch`: the newest that was ever
    begun; None: not known.
    """

    start: int
    offset: int
    is_exact: bool
    epoch: int | None
    is_promised: bool = True
    """Whether anybody was told of what is written. Of an observer's log nobody is, and it flushes nothing."""


class LogEnd(NamedTuple):
    """Where the log ends (exclusive), and the epoch of its last batch; -1 for none. `epoch_at_start`: of the
    batch before `Durable.start`; -1 where there is none to be seen."""

    offset: int
    epoch: int
    epoch_at_start: int = -1


class _Break(NamedTuple):
    """Where a file stops being the log. `is_whole`: a batch stands there that no crash can have made."""

    path: Path
    position: int
    offset: int
    reason: str
    is_whole: bool = False


def check_log(disk: Disk, directory: Path, durable: Durable, control: list[bytes] | None = None) -> LogEnd:
    """Look at every batch from `durable.start` on, cut a torn tail, and write again what was not known to be
    durable; an fsync of the files makes it so. Batches of control records are added to `control`.

    Raises `CorruptionError` for damage: nothing is changed then. `DiskError`.
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
        """files with bytes that are not known to be durable, and from which position on"""

    def run(self) -> LogEnd:
        bases = self._bases()
        found = self._walk(bases)
        if found is None and self._offset < self._durable.offset:
            raise self._refusal(
                self._path(bases[-1]) if bases else self._directory, None, "the log ends here"
            )
        if found is not None:
            self._judge(found)
            self._cut(found, [base for base in bases if base >= found.offset])
        for path, position in self._doubtful:
            self._write_again(path, position)
        return LogEnd(self._offset, self._epoch, self._epoch_at_start)

    def _bases(self) -> list[int]:
        """First offsets of the segments that are needed, in order."""
        parsed = (names.parse_offset_file(e.name) for e in self._disk.list(self._directory) if e.is_file)
        bases = sorted(one[0] for one in parsed if one is not None and one[1] == names.LOG)
        if not bases:
            return []
        if bases[0] > self._durable.start:
            raise CorruptionError(
                f"{self._directory}: the log begins at offset {bases[0]}, the newest snapshot that can be "
                f"read ends at {self._durable.start}"
            )
        return bases[max(i for i, base in enumerate(bases) if base <= self._durable.start) :]

    def _path(self, base: int) -> Path:
        return self._directory / names.offset_file(base, names.LOG)

    def _walk(self, bases: list[int]) -> _Break | None:
        """Follow the batches to the end, or to where they break off."""
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
                wrong = self._what_is_wrong(header)
                if wrong is not None:
                    return _Break(path, header.position, self._offset, wrong, True)
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

    def _what_is_wrong(self, header: BatchHeader) -> str | None:
        """A whole batch that is not the one that belongs here. Offset and epoch lie outside its checksum."""
        epoch, newest = header.partition_leader_epoch, self._durable.epoch
        if header.base_offset != self._offset:
            return f"a batch of offset {header.base_offset} where {self._offset} belongs"
        if epoch < max(self._epoch, 0):
            return f"a batch of epoch {epoch} after one of epoch {self._epoch}"
        if newest is not None and epoch > newest:
            return f"a batch of epoch {epoch}, and quorum-state knows of none after {newest}"
        return None

    def _judge(self, found: _Break) -> None:
        """Damage is refused; what returns is a torn tail."""
        below = found.offset < self._durable.offset
        if found.is_whole or below or self._is_followed(found):
            raise self._refusal(found.path, found.position, found.reason)

    def _is_followed(self, found: _Break) -> bool:
        """Whether it was written to the device behind the break, which then was there, too."""
        if not self._durable.is_promised:
            return False  # the machine's end may have left any of it; it is fetched again
        later = [base for base in self._bases() if self._path(base) > found.path]
        if not self._durable.is_exact and any(self._disk.stat(self._path(base)).size for base in later):
            return True
        fd = self._disk.open(found.path)
        try:
            return _holds_a_batch(self._disk, fd, found.position + 1, found.offset)
        finally:
            self._disk.close(fd)

    def _refusal(self, path: Path, position: int | None, reason: str) -> CorruptionError:
        place = f"{path}" if position is None else f"{path}, position {position}"
        return CorruptionError(
            f"{place}: the metadata log is damaged at offset {self._offset}: {reason}; it was on disk up to "
            f"offset {self._durable.offset} at least. Nothing was changed; docs/operations.md says what to do"
        )

    def _cut(self, found: _Break, later: list[int]) -> None:
        fd = self._disk.open(found.path, Open.WRITE)
        try:
            cut = self._disk.size(fd) - found.position
            _logger.warning(
                "%s: a torn tail of %d bytes is cut off at position %d, offset %d: %s",
                found.path, cut, found.position, found.offset, found.reason,
            )  # fmt: skip
            self._disk.truncate(fd, found.position)
            self._disk.fsync(fd)
        finally:
            self._disk.close(fd)
        for base in later:
            if self._path(base) > found.path:
                _logger.warning("%s: written behind a torn tail, and removed", self._path(base))
                self._disk.unlink(self._path(base))
        self._disk.fsync_dir(self._directory)

    def _write_again(self, path: Path, position: int) -> None:
        if not exists(self._disk, path):
            return  # it was behind a torn tail
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
    """Headers of the batches that fill the file, and the bytes of control batches; `CorruptionError` at the
    first that is not whole."""
    position = 0
    while position < size:
        data = disk.pread(fd, _READ_BYTES, position)
        if len(data) >= HEADER_SIZE and read_header(data).size > len(data):
            length = read_header(data).size
            if length > min(_MAX_BATCH_BYTES, size - position):
                raise CorruptionError(f"a batch of {length} bytes, {size - position} are there")
            data = disk.pread(fd, length, position)
        end = 0
        for header in complete_headers(data):
            if not verify_crc(data, header):
                raise CorruptionError("the checksum of a batch is wrong")
            control = data[header.position : header.end] if header.is_control else None
            yield header._replace(position=position + header.position), control
            end = header.end
        if not end:
            raise CorruptionError(f"{len(data)} bytes are left, a batch has more")
        position += end


def _holds_a_batch(disk: Disk, fd: int, position: int, next_offset: int) -> bool:
    """Whether a valid batch of a later offset begins anywhere from `position` on."""
    size = disk.size(fd)
    while position + HEADER_SIZE <= size:
        data = disk.pread(fd, _READ_BYTES, position)
        at = data.find(MAGIC, _MAGIC_AT)
        while at >= 0:
            if _is_batch(disk, fd, data, position, at - _MAGIC_AT, size, next_offset):
                return True
            at = data.find(MAGIC, at + 1)
        if len(data) <= _MAGIC_AT or position + len(data) >= size:
            break
        position += len(data) - _MAGIC_AT
    return False


def _is_batch(disk: Disk, fd: int, data: bytes, position: int, at: int, size: int, next_offset: int) -> bool:
    base_offset, length = _OFFSET_LENGTH.unpack_from(data, at)
    total = length + LOG_OVERHEAD
    if not (
        next_offset < base_offset <= next_offset + size
        and length >= MIN_BATCH_LENGTH
        and total <= min(_MAX_BATCH_BYTES, size - position - at)
    ):
        return False
    batch = data[at : at + total]
    if len(batch) < total:
        batch = disk.pread(fd, total, position + at)
    try:
        return verify_crc(batch, read_header(batch))
    except CorruptionError:
        return False
