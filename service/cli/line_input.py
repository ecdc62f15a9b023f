"""Lines of a file descriptor as they arrive, with a turn for the caller while none does."""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterator
from typing import Final

from service.cli.record_lines import LineError

MOST_OF_A_LINE: Final = 128 << 20
"""Bytes; a longer line is an error rather than memory."""
_PIECE_BYTES: Final = 1 << 20


class LineInput:
    """Lines of a descriptor, without their ends. A last line without an end is one, too."""

    def __init__(self, descriptor: int, *, most: int = MOST_OF_A_LINE) -> None:
        self._descriptor = descriptor
        self._most = most
        self.idle_ms = 250
        """Time without a line after which the caller has a turn"""
        self.number = 0
        """Lines that were yielded"""

    def batches(self, idle: Callable[[], None]) -> Iterator[list[bytes]]:
        """Yield lines, those of one read together; call `idle` again and again while nothing arrives.

        Raises `LineError` for a line that is too long, and `OSError`.
        """
        poller = select.poll()
        poller.register(self._descriptor, select.POLLIN)
        begun: list[bytes] = []
        size = 0
        while True:
            while not poller.poll(self.idle_ms):
                idle()
            piece = os.read(self._descriptor, _PIECE_BYTES)
            if not piece:
                break
            lines = piece.split(b"\n")
            begun.append(lines[0])
            size += len(lines[0])
            if size > self._most:
                raise LineError(f"line {self.number + 1} has more than {self._most} bytes")
            if len(lines) == 1:
                continue
            lines[0] = b"".join(begun)
            begun, size = [lines[-1]], len(lines.pop())
            yield lines
            self.number += len(lines)
        if size:
            yield [b"".join(begun)]
            self.number += 1
