"""Facts about the machine and the programs, without which nobody can judge figures."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

ROOT = Path(__file__).parents[2]
_LOOP: Final = """
import time
found, began = {}, time.process_time()
for number in range(3_000_000):
    found[number & 1023] = number
print(time.process_time() - began)
"""
_DESCRIBE: Final = ("git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=9", "--exclude=*")


def facts() -> dict[str, str]:
    """Return them by name, in the order of the page."""
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": _said_by(*_DESCRIBE),
        "processors": f"{len(os.sched_getaffinity(0))} × {_processor()}",
        "a loop on each at once": f"{_crowding():.1f} × the processor time of one alone",
        "memory": f"{_memory_gib():.0f} GiB",
        "kernel": platform.release(),
        "Python": platform.python_version(),
        "Apache Kafka": f"4.3.1, one JVM of 1 GiB a node ({_java()})",
        "librdkafka": version("confluent-kafka"),
        "Spark": _spark(),
        "load when it began": f"{os.getloadavg()[0]:.1f}",
    }


def _said_by(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return (done.stdout or done.stderr).strip().partition("\n")[0]


def _java() -> str:
    return _said_by("java", "--version")


def _spark() -> str:
    try:
        return version("pyspark")
    except PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _crowding() -> float:
    """Return how much more processor time a loop takes while all processors have one: 2 where two processors
    are threads of one core."""
    alone = min(_loops(1)[0] for _ in range(2))
    return max(_loops(len(os.sched_getaffinity(0)))) / alone


def _loops(count: int) -> list[float]:
    """Return the processor time of each of so many loops at once, in seconds."""
    command = (sys.executable, "-c", _LOOP)
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    return [float(one.communicate(timeout=60)[0]) for one in running]


def _memory_gib() -> float:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / (1 << 30)
