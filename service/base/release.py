"""Firn's version, and the commit that it was built from.

A build writes the commit into ``service/COMMIT`` (setup.py); in a checkout git knows it.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple

HOME = Path(__file__).resolve().parents[1]
_GIT_S = 5.0


class Release(NamedTuple):
    """Version and commit. `commit` is empty if unknown and ends in ``-dirty`` if files have changed since."""

    version: str
    commit: str

    def __str__(self) -> str:
        return f"firn {self.version} (commit {self.commit or 'unknown'})"


def release(*, ask_git: bool = True) -> Release:
    """Return the release of the running software. In a checkout this runs git as a child process."""
    from importlib.metadata import version

    written = HOME / "COMMIT"
    if written.is_file():
        return Release(version("firn-log"), written.read_text("ascii").strip())
    return Release(version("firn-log"), _of_checkout() if ask_git else "")


def _of_checkout() -> str:
    if not (HOME.parent / ".git").exists():
        return ""
    command = ["git", "-C", str(HOME.parent), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_GIT_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()
