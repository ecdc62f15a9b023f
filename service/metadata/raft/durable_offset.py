"""The file ``durable-offset``: up to where the metadata log is known to have reached the device.

    20 digits   a space   8 hex digits: crc32c of the digits   a line end

Written in place after each flush of the log, and itself made durable with snapshots and at the end: so it may
lag behind, after a crash of the machine, and never runs ahead. What the log has lost below it was not torn by
a crash. A file that cannot be read says nothing, and the newest snapshot's end stands in for it.
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
    """The file's content.

    >>> encode_durable_offset(17)
    b'00000000000000000017 8bb3f334\\n'
    """
    digits = b"%020d" % offset
    return b"%s %08x\n" % (digits, crc32c(digits))


def decode_durable_offset(data: bytes) -> int | None:
    """The offset; None where the bytes are not as written."""
    digits = data[:_DIGITS]
    if not digits.isdigit() or data != encode_durable_offset(int(digits)):
        return None
    return int(digits)


def read_durable_offset(disk: Disk, directory: Path) -> int | None:
    """What the file in `directory` says; None where it is missing or damaged. Raises `DiskError`."""
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
        _logger.warning("%s is damaged and says nothing; it is written anew", path)
    return offset


def keep_durable_offset(disk: Disk, directory: Path) -> None:
    """What the file says now, it says after a crash of the machine. `DiskError`; without it there is nothing
    to be kept."""
    try:
        fd = disk.open(directory / FILE_NAME, Open.WRITE)
    except MissingFile:
        return
    try:
        disk.fsync(fd)
    finally:
        disk.close(fd)


class DurableOffset:
    """The file, held open. `write` may be called from a `log-io` thread, one call at a time."""

    def __init__(self, disk: Disk, directory: Path, offset: int) -> None:
        """Make the file say `offset`, durably. Blocks; raises `DiskError`."""
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
        """Say `offset`; a crash of the machine may forget it until `sync`."""
        self._disk.pwrite(self._fd, encode_durable_offset(offset), 0)

    def sync(self) -> None:
        """Make durable what was written."""
        self._disk.fsync(self._fd)

    def close(self) -> None:
        self._disk.close(self._fd)
