"""Comparison of a local log with the archive that a recovery has taken over, and its restart if they differ.

A log with the archive's last block, byte for byte, is of the archive's past: it is kept, with the records
beyond the archive. Any other log restarts at the archive's end, and the number of discarded records is
logged.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from crc32c import crc32c

from service.base.errors import CorruptionError
from service.hot.log import LocalLog
from service.records.batch import iter_headers
from service.remote.catalog import CatalogEntry
from service.replicas.archive_producers import producers_of

if TYPE_CHECKING:
    from service.remote.reading.reader import ArchiveEnd

log = logging.getLogger(__name__)


def fit_to_archive(local: LocalLog, remote: CatalogEntry, end: ArchiveEnd) -> None:
    """Keep the log, or restart it at the end of the archive that a recovery has taken over: no archived
    offset is given to another record (invariant T12).

    Raises `CorruptionError` where the archive's end is not what the metadata says, `StorageError` where the
    disk fails.
    """
    if end.entry._replace(leader_epoch=remote.leader_epoch) != remote:
        raise CorruptionError(f"{remote.manifest_key} is {end.entry}, the metadata says {remote}")
    if holds_last_block(local, end):
        log.info("%s: keeping the local log, which holds the last block of its archive", local.tip)
        return
    given_up = max(0, local.log_end_offset - max(remote.end_offset, local.local_log_start_offset))
    log.warning(
        "%s: restarting at offset %d (end of archive), as the local log lacks the archive's last block; "
        "discarding %d local records",
        local.tip,
        remote.end_offset,
        given_up,
    )
    producers = producers_of(end)
    local.truncation.restart_at(
        remote.end_offset, remote.start_offset, epochs=end.epochs, producers=producers
    )


def holds_last_block(local: LocalLog, end: ArchiveEnd) -> bool:
    """Return whether the local log has the bytes of the archive's last block at its offsets.

    The block of a merged segment may span several local ones. Offsets and leader epochs do not suffice:
    clones of a disk assign both twice.
    """
    block = end.last_block
    if block is None or not local.first_base_offset <= block.first_offset:
        return False
    if local.log_end_offset <= block.last_offset:
        return False
    offset, left, crc = block.first_offset, block.length, 0
    try:
        while left:
            found = local.reader.read(offset, left, block.last_offset + 1, local.log_end_offset, True)
            if found.slice is None or not 0 < found.slice.size <= left:
                return False
            data = found.slice.read()
            crc, left = crc32c(data, crc), left - len(data)
            *_, last = iter_headers(data)
            offset = last.next_offset
        return crc == block.crc32c
    except CorruptionError:
        return False  # the log restarts
