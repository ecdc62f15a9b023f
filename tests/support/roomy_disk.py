"""A disk of which a test says how much is left, for scenarios of file systems that fill up."""

from __future__ import annotations

import threading
from pathlib import Path

from service.base.disk import Space
from tests.support.fault_disk import FaultDisk

TOTAL = 1 << 38


class RoomyDisk(FaultDisk):
    """A `FaultDisk` whose file systems, one for each log directory, have as much left as it is told."""

    def __init__(self, left_percent: float = 50) -> None:
        super().__init__()
        self._left: dict[str, int] = {}
        self._everywhere = round(TOTAL * left_percent / 100)
        self.asked: list[str] = []
        """names of the threads that asked"""
        self.hangs = threading.Event()
        """while it is cleared, nobody is answered"""
        self.hangs.set()

    def leave(self, percent: float, directory: Path | None = None) -> None:
        """So much is left in the file system of `directory`, or everywhere."""
        self.leave_bytes(round(TOTAL * percent / 100), directory)

    def leave_bytes(self, size: int, directory: Path | None = None) -> None:
        """Set the free space in bytes."""
        if directory is None:
            self._left.clear()
            self._everywhere = size
        else:
            self._left[str(directory)] = size

    def left(self, path: Path) -> int:
        """Bytes that are left in the file system of a directory."""
        return self._left.get(str(path), self._everywhere)

    def space(self, path: Path) -> Space:
        self.asked.append(threading.current_thread().name)
        self.hangs.wait(60)
        super().space(path)  # whatever is to fail fails
        return Space(TOTAL, self.left(path))
