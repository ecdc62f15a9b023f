"""Bytes of a local file for an upload: read on the uploading thread, a bounded piece at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator

from service.base.errors import CorruptionError

DEFAULT_PART_BYTES = 1 << 20


def file_parts(fd: int, size: int, part_bytes: int = DEFAULT_PART_BYTES) -> Iterator[bytes]:
    """The first `size` bytes of the open file `fd`, by pread: its own position is neither used nor moved.

    Raises `CorruptionError` when the file is shorter.
    """
    position = 0
    while position < size:
        part = os.pread(fd, min(part_bytes, size - position), position)
        if not part:
            raise CorruptionError(f"local file ends at {position}, {size} bytes expected")
        position += len(part)
        yield part
