"""CPU time, memory and descriptors of this process, from the operating system."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from resource import RLIMIT_NOFILE, RUSAGE_SELF, getpagesize, getrlimit, getrusage
from typing import Final

from service.base.control_groups import GROUPS, OWN, limits
from service.base.steps import Steps
from service.console.sample import Sample

_DESCRIPTORS: Final = Path("/proc/self/fd")
_ENTRIES_AT_A_TIME: Final = 500
_START_FIELD: Final = 19
"""Place of the start time, in ticks since the boot, behind the name in `/proc/self/stat`."""


def of_process(limit_bytes: int, started_s: float, descriptors: int) -> Iterator[Sample]:
    """Yield current samples; the arguments are the results of `memory_limit`, `start_time_s` and
    `open_descriptors`. Takes some 50 µs."""
    used = getrusage(RUSAGE_SELF)
    resident = int(Path("/proc/self/statm").read_bytes().split()[1]) * getpagesize()
    yield Sample("process_cpu_seconds", used.ru_utime + used.ru_stime)
    yield Sample("process_resident_memory_bytes", resident)
    yield Sample("firn_memory_limit_bytes", limit_bytes)
    yield Sample("process_start_time_seconds", started_s)
    yield Sample("process_open_fds", descriptors)
    yield Sample("process_max_fds", getrlimit(RLIMIT_NOFILE)[0])


def start_time_s() -> float:
    """Return when this process started, in seconds since 1970."""
    boot = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime "))
    # The name of the process, in brackets, may have spaces and brackets.
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return int(boot.split()[1]) + int(fields[_START_FIELD]) / os.sysconf("SC_CLK_TCK")


def open_descriptors(folder: Path = _DESCRIPTORS) -> Steps[int]:
    """Return the number of open descriptors: since Linux 6.2 the size of a folder of /proc, before that the
    number of its entries, which are many where many logs are open."""
    if size := folder.stat().st_size:
        return size
    found = 0
    with os.scandir(folder) as entries:
        for found, _ in enumerate(entries):  # without the one that reads the folder
            if found % _ENTRIES_AT_A_TIME == 0:
                yield
    return found


def memory_limit(groups: Path = GROUPS, own: Path = OWN) -> int:
    """Return the memory limit of this process: the least of its control groups, else the machine's memory.
    Beyond it the kernel kills the process."""
    found = [os.sysconf("SC_PHYS_PAGES") * getpagesize()]
    found += [int(text) for text in limits("memory.max", groups, own) if text.isdecimal()]
    return min(found)
