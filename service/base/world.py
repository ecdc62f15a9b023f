"""All that a node is given of the world: clock, disk, threads, randomness, ids and environment.

`system_world` is the machine's, made once by whoever composes a process; rooms below `broker/node.py` take a
`World`, or the part of it that they need, by their constructors and make none themselves.
"""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from service.base.clock import Clock, SystemClock
from service.base.disk import Disk, SystemDisk
from service.base.threads import SystemThreads, Threads


@dataclass(frozen=True, slots=True)
class World:
    """One node's surroundings, but for the network and the object store.

    ``environ``: the process's environment variables, where credentials come from.
    """

    clock: Clock
    disk: Disk
    threads: Threads
    random: random.Random
    environ: Mapping[str, str] = field(default_factory=dict)

    def new_uuid(self) -> UUID:
        """A random id (RFC 9562, version 4)."""
        return UUID(int=self.random.getrandbits(128), version=4)


def system_world(clock: Clock | None = None) -> World:
    """This machine. Ids and jitter come from the system's entropy."""
    return World(clock or SystemClock(), SystemDisk(), SystemThreads(), random.SystemRandom(), os.environ)
