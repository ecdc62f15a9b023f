"""What the system says of this process: CPU and memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from resource import RUSAGE_SELF, getpagesize, getrusage
from typing import Final

from service.console.measuring import Sample

_CGROUPS: Final = Path("/sys/fs/cgroup")


def of_process(limit_bytes: int) -> Iterator[Sample]:
    """Samples of now; `limit_bytes` is what `memory_limit` has found. Takes some 50 µs."""
    used = getrusage(RUSAGE_SELF)
    resident = int(Path("/proc/self/statm").read_bytes().split()[1]) * getpagesize()
    yield Sample("process_cpu_seconds", used.ru_utime + used.ru_stime)
    yield Sample("process_resident_memory_bytes", resident)
    yield Sample("firn_memory_limit_bytes", limit_bytes)


def memory_limit(groups: Path = _CGROUPS, own: Path = Path("/proc/self/cgroup")) -> int:
    """Bytes that this process may have: the least limit of its control groups, else the machine's memory.

    Control groups are those of version 2. Beyond it the kernel ends the process.
    """
    limits = [os.sysconf("SC_PHYS_PAGES") * getpagesize()]
    try:
        lines = own.read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        if not line.startswith("0::/"):
            continue
        group = groups / line.removeprefix("0::/")
        for folder in (group, *group.parents):
            try:
                text = (folder / "memory.max").read_text().strip()
            except OSError:
                text = ""  # the root has none, and a container does not see what is above it
            if text.isdecimal():
                limits.append(int(text))
            if folder == groups:
                break
    return min(limits)
