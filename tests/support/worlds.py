"""This machine as tests hand it on."""

from __future__ import annotations

import random

from service.base.clock import Clock
from service.base.disk import SystemDisk
from service.base.threads import SystemThreads
from service.base.world import World, system_world

WORLD = system_world()
"""One for all that do not mind, so that what a process shares is shared."""


def seeded_world(clock: Clock, seed: int = 1) -> World:
    """This machine at another time, with ids and jitter that are the same in every run."""
    return World(clock, SystemDisk(), SystemThreads(), random.Random(seed))
