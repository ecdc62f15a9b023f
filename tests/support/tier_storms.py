"""Storms over brokers that share a bucket: disks that are wiped, a store that is away, and both at once.

Brokers alone are struck so, each of which may lose its disk: what it had is with others and in the archive.
The controllers keep theirs.
"""

from __future__ import annotations

import contextlib
import random
import shutil
from collections.abc import Iterator, Sequence
from typing import Final

from tests.support.faults import Fault, FaultProxy, Seen
from tests.support.harms import HarmStorm, Kind
from tests.support.moves import Mover
from tests.support.processes import wait_until
from tests.support.quorums import Cluster, Member
from tests.support.replicas import wait_in_sync
from tests.support.storms import Writers

AWAY: Final = (
    Fault.REFUSE,
    Fault.HANG,
    Fault.FAIL,
    Fault.SLOW_DOWN,
    Fault.LIE,
    Fault.FAIL_AFTER,
    Fault.FLIP,
    Fault.DENIED,
)
_FLAKY: Final = 0.3
"""of requests fail where a store is neither here nor away"""


class TierStorm(HarmStorm):
    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        source: random.Random,
        writers: Writers,
        mover: Mover,
        store: FaultProxy,
        longest_s: float,
    ) -> None:
        """`longest_s`: that the store is away while nothing else happens."""
        super().__init__(cluster, topic, source, writers)
        self._mover, self._store, self._longest_s = mover, store, longest_s
        self.wipes = 0

    @property
    def _ids(self) -> list[int]:
        return sorted(one.node_id for one in self._cluster.members.values() if not one.is_controller)

    def _running(self) -> list[Member]:
        return [one for one in super()._running() if not one.is_controller]

    @property
    def own(self) -> Sequence[Kind]:
        return (
            (5, "wipe a leader", lambda: self._wipe(self.leader_of_partition())),
            (3, "wipe one", lambda: self._wipe(self._source.choice(self._ids))),
            (3, "wipe a leader while the store is away", self._wipe_without_store),
            (4, "the store is away", self._go_without_store),
            (3, "kill a leader while the store is away", lambda: self._kill_without_store(1)),
            (2, "kill all while the store is away", lambda: self._kill_without_store(len(self._ids))),
            (2, "roll while the store is away", self._roll_without_store),
        )

    def wait(self) -> None:
        """Nothing moves, and all are in sync."""
        with self._mover.still():
            wait_in_sync(self._cluster, self._topic, 120)

    @contextlib.contextmanager
    def _away(self) -> Iterator[None]:
        """All requests fail in one way, or some of them in any."""
        flaky = random.Random(self._source.random())

        def at_times(_: Seen) -> Fault:
            return flaky.choice(AWAY) if flaky.random() < _FLAKY else Fault.PASS

        if self._source.random() < 0.2:
            self._store.plan = at_times
        else:
            self._store.mode = self._source.choice(AWAY)
        try:
            yield
        finally:
            self._store.plan, self._store.mode = None, Fault.PASS

    def _go_without_store(self) -> tuple[int, ...]:
        with self._away():
            self._pause(0.5, self._longest_s)
        return ()

    def _kill_without_store(self, count: int) -> tuple[int, ...]:
        """Kill while the store is away: a returning broker leads before it has compared its HEADs."""
        first = self.leader_of_partition()
        victims = [first, *self._source.sample([one for one in self._ids if one != first], count - 1)]
        with self._away():
            self._pause(0, self._longest_s / 4)
            for one in victims:
                self._cluster.members[one].kill()
            self.kills += len(victims)
            self._pause(0, 1)
            for one in victims:
                self._cluster.members[one].launch()
            self._pause(0, self._longest_s / 2)
        self._wait_for_start(victims)
        return tuple(victims)

    def _roll_without_store(self) -> tuple[int, ...]:
        with self._away():
            return self._roll()

    def _wait_for_start(self, victims: Sequence[int]) -> None:
        for one in victims:
            wait_until(f"node {one} to serve", self._cluster.members[one].has_started, 120)

    def _empty(self, victim: int) -> None:
        """Kills it, and its disk is empty. What others lack of what it had it would be the last to have: so
        all are in sync before."""
        with self._mover.still():
            wait_in_sync(self._cluster, self._topic, 120)
            member = self._cluster.members[victim]
            member.kill()
            shutil.rmtree(member.data)
        self.kills += 1
        self.wipes += 1

    def _wipe(self, victim: int) -> tuple[int, ...]:
        self._empty(victim)
        self._cluster.members[victim].start(120)
        self.wait()
        return (victim,)

    def _wipe_without_store(self) -> tuple[int, ...]:
        victim = self.leader_of_partition()
        self._empty(victim)
        with self._away():
            self._cluster.members[victim].launch()
            self._pause(0.5, self._longest_s)
        self._wait_for_start([victim])
        self.wait()
        return (victim,)
