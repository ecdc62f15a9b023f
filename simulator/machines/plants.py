"""Bugs that are planted in a history's own machines and shells, to see whether they are found.

A change replaces a method of one machine's parts, here and nowhere else; what it names must be there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from service.metadata.raft.events import Effect, Persist, TruncateTo
from service.metadata.raft.machine import RaftMachine


class Plant(NamedTuple):
    """`change` a machine as it is made; an effect that the shell `skips`; a flush that outlives a truncation."""

    change: Callable[[RaftMachine], None] | None = None
    skips: Callable[[Effect], bool] | None = None
    keeps_flush: bool = False


PLANTS: Final[dict[str, Plant]] = {}
_ = (Any, Persist, TruncateTo)
