"""Failure of a log directory by an fsync: the `Latch` that takes it offline.

The kernel has dropped the pages and reports it once, so a later fsync that succeeds proves nothing. Nothing
in the directory is flushed, checkpointed or marked clean any more.
"""

from __future__ import annotations

from collections.abc import Callable

from service.base.disk import DiskError
from service.base.files import FsyncFailed
from service.hot.state import LogOffline


class Latch:
    """Failure of a log directory's device, after which it gets no checkpoint (invariant L5). Set from any
    thread, never reset.

    `on_failure` is called at once, on the thread that met the failure.
    """

    def __init__(self, on_failure: Callable[[], None] | None = None) -> None:
        self.failure: DiskError | None = None
        self._on_failure = on_failure

    def fail(self, error: DiskError) -> None:
        self.failure = self.failure or error
        if self._on_failure is not None:
            self._on_failure()

    def note(self, error: Exception) -> None:
        """Fail if `error` is that of an fsync; ignore any other."""
        if isinstance(error, FsyncFailed):
            self.fail(error)

    def check(self) -> None:
        """Raise `LogOffline` if the directory has failed."""
        if self.failure is not None:
            raise LogOffline(f"its log directory failed: {self.failure}")
