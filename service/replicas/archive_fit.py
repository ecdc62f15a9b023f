"""Fits a local log to the archive that a recovery has taken over: it is kept where both are of one past.

A log that holds the archive's last block, byte for byte, is of its past: what it has beyond that is served
again. Any other begins anew where the archive ends, and it is said how many local records are given up.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from crc32c import crc32c

from service.base.errors import CorruptionError
from service.hot.log import LocalLog
from service.hot.producer_snapshot import decode_snapshot
from service.remote.catalog import CatalogEntry

if TYPE_CHECKING:
    from service.remote.reading.reader import ArchiveEnd

log = logging.getLogger(__name__)


def fit_to_archive(local: LocalLog, remote: CatalogEntry, end: ArchiveEnd) -> None:
    """Make a log go on where the archive does that a recovery has taken over. Raises `StorageError`."""
    if end.entry._replace(leader_epoch=remote.leader_epoch) != remote:
        raise CorruptionError(f"{remote.manifest_key} is {end.entry}, the metadata says {remote}")
    if holds_last_block(local, end):
        log.info(
            "%s: the local log holds the archive's last block, so it is of its past and is kept", local.tip
        )
        return
    given_up = max(0, local.log_end_offset - max(remote.end_offset, local.local_log_start_offset))
    log.warning(
        "%s: goes on at %d, where its archive ends, as the local log does not hold the archive's last block; "
        "%d local records behind that are given up",
        local.tip,
        remote.end_offset,
        given_up,
    )
    producers = decode_snapshot(end.producer_snapshot) if end.producer_snapshot else []
    local.truncation.restart_at(
        remote.end_offset, remote.start_offset, epochs=end.epochs, producers=producers
    )


def holds_last_block(local: LocalLog, end: ArchiveEnd) -> bool:
    """Whether the bytes of the archive's last block are those of the local log at its offsets.

    Offsets and leader epochs do not tell: clones of a disk give both out twice.
    """
    block = end.last_block
    if block is None or not local.first_base_offset <= block.first_offset:
        return False
    if local.log_end_offset <= block.last_offset:
        return False
    try:
        found = local.reader.read(
            block.first_offset, block.length, block.last_offset + 1, local.log_end_offset, True
        )
        if found.slice is None or found.slice.size != block.length:
            return False
        return bool(crc32c(found.slice.read()) == block.crc32c)
    except CorruptionError:
        return False  # such a log is begun anew
