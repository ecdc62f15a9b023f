"""Progress of a command that moves records."""

from __future__ import annotations

import sys
import time
from typing import TextIO


class Progress:
    """A line that is written over each second, where standard error is a terminal and `beside`, where the
    records come from or go to, is none: they would be mixed."""

    def __init__(self, verb: str, *, beside: TextIO) -> None:
        self._verb = verb
        self._began = self._shown = time.monotonic()
        self._is_terminal = sys.stderr.isatty() and not beside.isatty()
        self.records = 0

    def show(self, records: int) -> None:
        """Show how many records there have been, once a second."""
        self.records = records
        now = time.monotonic()
        if self._is_terminal and now - self._shown >= 1:
            self._shown = now
            rate = records / max(now - self._began, 1e-9)
            print(f"\r{self._verb} {records:,} records, {rate:,.0f}/s", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._is_terminal and self._shown != self._began:
            print(file=sys.stderr)
