"""Replicas that have not seen all of their log: where each begins, and whether it is told what is open.

A replica of an archived log begins where the archive ends, with the producers that the archive's last segment
has. One whose leader has nothing older begins where its leader's log does, and is told nothing: of a
transaction that is open there it knows the records that follow (Kafka, too). `LogTruncation` is patched, in
the history's own process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from service.hot.log import LocalLog
from service.hot.log_truncation import LogTruncation
from simulator.cluster.replicas import Key
from simulator.process import CURRENT


class Beginning(NamedTuple):
    """Offset of the first record that a replica has seen; `is_told`: it was given producers there."""

    offset: int
    is_told: bool


_FIRST = Beginning(0, is_told=True)


class Beginnings:
    """Beginnings of all replicas of a cluster, by broker and partition."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, Key], Beginning] = {}
        global _watching
        _watching = self
        _watch()

    def of(self, number: int, key: Key) -> Beginning:
        return self._known.get((number, key), _FIRST)

    def all_of(self, key: Key) -> list[Beginning]:
        """Return those of the replicas that began anew, be they gone or not."""
        return [one for (_, its), one in self._known.items() if its == key]

    def began(self, log: LocalLog | Any, beginning: Beginning) -> None:
        """Note that a process made a log, or made it begin anew."""
        process = CURRENT.get(None)
        if process is not None:
            tip = log.tip
            number = int(process.name[1:].split(".")[0])
            self._known[number, (tip.topic_id, tip.partition)] = beginning


_watching: Beginnings | None = None
_done = False


def _watch() -> None:
    global _done
    if _done:
        return
    _done = True
    restart, make = LogTruncation._restart_at, LocalLog.make.__func__  # type: ignore[attr-defined]

    def restarts(
        self: LogTruncation, offset: int, start: int | None, epochs: Any, producers: Sequence[Any]
    ) -> int:
        if _watching is not None:
            _watching.began(self.state, Beginning(offset, is_told=bool(producers)))
        return restart(self, offset, start, epochs, producers)

    def makes(cls: type[LocalLog], *args: Any, **options: Any) -> LocalLog:
        log: LocalLog = make(cls, *args, **options)
        if _watching is not None:
            _watching.began(log, _FIRST)
        return log

    LogTruncation._restart_at = restarts  # type: ignore[assignment, method-assign]
    LocalLog.make = classmethod(makes)  # type: ignore[assignment]
