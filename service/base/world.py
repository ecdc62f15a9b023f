"""Everything that a node uses of its environment: clock, disk, threads, randomness, ids and variables.

`system_world` returns the machine's, once per process; rooms below `node/node.py` get a `World`, or a part of
it, by their constructors and make none themselves.
"""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from uuid import UUID

from service.base.clock import Clock, SystemClock
from service.base.disk import Disk, SystemDisk
from service.base.shared_memory import SharedMemory, SystemSharedMemory
from service.base.threads import SystemThreads, Threads

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class World:
    """Environment of one node, except the network and the object store.

    ``environ``: the process's environment variables, which may hold credentials. ``boot_id``: changes with
    each start of the machine, empty if unknown. The content of the page cache and of ``memory`` lives as long
    as the boot id stays. ``memory``: None if the system has none.
    """

    clock: Clock
    disk: Disk
    threads: Threads
    random: random.Random
    environ: Mapping[str, str] = field(default_factory=dict, hash=False)
    boot_id: str = ""
    memory: SharedMemory | None = None

    def new_uuid(self) -> UUID:
        """Return a random UUID (RFC 9562, version 4)."""
        return UUID(int=self.random.getrandbits(128), version=4)


def system_world(clock: Clock | None = None) -> World:
    """Return the world of this machine, with ids and jitter from the system's entropy."""
    clock = clock or SystemClock()
    chance, memory = random.SystemRandom(), SystemSharedMemory()
    return World(clock, SystemDisk(), SystemThreads(), chance, os.environ, _boot_id(), memory)


def _boot_id() -> str:
    """Read the boot id of Linux; return "" on other systems."""
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
