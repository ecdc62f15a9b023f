"""Share of a node beside a store and clients that use the same processors.

Raw requests of the same library have a machine for themselves and the store. A node's clients need processors
as well, and at its pace the store works in smaller pieces. So beside the share of the raw rate there is the
share of what is left: of the rate of a node that costs no more than the raw requests, once clients and store
have taken what they took.
"""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path
from typing import NamedTuple

from tests.support.processes import cpu_seconds


class Work(NamedTuple):
    """MB/s, and CPU seconds a GB: of whoever is measured, of the store, and of the children that ended
    meanwhile, which are clients."""

    rate: float
    own: float
    store: float
    clients: float


class Meter:
    """CPU of a process, of a store if there is one, and of the children that end, over a `with`."""

    def __init__(self, *, own: int, store: int | None = None) -> None:
        self._pids = own, store
        self._used = (0.0, 0.0, 0.0)
        self._wall = 0.0

    def __enter__(self) -> Meter:
        self._before, self._began = self._read(), time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self._wall = time.monotonic() - self._began
        own, store, clients = (now - then for now, then in zip(self._read(), self._before, strict=True))
        self._used = own, store, clients

    def _read(self) -> tuple[float, float, float]:
        own, store = (0.0 if pid is None else sum(cpu_seconds(pid)) for pid in self._pids)
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        return own, store, ended.ru_utime + ended.ru_stime

    def work(self, size: int) -> Work:
        """Return what moving `size` bytes took."""
        gigabytes = size / 1e9
        return Work(1000 * gigabytes / self._wall, *(seconds / gigabytes for seconds in self._used))


def left(raw: Work, found: Work, processors: int | None = None) -> float:
    """Return the MB/s that are left for a node: at most those of the raw requests.

    >>> left(Work(1000, 0.5, 0.5, 0), Work(400, 1.5, 1.0, 0.5), processors=2)
    1000.0
    >>> left(Work(1000, 0.5, 0.5, 0), Work(400, 1.5, 2.0, 1.5), processors=2)
    500.0
    """
    seconds = raw.own + found.store + found.clients
    return min(float(raw.rate), 1000 * (processors or len(os.sched_getaffinity(0))) / seconds)


def child(name: str) -> int:
    """Return the process of this name that was started here."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return next(int(pid) for pid in children if Path(f"/proc/{pid}/comm").read_text().strip() == name)
