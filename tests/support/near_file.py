"""A file for a sender of which nothing has to come from a device."""

from __future__ import annotations


class NearFile:
    """Part of `network.sendfile_prefetch.ReadFile` beside `pread`, with everything resident."""

    def pread(self, size: int, position: int) -> bytes:
        raise NotImplementedError

    def pread_nowait(self, size: int, position: int) -> bytes | None:
        return self.pread(size, position)

    def fill_nowait(self, space: memoryview, position: int) -> bool:
        data = self.pread(len(space), position)
        space[: len(data)] = data
        return len(data) == len(space)

    def is_resident(self, size: int, position: int) -> bool:
        return True

    def prefetch(self, size: int, position: int) -> None:
        raise AssertionError("all of it is here")
