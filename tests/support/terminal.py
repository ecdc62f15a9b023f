"""A terminal without a person: a program runs on it, and tests see what that person would."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Sequence
from pathlib import Path

# Makes the terminal on stdin the controlling one, so that Ctrl-C reaches the program.
_ON_IT = "import os, sys; os.login_tty(0); os.execv(sys.argv[1], sys.argv[1:])"


class Terminal:
    """A pseudo-terminal of so many columns. What is written to `out` or by `run`'s program is shown on it."""

    def __init__(self, columns: int = 80) -> None:
        self._columns = columns
        self._keyboard, self._side = pty.openpty()
        fcntl.ioctl(self._side, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.out = os.fdopen(os.dup(self._side), "w", encoding="utf-8")
        self.shown = b""
        """Every byte so far, control sequences and all."""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def run(self, command: Sequence[str], cwd: Path) -> subprocess.Popen[bytes]:
        """Starts a program whose controlling terminal this is."""
        return subprocess.Popen(
            [sys.executable, "-c", _ON_IT, *command],
            cwd=cwd,
            stdin=self._side,
            stdout=self._side,
            stderr=self._side,
        )

    def press(self, keys: bytes) -> None:
        r"""Type these bytes; b"\x03" is Ctrl-C."""
        os.write(self._keyboard, keys)

    def close(self) -> None:
        """Nothing is shown any more; what was stays in `shown`."""
        self.out.close()
        os.close(self._side)
        self._reader.join(10)
        os.close(self._keyboard)

    @property
    def lines(self) -> list[str]:
        """The lines on the screen, and those that have scrolled away."""
        return screen(self.shown.decode("utf-8", "replace"), self._columns)

    def _read(self) -> None:
        # Reading fails once nobody has the other side open.
        with contextlib.suppress(OSError):
            while data := os.read(self._keyboard, 1 << 16):
                self.shown += data


def screen(text: str, columns: int) -> list[str]:
    """What is seen where this was written, by a terminal that knows \\r, \\n and ESC[K, and wraps long lines.

    >>> screen("one\\r\\n12\\r\\x1b[K3", 80)
    ['one', '3']
    """
    lines: list[str] = [""]
    row = column = 0
    for part in re.findall(r"\x1b\[K|[\s\S]", text):
        if part == "\r":
            column = 0
        elif part == "\n":
            row += 1
        elif part == "\x1b[K":
            lines[row] = lines[row][:column]
        else:
            if column == columns:
                row, column = row + 1, 0
            while len(lines) <= row:
                lines.append("")
            lines[row] = lines[row][:column].ljust(column) + part + lines[row][column + 1 :]
            column += 1
        while len(lines) <= row:
            lines.append("")
    return lines
