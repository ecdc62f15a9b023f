"""What the demo prints: a bar that moves on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import TextIO

PLAIN_INTERVAL_S = 5.0
BAR_INTERVAL_S = 0.1


class Screen:
    """Lines that stay, and on a terminal one status that is painted over."""

    def __init__(self, out: TextIO = sys.stdout) -> None:
        self._out = out
        self._is_terminal = out.isatty() and os.environ.get("TERM") != "dumb"
        self._painted = 0
        self._last = 0.0

    def line(self, text: str = "") -> None:
        """Print a line for good."""
        self._wipe()
        self._out.write(text + "\n")
        self._out.flush()

    def status(self, lines: Sequence[str], plain: str) -> None:
        """Show where things are, not too often: `lines` on a terminal, `plain` elsewhere."""
        now = time.monotonic()
        interval = BAR_INTERVAL_S if self._is_terminal else PLAIN_INTERVAL_S
        if now - self._last < interval:
            return
        self._last = now
        if not self._is_terminal:
            self._out.write(plain + "\n")
        else:
            self._wipe()
            self._out.write("\n".join(lines) + "\n")
            self._painted = len(lines)
        self._out.flush()

    def begin(self) -> None:
        """A new thing is under way: on a terminal its status shows at once, elsewhere after a while."""
        self._wipe()
        self._last = 0.0 if self._is_terminal else time.monotonic()

    def _wipe(self) -> None:
        if self._painted:
            self._out.write(f"\x1b[{self._painted}A\x1b[J")
            self._painted = 0


def bar(done: int, total: int, what: str, started: float) -> str:
    """`[########------] 60%  what  200,000 of 336,776  51,000/s`"""
    share = done / total if total else 1.0
    filled = int(share * 30)
    rate = done / max(time.monotonic() - started, 1e-6)
    return (
        f"  [{'#' * filled}{'-' * (30 - filled)}] {share:4.0%}  {what}  {done:,} of {total:,}  {rate:,.0f}/s"
    )
