"""The log directories without room, as the brokers' heartbeats name them. [P]

A preference of elections, never a condition: a partition none of whose in-sync replicas has room is led as
before. Nothing of it is in the metadata log. A new controller learns it within a heartbeat interval and moves
by then what it elected without knowing.
"""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID


class FullDirectories:
    """By broker; each heartbeat replaces what its broker said before. Owned by the event loop."""

    def __init__(self) -> None:
        self._full: dict[int, frozenset[UUID]] = {}
        self._resting: dict[int, frozenset[UUID]] = {}

    def heard(self, broker_id: int, full: Collection[UUID], resting: Collection[UUID]) -> None:
        """Note the directories of a broker that take no records (`full`), and those in which it does not
        replicate either (`resting`)."""
        for known, directories in ((self._full, {*full, *resting}), (self._resting, resting)):
            if directories:
                known[broker_id] = frozenset(directories)
            else:
                known.pop(broker_id, None)

    def is_full(self, broker_id: int, directory: UUID) -> bool:
        return directory in self._full.get(broker_id, ())

    def is_resting(self, broker_id: int, directory: UUID) -> bool:
        return directory in self._resting.get(broker_id, ())

    def clear(self) -> None:
        """Forget everything: another controller was told meanwhile."""
        self._full.clear()
        self._resting.clear()
