"""Standard input of a node that another process runs: its end stops the node, its lines are questions."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Final

from service.node.whole_question import number_of

_MOST_PENDING: Final = 1 << 12


class ParentPipe:
    """Reads the pipe on a thread of its own."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._ask: Callable[[int], None] | None = None

    def start(self) -> None:
        """Begin to read; SIGTERM comes to this process when the pipe ends."""
        threading.Thread(target=self._read, name="stdin", daemon=True).start()

    def asks(self, ask: Callable[[int], None]) -> None:
        """Call `ask`, on the pipe's thread, with the number of each question from now on; those of before
        were left unanswered."""
        self._ask = ask

    def _read(self) -> None:
        # Not through sys.stdin: Python aborts if a thread holds its lock when the process ends.
        pending = b""
        while part := os.read(self._descriptor, 1 << 10):
            *lines, pending = (pending + part).split(b"\n")
            pending = pending[-_MOST_PENDING:]
            for line in lines:
                number = number_of(line)
                if number is not None and self._ask is not None:
                    self._ask(number)
        os.kill(os.getpid(), signal.SIGTERM)
