"""Limits of this process by its control groups, of version 2."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

GROUPS: Final = Path("/sys/fs/cgroup")
OWN: Final = Path("/proc/self/cgroup")


def limits(name: str, groups: Path = GROUPS, own: Path = OWN) -> Iterator[str]:
    """Yield the text of the file `name`, as ``memory.max``, of this process's group and those above it."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        if not line.startswith("0::/"):
            continue
        group = groups / line.removeprefix("0::/")
        for folder in (group, *group.parents):
            # The root has no limit, and a container cannot see the groups above its own.
            with contextlib.suppress(OSError):
                yield (folder / name).read_text().strip()
            if folder == groups:
                break


def usable_cores(groups: Path = GROUPS, own: Path = OWN) -> int:
    """Return how many cores this process may use: those that it may run on, or as many as its groups give it
    the time of, rounded up."""
    found = [len(os.sched_getaffinity(0))]
    for text in limits("cpu.max", groups, own):
        quota, _, period = text.partition(" ")
        if quota.isdecimal() and period.isdecimal() and int(period):
            found.append(max(1, -(-int(quota) // int(period))))
    return min(found)
