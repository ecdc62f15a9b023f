"""Where Spark's noise goes: what its JVM and the Python workers of that write to the terminal, into a file.

All of it comes through the two streams that the JVM inherits when it starts: log4j's console, what the
launcher says, and the workers, whose streams the JVM copies into its own. No setting of log4j reaches the
last two. So the streams are the file's while the JVM is started, and this process's own again afterwards.
Where the JVM is there before this process, under spark-submit, nothing can be done from here.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Log:
    """A file for one job; it is there when somebody has to look into it. Owned by the main thread."""

    def __init__(self, job: str, given: str | None) -> None:
        """`given` is where it has to be, None for a new file in the folder for temporary ones."""
        self._is_kept = given is not None
        if given is None:
            descriptor, name = tempfile.mkstemp(prefix=f"firn-{job}-", suffix=".log")
            os.close(descriptor)
            self.path = Path(name)
        else:
            self.path = Path(given).absolute()
            self.path.open("ab").close()

    @contextmanager
    def taking_streams(self) -> Iterator[None]:
        """While this lasts, what is started writes into the file."""
        sys.stdout.flush()
        sys.stderr.flush()
        before = {number: os.dup(number) for number in (1, 2)}
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        try:
            for number in before:
                os.dup2(file, number)
            yield
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for number, kept in before.items():
                os.dup2(kept, number)
                os.close(kept)
            os.close(file)

    def drop(self) -> None:
        """The job has ended well: a file that nobody asked for goes."""
        if not self._is_kept:
            self.path.unlink(missing_ok=True)
