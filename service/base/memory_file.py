"""File in memory alone, for libraries that take a path: what is secret gets no name on a disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from service.base.errors import StorageError

HAS_MEMORY_FILES: Final = hasattr(os, "memfd_create")


@contextmanager
def memory_file(content: bytes) -> Iterator[str]:
    """Give a path at which this process can read `content`, until the end of the block.

    Raises `StorageError` where the system has no such files, or no memory for one.
    """
    if not HAS_MEMORY_FILES:
        raise StorageError("this system has no files in memory (memfd_create)")
    try:
        fd = os.memfd_create("firn", os.MFD_CLOEXEC)
    except OSError as e:
        raise StorageError(f"a file in memory: {e}") from e
    with open(fd, "wb") as file:
        file.write(content)
        file.flush()
        yield f"/proc/self/fd/{fd}"
