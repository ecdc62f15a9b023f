"""Log directories without room, as brokers report them in heartbeats. [P]

Elections prefer replicas with room, and never require them: a partition without any in-sync replica with room
is led as before. None of it is in the metadata log. A new controller learns it within a heartbeat interval,
and then moves leaders that it elected without knowing it.
"""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID


class DirectoriesWithoutRoom:
    """Directories without room, by broker; each heartbeat replaces its broker's. Owned by the event loop."""

    def __init__(self) -> None:
        self._full: dict[int, frozenset[UUID]] = {}
        self._resting: dict[int, frozenset[UUID]] = {}

    def heard(self, broker_id: int, full: Collection[UUID], resting: Collection[UUID]) -> None:
        """Set the directories of a broker that take no records (`full`), and those that do not replicate
        either (`resting`)."""
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
        """Remove all entries: brokers reported to another controller meanwhile."""
        self._full.clear()
        self._resting.clear()
