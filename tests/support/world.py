"""A world for tests: this machine's disk and threads, a clock that stands still, and chance that repeats."""

from __future__ import annotations

import os
import random

from service.base.clock import Clock, ManualClock, SystemClock
from service.base.disk import Disk, SystemDisk
from service.base.threads import SystemThreads
from service.base.world import World, system_world

START_MS = 1_600_000_000_000

WORLD = system_world()
"""This machine, for all that do not mind; one, so that what a process shares is shared."""


class ShiftedClock(SystemClock):
    """The machine's clock, set so that it showed `start_ms` when this was made."""

    def __init__(self, start_ms: int) -> None:
        self._ahead_ms = start_ms - super().now_ms()

    def now_ms(self) -> int:
        return super().now_ms() + self._ahead_ms


def make_world(clock: Clock | None = None, disk: Disk | None = None, seed: int = 0) -> World:
    """Return a world with this machine's parts where none is given, and a manual clock."""
    chance = random.Random(seed)
    return World(clock or ManualClock(START_MS), disk or SystemDisk(), SystemThreads(), chance, os.environ)
