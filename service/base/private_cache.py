"""Folders that only their user can write to, for code that this process loads.

Another user who can write to such a folder, or replace it, can run code in this process. So each folder from
the root down must belong to root or to this user, and no other user may write to it, except where the sticky
bit restricts others to their own entries, as in ``/tmp``.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path


def private_folders(name: str, environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield this user's private folders for `name`, best first, creating missing ones.

    The first is in the user's cache (``XDG_CACHE_HOME``, else ``~/.cache``), the second in the system's
    temporary folder, for users without a home, as in containers. None on systems without user ids.
    """
    if not hasattr(os, "getuid"):
        return
    home = environ.get("HOME", "")
    cache = environ.get("XDG_CACHE_HOME") or (os.path.join(home, ".cache") if os.path.isdir(home) else "")
    bases = [Path(cache) / "firn"] if os.path.isabs(cache) else []
    for base in (*bases, Path(tempfile.gettempdir()) / f"firn-{os.getuid()}"):
        folder = base / name
        try:
            folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
            if is_private(folder):
                yield folder
        except OSError:
            continue  # no home, a read-only disk or a file in its place: try the next


def is_private(folder: Path) -> bool:
    """Return whether only this user and root can change the content of `folder` or replace it."""
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        return False
    for above in Path(os.path.realpath(folder)).parents:
        found = os.stat(above)
        others_write = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if found.st_uid not in (0, os.getuid()) or (others_write and not found.st_mode & stat.S_ISVTX):
            return False
    return True


def store_file(folder: Path, stem: str, suffix: str, data: bytes) -> Path:
    """Return a file in `folder` with these bytes, named by their hash; write it unless it is there and whole.

    Processes may race: each renames a file of its own into place. Raises `OSError`.

    >>> store_file(Path("/home/me/.cache/firn/kernels"), "kernel", ".so", b"…")    # doctest: +SKIP
    PosixPath('/home/me/.cache/firn/kernels/kernel-2d3f….so')
    """
    digest = hashlib.sha256(data).hexdigest()
    path = folder / f"{stem}-{digest[:32]}{suffix}"
    with suppress(FileNotFoundError):
        if hashlib.sha256(path.read_bytes()).hexdigest() == digest:
            return path
    descriptor, temporary = tempfile.mkstemp(dir=folder, prefix=f"{stem}-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    return path
