"""Redirection of the output of Spark's JVM, and of its Python workers, from the terminal to a file.

All of it comes through the two streams that the JVM inherits when it starts: log4j's console, the launcher's
messages, and the workers, whose streams the JVM copies into its own. No setting of log4j reaches the last
two. So the streams point to the file while the JVM is started, and are restored afterwards. Where the JVM was
started before this process, under spark-submit, the output cannot be redirected from here.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Log:
    """Spark's log file of one job, kept for failures. Owned by the main thread."""

    def __init__(self, job: str, given: str | None) -> None:
        """`given` is the file's path; None: a new file in the folder for temporary ones."""
        self._is_kept = given is not None
        if given is None:
            descriptor, name = tempfile.mkstemp(prefix=f"firn-{job}-", suffix=".log")
            os.close(descriptor)
            self.path = Path(name)
        else:
            self.path = Path(given).absolute()
            self.path.open("ab").close()

    @contextmanager
    def redirect_streams(self) -> Iterator[None]:
        """Let processes started meanwhile write into the file."""
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
        """Delete the file, unless the user named it."""
        if not self._is_kept:
            self.path.unlink(missing_ok=True)
