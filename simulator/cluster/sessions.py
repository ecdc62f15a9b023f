"""Heartbeats that controllers have taken, by broker and time: a check of fencing (B5) needs them.

A heartbeat counts once a controller has taken it. `BrokerSessions` is patched, in the history's own process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from service.controller_client.broker_lifecycle import State
from service.controller_client.broker_lifecycle_manager import Membership
from service.metadata.controller.broker_sessions import BrokerSessions, HeartbeatReceived
from simulator.faults import SLOW_FSYNC, SLOW_METADATA, DrawnFaults
from simulator.loop import Loop
from simulator.machine import Machine
from simulator.network import Links
from simulator.process import Life

SESSION_S: Final = 8.5
"""``broker.session.timeout.ms`` by the fastest clock there is"""
_SLOW: Final = frozenset({SLOW_FSYNC, SLOW_METADATA})
_LEAVES: Final = (State.LEAVING, State.GONE)


class Sessions:
    """Time of each broker process's last heartbeat, and of the last fault that could delay one."""

    def __init__(self, loop: Loop, links: Links, darkness: set[str]) -> None:
        self._loop = loop
        self._links = links
        self._darkness = darkness
        self._machines: list[Machine] = []
        self._looked_s = -1.0
        self._heard_s: dict[tuple[int, int], float] = {}
        """time of the last heartbeat, by broker and epoch"""
        self._kept_s: dict[str, float] = {}
        """last time that its process was stopped, its disk slow, or a link of it cut or slow, by machine"""
        _watch(self.heard)

    def heard(self, broker: int, epoch: int) -> None:
        """Note that a controller has taken a heartbeat."""
        self._heard_s[broker, epoch] = self._loop.now_s

    def look(self, machines: list[Machine]) -> None:
        """Note the machines whose heartbeats a fault delays now."""
        now_s = self._loop.now_s
        if now_s == self._looked_s:
            return
        self._machines, self._looked_s = machines, now_s
        for machine in machines:
            if machine.run is not None and machine.run.process.life is Life.STOPPED:
                self._kept_s[machine.name] = now_s
            # It learns of a new controller once the epoch is in its quorum's state.
            if isinstance(machine.faults, DrawnFaults) and not machine.faults.on.isdisjoint(_SLOW):
                self._kept_s[machine.name] = now_s
        links = self._links
        if links.cut or links.slow_s or links.flips:
            for one, other in (*links.cut, *links.slow_s, *links.flips):
                if one not in self._darkness and other not in self._darkness:
                    self._kept_s[one] = self._kept_s[other] = now_s

    def lives(self, broker: int, epoch: int) -> str:
        """Describe why a broker certainly lives, else return "".

        It runs and serves, a heartbeat was taken within a session, and no fault could delay one since."""
        machine = self._machines[broker - 1]
        now_s, run = self._loop.now_s, machine.run
        heard_s = self._heard_s.get((broker, epoch))
        if heard_s is None or now_s - heard_s > SESSION_S:
            return ""
        if now_s - self._kept_s.get(machine.name, -SESSION_S) < SESSION_S:
            return ""
        if run is None or run.ended or run.node is None:
            return ""
        membership: Membership | None = getattr(run.node.parts.plane, "_membership", None)
        life = None if membership is None else membership._machine
        if life is None or life.epoch != epoch or life.state in _LEAVES:
            return ""
        return f"{run.name} lives, and was heard {now_s - heard_s:.2f} s before"


_told: Callable[[int, int], None] | None = None
_handle = BrokerSessions.handle


def _watch(told: Callable[[int, int], None]) -> None:
    global _told
    _told = told
    BrokerSessions.handle = _watched  # type: ignore[method-assign]


def _watched(self: BrokerSessions, event: Any, now_ms: int) -> Any:
    if isinstance(event, HeartbeatReceived) and _told is not None:
        _told(event.broker_id, event.broker_epoch)
    return _handle(self, event, now_ms)
