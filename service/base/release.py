"""Firn's version, the commit that it was built from, and whether its kernels are compiled.

A build writes the commit into ``service/COMMIT`` (setup.py); in a checkout git knows it.
"""

from __future__ import annotations

import subprocess
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Final, NamedTuple

HOME = Path(__file__).resolve().parents[1]
_GIT_S = 5.0
COMPILED: Final = "compiled"
INTERPRETED: Final = "interpreted"


class Release(NamedTuple):
    """Version, commit and kind of kernels, the loops over records.

    `commit` is empty if unknown and ends in ``-dirty`` if files have changed since. `kernels` is `COMPILED`
    or `INTERPRETED`; the latter are many times slower, and nothing else differs.
    """

    version: str
    commit: str
    kernels: str

    def __str__(self) -> str:
        return f"firn {self.version} (commit {self.commit or 'unknown'}, kernels {self.kernels})"


@cache
def release() -> Release:
    """Return the release of the running software. The first call in a checkout runs git as a child process:
    a server makes it before its event loop."""
    from importlib.metadata import version

    written = HOME / "COMMIT"
    commit = written.read_text("ascii").strip() if written.is_file() else _of_checkout()
    return Release(version("firn-log"), commit, _kernels(HOME))


def _kernels(package: Path) -> str:
    """Return the kind of kernels in the folder of the package; a build makes all of them or none."""
    compiled = any((package / "records" / f"kernel{suffix}").is_file() for suffix in EXTENSION_SUFFIXES)
    return COMPILED if compiled else INTERPRETED


def _of_checkout() -> str:
    if not (HOME.parent / ".git").exists():
        return ""
    command = ["git", "-C", str(HOME.parent), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_GIT_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()
