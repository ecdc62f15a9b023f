"""The file ``durable-offset``: end of the metadata log that is known to be on the device.

    20 digits   a space   8 hex digits: crc32c of the digits   a line end

It is written in place after each flush of the log, and fsynced with snapshots and at shutdown: after a crash
of the machine it may lag behind, and it never runs ahead. No crash tears the log below it: records that are
missing there are damage. Where the file cannot be read, the newest snapshot's end replaces it.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from crc32c import crc32c

from service.base.disk import Disk, MissingFile, Open

FILE_NAME: Final = "durable-offset"
SIZE: Final = 30
_DIGITS: Final = 20

_logger = logging.getLogger(__name__)


def encode_durable_offset(offset: int) -> bytes:
    """Encode the file's content.

    >>> encode_durable_offset(17)
    b'00000000000000000017 8bb3f334\\n'
    """
    digits = b"%020d" % offset
    return b"%s %08x\n" % (digits, crc32c(digits))


def decode_durable_offset(data: bytes) -> int | None:
    """Return the offset; None where the bytes are malformed."""
    digits = data[:_DIGITS]
    if not digits.isdigit() or data != encode_durable_offset(int(digits)):
        return None
    return int(digits)


def read_durable_offset(disk: Disk, directory: Path) -> int | None:
    """Return the offset in the file; None where the file is missing or damaged. Raises `DiskError`."""
    path = directory / FILE_NAME
    try:
        fd = disk.open(path)
    except MissingFile:
        return None
    try:
        data = disk.pread(fd, SIZE + 1, 0)
    finally:
        disk.close(fd)
    offset = decode_durable_offset(data)
    if offset is None:
        _logger.warning(
            "%s is corrupt: the newest snapshot's end replaces it, and the file is rewritten", path
        )
    return offset


def keep_durable_offset(disk: Disk, directory: Path) -> None:
    """Fsync the file where it exists. Raises `DiskError`."""
    try:
        fd = disk.open(directory / FILE_NAME, Open.WRITE)
    except MissingFile:
        return
    try:
        disk.fsync(fd)
    finally:
        disk.close(fd)


class DurableOffset:
    """The open file. `write` may be called from a `log-io` thread, one call at a time."""

    def __init__(self, disk: Disk, directory: Path, offset: int) -> None:
        """Write `offset` durably. Blocks; raises `DiskError`."""
        self._disk = disk
        self._fd = disk.open(directory / FILE_NAME, Open.CREATE)
        try:
            disk.truncate(self._fd, SIZE)
            self.write(offset)
            self.sync()
            disk.fsync_dir(directory)
        except BaseException:
            self.close()
            raise

    def write(self, offset: int) -> None:
        """Write `offset`; a crash of the machine may lose it until `sync`."""
        self._disk.pwrite(self._fd, encode_durable_offset(offset), 0)

    def sync(self) -> None:
        """Fsync the file."""
        self._disk.fsync(self._fd)

    def close(self) -> None:
        self._disk.close(self._fd)
