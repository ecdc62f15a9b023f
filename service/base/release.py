"""Which Firn this is: the version, and the commit that it was built of.

A build writes the commit into ``service/COMMIT`` (setup.py); a checkout is asked for it.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple

HOME = Path(__file__).resolve().parents[1]
_GIT_S = 5.0


class Release(NamedTuple):
    """`commit` is empty where nobody knows; it ends in ``-dirty`` where files were changed since."""

    version: str
    commit: str

    def __str__(self) -> str:
        return f"firn {self.version} (commit {self.commit or 'unknown'})"


def release(*, ask_git: bool = True) -> Release:
    """Of the software that runs here. In a checkout git is asked, which takes a child process."""
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
