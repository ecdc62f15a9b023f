"""A world for tests: this machine's disk and threads, a clock that stands still, and chance that repeats."""

from __future__ import annotations

import os
import random

from service.base.clock import Clock, ManualClock
from service.base.disk import Disk, SystemDisk
from service.base.threads import SystemThreads
from service.base.world import World, system_world

START_MS = 1_600_000_000_000

WORLD = system_world()
"""This machine, for all that do not mind; one, so that what a process shares is shared."""


def make_world(clock: Clock | None = None, disk: Disk | None = None, seed: int = 0) -> World:
    """Return a world with this machine's parts where none is given, and a manual clock."""
    chance = random.Random(seed)
    return World(clock or ManualClock(START_MS), disk or SystemDisk(), SystemThreads(), chance, os.environ)
