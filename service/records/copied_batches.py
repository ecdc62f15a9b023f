"""Buffer of batches that a copier writes: kernels fill it, and larger batches come beside it. [P]"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from service.base.types import Buffer
from service.records.batch import HEADER_SIZE
from service.records.kernel_status import CopyState


class CopiedBatches:
    """Output of a copier, whose subclasses say what is copied. For one thread at a time."""

    def __init__(self, buffer_bytes: int) -> None:
        self._out = bytearray(max(buffer_bytes, HEADER_SIZE))
        self._state = array("q", bytes(8 * len(CopyState)))

    @property
    def records_read(self) -> int:
        """Number of records met so far, those of control batches among them."""
        return self._state[CopyState.READ]

    @property
    def records_kept(self) -> int:
        """Number of records that stay, of those met so far."""
        return self._state[CopyState.KEPT]

    def rest(self) -> Iterator[memoryview]:
        """Yield the content of the buffer, if any."""
        used = self._state[CopyState.USED]
        if used:
            yield memoryview(self._out)[:used]
            self._state[CopyState.USED] = 0

    def _append(self, batch: Buffer) -> Iterator[memoryview]:
        """Write one batch; yield what was in the buffer before where there is no room for both."""
        used = self._state[CopyState.USED]
        if used + len(batch) > len(self._out):
            yield from self.rest()
            used = 0
            if len(batch) > len(self._out):
                self._out = bytearray(len(batch))
        self._out[used : used + len(batch)] = batch
        self._state[CopyState.USED] = used + len(batch)
