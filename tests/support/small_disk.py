"""A file system of a few megabytes that really fills up: a tmpfs, where the test may mount one."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.support.requirements import lacking


@contextlib.contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[Path]:
    """`folder`, with nothing but so many bytes of room. Skips where nothing may be mounted."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes},mode=755", "firn-test", str(folder)]
    try:
        subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as e:
        said = getattr(e, "stderr", None) or str(e)
        lacking(f"no small file system can be mounted ({said.strip()})", "root may")
    try:
        yield folder
    finally:
        # Lazily: whatever still has a file open there keeps it until it ends.
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


class Ballast:
    """A file of zeros that takes room, all there is without a size, until it is taken away."""

    def __init__(self, folder: Path, size_bytes: int | None = None) -> None:
        self._path = folder / "ballast"
        if size_bytes is not None:
            self._path.write_bytes(bytes(size_bytes))
            return
        with contextlib.suppress(OSError), self._path.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    def drop(self) -> None:
        self._path.unlink()
