"""Folders on disk that are their user's alone, for code that this process is going to load.

Who else may write to such a folder, or may swap it for one of their own, could have this process run what
they like. So each folder from the root down has to belong to root or to this user, and nobody else may write
to it, except where the sticky bit lets them touch their own entries alone, as in ``/tmp``.
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
    """This user's folders for `name` that can be trusted, best first, made where they are missing.

    In the user's cache (``XDG_CACHE_HOME``, else ``~/.cache``), and in the system's temporary folder for
    users without a home, as those in containers. None at all on systems without users' ids.
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
            continue  # no home, a read-only disk, somebody's file in its place: the next one


def is_private(folder: Path) -> bool:
    """Whether nobody but this user (and root) can change what `folder` holds or put another in its place."""
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        return False
    for above in Path(os.path.realpath(folder)).parents:
        found = os.stat(above)
        others_write = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if found.st_uid not in (0, os.getuid()) or (others_write and not found.st_mode & stat.S_ISVTX):
            return False
    return True


def keep(folder: Path, stem: str, suffix: str, data: bytes) -> Path:
    """A file of `folder` with these bytes, named by them; written unless it is there, whole, already.

    Processes may race: each renames a file of its own into place. Raises `OSError`.

    >>> keep(Path("/home/me/.cache/firn/kernels"), "kernel", ".so", b"…")    # doctest: +SKIP
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
