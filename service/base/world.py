"""All that a node is given of the world: clock, disk, threads, randomness, ids and environment.

`system_world` is the machine's, made once by whoever composes a process; rooms below `node/node.py` take a
`World`, or the part of it that they need, by their constructors and make none themselves.
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
    """One node's surroundings, but for the network and the object store.

    ``environ``: the process's environment variables, where credentials come from. ``boot_id``: another one
    each time the machine is started, empty where it is not known. What the system's cache held lives as long,
    and so does ``memory``; None: there is none.
    """

    clock: Clock
    disk: Disk
    threads: Threads
    random: random.Random
    environ: Mapping[str, str] = field(default_factory=dict, hash=False)
    boot_id: str = ""
    memory: SharedMemory | None = None

    def new_uuid(self) -> UUID:
        """A random id (RFC 9562, version 4)."""
        return UUID(int=self.random.getrandbits(128), version=4)


def system_world(clock: Clock | None = None) -> World:
    """This machine. Ids and jitter come from the system's entropy."""
    clock = clock or SystemClock()
    chance, memory = random.SystemRandom(), SystemSharedMemory()
    return World(clock, SystemDisk(), SystemThreads(), chance, os.environ, _boot_id(), memory)


def _boot_id() -> str:
    """Linux tells it; elsewhere it is not known."""
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
