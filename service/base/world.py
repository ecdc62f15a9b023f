"""All that a node is given of the world: clock, disk, threads, randomness and ids.

`system_world` is the machine's, made once by whoever composes a process; rooms below `broker/node.py` take a
`World`, or the part of it that they need, by their constructors and make none themselves.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from uuid import UUID

from service.base.clock import Clock, SystemClock
from service.base.disk import Disk, SystemDisk
from service.base.threads import SystemThreads, Threads


@dataclass(frozen=True, slots=True)
class World:
    """One node's surroundings, but for the network and the object store."""

    clock: Clock
    disk: Disk
    threads: Threads
    random: random.Random

    def new_uuid(self) -> UUID:
        """A random id (RFC 9562, version 4)."""
        return UUID(int=self.random.getrandbits(128), version=4)


def system_world(clock: Clock | None = None) -> World:
    """This machine. Ids and jitter come from the system's entropy."""
    return World(clock or SystemClock(), SystemDisk(), SystemThreads(), random.SystemRandom())
