"""State of nodes that are child processes, the lines to print about them, and when they are restarted.

>>> roster = Roster([1, 2])
>>> roster.note_line(1, "ready: node 1 on 127.0.0.1:9092"), roster.note_line(1, "http: http://127.0.0.1:9464")
([], ['node 1: http: http://127.0.0.1:9464'])
>>> roster.note_line(2, "ready: node 2 on 127.0.0.1:9093")
['ready: nodes 1, 2 on 127.0.0.1:9092,127.0.0.1:9093']
>>> roster.note_exit(2, -9)
['node 2 was ended by SIGKILL; node 1 continues']
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

READY: Final = "ready: "
_FIRST_S: Final = 1.0
_LONGEST_S: Final = 60.0
_MOST_WORDS: Final = 500


class Roster:
    """Nodes by state: running, waiting to be started again, or gone."""

    def __init__(self, node_ids: Iterable[int]) -> None:
        self._ids = tuple(node_ids)
        self._addresses: dict[int, str] = {}
        self._living = list(self._ids)
        self._waiting: set[int] = set()
        self._has_said_ready = False
        self._has_served = False
        self._failed: set[int] = set()
        self.is_stopping = False
        self.exit_code = 0

    @property
    def living(self) -> tuple[int, ...]:
        """Ids of the nodes whose end was not noted yet."""
        return tuple(self._living)

    @property
    def waiting(self) -> frozenset[int]:
        """Ids of the nodes that will be started again."""
        return frozenset(self._waiting)

    @property
    def all_serve(self) -> bool:
        """True if every node runs and has said that it serves."""
        return set(self._ids) == set(self._living) and set(self._ids) <= self._addresses.keys()

    @property
    def is_hopeless(self) -> bool:
        """True if every node has ended without any having served: they would not the next time, either."""
        return not self._has_served and self._failed == set(self._ids)

    def note_line(self, node_id: int, line: str) -> list[str]:
        """Note a line of a node's standard output; return the lines to print."""
        if not line.startswith(READY):
            return [f"node {node_id}: {line}"]
        is_known = node_id in self._addresses
        self._addresses[node_id] = line.rpartition(" ")[2]
        self._has_served = True
        if self._has_said_ready and not self.is_stopping and not is_known:
            return [f"node {node_id} serves again on {self._addresses[node_id]}"]
        return self._ready()

    def note_exit(self, node_id: int, code: int) -> list[str]:
        """Note the end of a node, with its exit code or, negative, a signal; return the lines to print."""
        how = self._ended(node_id, code)
        if self.is_stopping:
            if code in (0, -signal.SIGTERM):  # the latter before it had begun anything
                return []
            self.exit_code = 1
            return [f"node {node_id} {how}"]
        if not self._living:
            self.exit_code = 1
            return [f"node {node_id} {how}; no node is left"]
        ids = ", ".join(map(str, self._living))
        rest = f"nodes {ids} continue" if len(self._living) > 1 else f"node {ids} continues"
        return [f"node {node_id} {how}; {rest}", *self._ready()]

    def note_pause(self, node_id: int, code: int, pause_s: float) -> list[str]:
        """Note the end of a node that will be started again; return the lines to print."""
        how = self._ended(node_id, code)
        self._failed.add(node_id)
        self._waiting.add(node_id)
        return [f"node {node_id} {how}; it is started again in {pause_s:g} s"]

    def note_stop(self, node_id: int) -> None:
        """Note that a node was asked to end: it serves no more."""
        self._addresses.pop(node_id, None)

    def note_start(self, node_id: int) -> None:
        """Note that a node was started again."""
        self._waiting.discard(node_id)
        self._living.append(node_id)

    def stop(self) -> None:
        """Note that all nodes are to end: none is started again."""
        self.is_stopping = True
        self._waiting.clear()

    def _ended(self, node_id: int, code: int) -> str:
        self._living.remove(node_id)
        self._addresses.pop(node_id, None)
        return f"was ended by {_signal_name(-code)}" if code < 0 else f"ended with status {code}"

    def _ready(self) -> list[str]:
        if self._has_said_ready or self.is_stopping or not set(self._living) <= self._addresses.keys():
            return []
        if self._waiting:
            return []
        self._has_said_ready = True
        ids = ", ".join(map(str, self._living))
        addresses = ",".join(self._addresses[node_id] for node_id in self._living)
        return [f"{READY}nodes {ids} on {addresses}"]


class RestartPauses:
    """Pause before each node is started again: a second, twice as long each time up to a minute, and a second
    again once the node has run for longer than its last pause and a minute.

    >>> pauses = RestartPauses()
    >>> [pauses.after_run(1, 0.1) for _ in range(3)], pauses.after_run(1, 100.0)
    ([1.0, 2.0, 4.0], 1.0)
    """

    def __init__(self) -> None:
        self._last: dict[int, float] = {}

    def after_run(self, node_id: int, ran_s: float) -> float:
        """Return the pause after a node has run for `ran_s`."""
        last = self._last.get(node_id, 0.0)
        is_calm = last == 0 or ran_s > last + _LONGEST_S
        self._last[node_id] = _FIRST_S if is_calm else min(last * 2, _LONGEST_S)
        return self._last[node_id]


class RollingRestart:
    """One node after the other: each is stopped once all nodes that run say that the cluster lacks nothing.

    `begin_round` gives the number that the nodes are asked with; answers of other rounds do not count.
    """

    def __init__(self, node_ids: Sequence[int]) -> None:
        self._left = deque(node_ids)
        self._round = 0
        self._answers: dict[int, str | None] = {}
        self._said = ""
        self.stopped: int | None = None
        """the node that is to end and to be started again now"""

    @property
    def is_done(self) -> bool:
        """True if every node was restarted, and the cluster lacks nothing."""
        return not self._left and self.is_whole

    @property
    def is_whole(self) -> bool:
        """True if every node that was asked in this round has answered that nothing is lacking."""
        return bool(self._answers) and all(answer == "" for answer in self._answers.values())

    def begin_round(self, node_ids: Iterable[int]) -> int:
        """Begin to ask these nodes; return the number of the round."""
        self._answers = dict.fromkeys(node_ids)
        self._round += 1
        return self._round

    def note_answer(self, node_id: int, number: int, lacks: str) -> list[str]:
        """Note what the cluster lacks according to a node, "" for nothing; return the lines to print."""
        if number != self._round or node_id not in self._answers:
            return []
        self._answers[node_id] = lacks
        if not lacks or lacks == self._said:
            return []
        self._said = lacks
        return [f"rolling restart: waits, as node {node_id} says: {lacks[:_MOST_WORDS]}"]

    def next_node(self) -> int:
        """Take the node that is to be stopped next."""
        self._answers = {}
        self.stopped = self._left.popleft()
        return self.stopped


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
