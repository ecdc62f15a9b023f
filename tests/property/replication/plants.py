"""Bugs that are planted in a history's own machines; a change replaces a method of one, here and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from service.replication.follower import FollowerMachine
from service.replication.leader import LeaderState


class Plant(NamedTuple):
    in_leader: Callable[[LeaderState], None] | None = None
    in_follower: Callable[[FollowerMachine], None] | None = None


PLANTS: Final[dict[str, Plant]] = {}
