"""CPU time and memory of this process, from the operating system."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from resource import RUSAGE_SELF, getpagesize, getrusage
from typing import Final

from service.console.sample import Sample

_CGROUPS: Final = Path("/sys/fs/cgroup")


def of_process(limit_bytes: int) -> Iterator[Sample]:
    """Yield current samples; `limit_bytes` is the result of `memory_limit`. Takes some 50 µs."""
    used = getrusage(RUSAGE_SELF)
    resident = int(Path("/proc/self/statm").read_bytes().split()[1]) * getpagesize()
    yield Sample("process_cpu_seconds", used.ru_utime + used.ru_stime)
    yield Sample("process_resident_memory_bytes", resident)
    yield Sample("firn_memory_limit_bytes", limit_bytes)


def memory_limit(groups: Path = _CGROUPS, own: Path = Path("/proc/self/cgroup")) -> int:
    """Return the memory limit of this process: the least of its control groups, else the machine's memory.

    Reads control groups of version 2. Beyond the limit the kernel kills the process.
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
                text = ""  # the root has no limit, and a container cannot see the groups above its own
            if text.isdecimal():
                limits.append(int(text))
            if folder == groups:
                break
    return min(limits)
