"""Verification of a sealed segment's indexes against its log. Blocking, for any thread."""

from __future__ import annotations

import logging
from typing import Final

from service.base.disk import MissingFile
from service.base.errors import CorruptionError
from service.base.files import read_file
from service.hot.files import FileSlice
from service.hot.segment import Segment
from service.records.scan import scan_pieces
from service.records.segment_indexes import IndexBuilder, IndexBytes, IndexProof, Take, Walk

_log = logging.getLogger(__name__)

MAX_INDEX_BYTES: Final = 1 << 30


def prove_indexes(segment: Segment, walk: Walk | None = None) -> IndexBytes:
    """Return the segment's indexes after comparing each entry with the log; right ones if they are wrong.

    `walk`: for a caller that reads the whole log anyway; run once if the indexes are right, and again to
    rebuild them. The next lookup then rebuilds the files. Raises `CorruptionError` if the log itself is
    damaged, `DiskError`, and what `walk` raises.
    """
    walk = walk or (lambda take: _walk(segment, take))
    try:
        disk = segment.log.disk
        found = IndexBytes(
            read_file(disk, segment.indexes.offset.handle.path, MAX_INDEX_BYTES),
            read_file(disk, segment.indexes.time.handle.path, MAX_INDEX_BYTES),
        )
        proof = IndexProof(segment.base_offset, found, segment.indexes.settings.interval_bytes)
        walk(proof.add)
        proof.finish()
        return found
    except (CorruptionError, MissingFile) as e:
        builder = IndexBuilder(segment.base_offset, segment.indexes.settings.interval_bytes)
        walk(builder.add)
        _log.warning("rebuilding the indexes of %s: %s", segment.log.path, e)
        segment.indexes.distrust()
        return builder.finish()


def _walk(segment: Segment, take: Take) -> None:
    file = segment.log.get()

    def read(position: int, size: int) -> bytes:
        return FileSlice(file, position, size).read()

    for batches, position, _ in scan_pieces(
        read, 0, segment.size, first_offset=segment.base_offset, name=str(segment.log.path)
    ):
        take(batches, position)
