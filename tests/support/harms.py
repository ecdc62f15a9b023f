"""Storms of more kinds than those of `storms`: links that are cut or slowed, racks that die, disks that fail.

What is true of any of them: a harm ends with all nodes running, all links whole and all disks well, and not
all replicas in sync.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.support.failing_fsync import FailingFsync
from tests.support.links import Linked
from tests.support.processes import wait_until
from tests.support.quorums import Cluster, Member
from tests.support.replicas import State, states
from tests.support.small_disk import Ballast, small_disk
from tests.support.storms import Storm, Writers

Kind = tuple[int, str, Callable[[], tuple[int, ...]]]
_GRAVE = re.compile(
    r'^ +File "|Traceback|never retrieved|InvariantError|is cut at|below the high watermark'
    r"|replication stopped"
)
"""A node's own tracebacks have no headline. And nobody may be told to give up what is committed."""
_LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:")
"""So begins what is logged; a traceback follows its message."""


def complaints(cluster: Cluster, *but: str) -> list[str]:
    """Return unexpected errors in the nodes' logs, without lines that contain one of `but`."""
    found: list[str] = []
    for member in cluster.members.values():
        said: list[str] = []
        for line in member.log_path.read_text(errors="replace").splitlines():
            if _LINE.match(line) or not said:
                said.append(line)
            else:
                said[-1] += f"\n{line}"
        found += [
            f"{member.node_id}: {one}"
            for one in said
            if re.search(_GRAVE.pattern, one, re.MULTILINE) and not any(word in one for word in but)
        ]
    return found


def goes_on_without(
    cluster: Cluster,
    writers: Writers,
    topic: str,
    victims: Collection[int],
    seconds: float = 60,
    *,
    moves: bool = False,
) -> None:
    """The others have elected leaders wherever one of these led, and what those lead is written to.

    Those of whom a client takes one for a leader that is none, as it says so itself, have no part in it. That
    may be any of them where leaders move meanwhile.
    """
    witness = next(one for one in cluster.members.values() if one.node_id not in victims and one.is_running)
    led: set[int] = set()

    def are_elected() -> bool:
        found = states(witness, topic)
        led.clear()
        led.update(index for index, one in found.items() if one.leader not in (-1, *victims))
        return len(led) == len(found) > 0

    before = {index: one.leader for index, one in states(witness, topic).items()}
    wait_until(f"leaders of {topic} beside {tuple(victims)}", are_elected, seconds)
    if moves:
        return
    stayed = {index for index, leader in before.items() if leader not in victims} & led
    now_s = time.monotonic()
    wait_until(
        f"acknowledgements of {topic}, {sorted(stayed)}, without {tuple(victims)}",
        lambda: all(
            one.acks and one.acks[-1].produced_s >= now_s
            for one in writers.all
            if one.place[0] == topic and one.place[1] in stayed
        ),
        seconds,
    )


class HarmStorm(Storm):
    """`own` harms come beside those of `Storm`."""

    def __init__(self, cluster: Cluster, topic: str, source: random.Random, writers: Writers) -> None:
        super().__init__(cluster, topic, source)
        self._writers = writers
        self.moves = False
        """whether replicas and leaders move meanwhile"""

    @property
    def own(self) -> Sequence[Kind]:
        raise NotImplementedError

    @property
    def _kinds(self) -> Sequence[Kind]:
        return (*self.own, *super()._kinds)

    def once(self, *without: str) -> None:
        """Each of its own harms, in turn."""
        for _, what, do in self.own:
            if what not in without:
                self.do(what, do)

    def _goes_on_without(self, victims: Collection[int]) -> None:
        goes_on_without(self._cluster, self._writers, self._topic, victims, moves=self.moves)

    def _pause(self, least_s: float, most_s: float) -> None:
        time.sleep(self._source.uniform(least_s, most_s))


# -- links


class LinkStorm(HarmStorm):
    """Storm over a `Linked` cluster, its brokers included."""

    def __init__(
        self, cluster: Linked, topic: str, source: random.Random, writers: Writers, longest_s: float = 15
    ) -> None:
        super().__init__(cluster, topic, source, writers)
        self._links, self._longest_s = cluster.links, longest_s

    @property
    def own(self) -> Sequence[Kind]:
        return (
            (4, "cut a leader off", lambda: self._cut_off(self.leader_of_partition())),
            (3, "cut the active controller off", lambda: self._cut_off(self.controller())),
            (4, "what one says is lost", lambda: self._lose(says=True)),
            (4, "what one is told is lost", lambda: self._lose(says=False)),
            (3, "cut two off each other", self._cut_pair),
            (2, "cut two off each other, one way", lambda: self._cut_pair(both=False)),
            (3, "slow all links of one", self._slow_one),
            (2, "slow all links", self._slow_all),
            (3, "links come and go", self._flap),
            (3, "kill one while a leader is cut off", self._cut_and_kill),
            (2, "let one sleep while another is cut off", self._cut_and_sleep),
        )

    def _others(self, *ids: int) -> list[int]:
        return [one for one in self._ids if one not in ids]

    @contextlib.contextmanager
    def _mended(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._links.mend()

    def _cut(self, victim: int) -> None:
        self._links.cut([victim], self._others(victim))
        self._links.cut(self._others(victim), [victim])

    def _cut_off(self, victim: int) -> tuple[int, ...]:
        with self._mended():
            self._cut(victim)
            self._goes_on_without([victim])
            if self._source.random() < 0.3:
                self._pause(0, self._longest_s)
        return (victim,)

    def _lose(self, *, says: bool) -> tuple[int, ...]:
        victim = self._source.choice((self.leader_of_partition(), self.controller(), *self._ids))
        with self._mended():
            others = self._others(victim)
            self._links.cut([victim] if says else others, others if says else [victim])
            self._pause(1, self._longest_s)
        return (victim,)

    def _cut_pair(self, *, both: bool = True) -> tuple[int, ...]:
        one, other = self._source.sample(self._ids, 2)
        with self._mended():
            self._links.cut([one], [other])
            if both:
                self._links.cut([other], [one])
            self._pause(1, self._longest_s)
        return one, other

    def _slow_one(self) -> tuple[int, ...]:
        victim, seconds = self._source.choice(self._ids), self._source.choice((0.02, 0.1, 0.5, 2.0))
        with self._mended():
            ways = self._source.choice(("says", "hears", "both"))
            if ways != "hears":
                self._links.slow([victim], self._others(victim), seconds)
            if ways != "says":
                self._links.slow(self._others(victim), [victim], seconds)
            self._pause(1, self._longest_s)
        return (victim,)

    def _slow_all(self) -> tuple[int, ...]:
        with self._mended():
            self._links.slow(self._ids, self._ids, self._source.choice((0.02, 0.1, 0.3)))
            self._pause(1, self._longest_s)
        return tuple(self._ids)

    def _flap(self) -> tuple[int, ...]:
        victims = self._source.sample(self._ids, 2)
        with self._mended():
            for _ in range(self._source.randrange(2, 10)):
                self._cut(self._source.choice(victims))
                self._pause(0.05, 1.5)
                self._links.mend()
                self._pause(0.05, 1)
        return tuple(victims)

    def _cut_and_kill(self) -> tuple[int, ...]:
        """Cut links and kill; a node that starts may need peers that it cannot reach."""
        cut = self.leader_of_partition()
        killed = self._source.choice((cut, *self._others(cut)))
        with self._mended():
            self._cut(cut)
            self._pause(0, self._longest_s / 2)
            self._cluster.members[killed].kill()
            self.kills += 1
            self._pause(0, 2)
            self._cluster.members[killed].launch()
            self._pause(0, self._longest_s / 2)
        wait_until(f"node {killed} to serve", self._cluster.members[killed].has_started, 120)
        return cut, killed

    def _cut_and_sleep(self) -> tuple[int, ...]:
        cut, sleeper = self._source.sample(self._ids, 2)
        process = self._cluster.members[sleeper].process
        assert process is not None
        with self._mended():
            self._cut(cut)
            os.kill(process.pid, signal.SIGSTOP)
            try:
                self._pause(0.5, self._longest_s / 2)
            finally:
                os.kill(process.pid, signal.SIGCONT)
            self._pause(0, 3)
        return cut, sleeper


# -- racks


def in_racks(cluster: Cluster, count: int) -> dict[str, list[int]]:
    """Each node is in one, before its start; who is where."""
    racks: dict[str, list[int]] = {}
    for number, (node_id, member) in enumerate(cluster.members.items()):
        rack = f"rack-{'abc'[number % count]}"
        member.settings["broker.rack"] = rack
        racks.setdefault(rack, []).append(node_id)
    return racks


class RackStorm(HarmStorm):
    """Everything of one rack dies, and the others go on: no rack has a majority of the controllers."""

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        source: random.Random,
        writers: Writers,
        racks: Mapping[str, Sequence[int]],
    ) -> None:
        super().__init__(cluster, topic, source, writers)
        self._racks = racks

    @property
    def own(self) -> Sequence[Kind]:
        return (
            (6, "kill a rack", self._kill_rack),
            (4, "kill the rack of the active controller", lambda: self._kill_rack(self.controller())),
            (3, "kill one rack after the other", self._kill_all),
            (2, "let a rack sleep", self._let_rack_sleep),
            (2, "kill a rack and one beside it", self._kill_rack_and_one),
        )

    def _rack_of(self, node_id: int | None) -> list[int]:
        """Any where it is None."""
        if node_id is None:
            return list(self._source.choice(list(self._racks.values())))
        return next(list(ids) for ids in self._racks.values() if node_id in ids)

    def _strike(self, victims: Collection[int]) -> None:
        for one in victims:
            self._cluster.members[one].kill()
        self.kills += len(victims)

    def _kill_rack(self, node_id: int | None = None) -> tuple[int, ...]:
        victims = self._rack_of(node_id)
        self._strike(victims)
        self._goes_on_without(victims)
        self._writers.wait_for_acks(60, self._topic)
        self._start(victims)
        return tuple(victims)

    def _kill_all(self) -> tuple[int, ...]:
        """The next one as the one before comes back, whoever is in sync by then."""
        order = list(self._racks.values())
        self._source.shuffle(order)
        for victims in order:
            self._strike(victims)
            self._pause(0, 3)
            self._start(victims)
        return tuple(one for victims in order for one in victims)

    def _kill_rack_and_one(self) -> tuple[int, ...]:
        victims = self._rack_of(None)
        other = self._source.choice([one for one in self._ids if one not in victims])
        self._strike([*victims, other])
        self._pause(0, 3)
        self._start([*victims, other])
        return (*victims, other)

    def _let_rack_sleep(self) -> tuple[int, ...]:
        victims = self._rack_of(None)
        pids = [one.process.pid for id_ in victims if (one := self._cluster.members[id_]).process]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            self._pause(1, 15)
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
        return tuple(victims)


# -- disks


class Devices(NamedTuple):
    """Devices below a node's directories; the first has the metadata log."""

    second: Path
    fsync: FailingFsync
    """of the second directory, or of the metadata log"""
    is_small: bool


class DiskStorm(HarmStorm):
    """Nodes of two directories each, whose devices fail or fill up."""

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        source: random.Random,
        writers: Writers,
        devices: Mapping[int, Devices],
        longest_s: float = 12,
    ) -> None:
        super().__init__(cluster, topic, source, writers)
        self._devices, self._longest_s = devices, longest_s

    @property
    def own(self) -> Sequence[Kind]:
        kinds: list[Kind] = [
            (4, "a leader's device fails", lambda: self._fail(self.leader_of_partition())),
            (3, "a follower's device fails", lambda: self._fail(self._follower())),
            (2, "a device fails under the metadata log", self._fail_metadata),
        ]
        if all(one.is_small for one in self._devices.values()):
            kinds += [
                (4, "a leader's disk is full", lambda: self._fill([self.leader_of_partition()])),
                (4, "a follower's disk is full", self._fill_follower),
                (2, "two disks are full", lambda: self._fill(self._source.sample(self._ids, 2))),
                (3, "one dies while its disk is full", self._fill_and_kill),
            ]
        return kinds

    def _fail(self, victim: int) -> tuple[int, ...]:
        """What lies in the directory is led elsewhere; the node goes on with the other, until it is started
        anew on a device that works."""
        member, devices = self._cluster.members[victim], self._devices[victim]
        self._aim(member, devices.second.name)
        devices.fsync.on()
        try:
            wait_until(
                f"node {victim} to take {devices.second} offline",
                lambda: "is offline with all its logs" in member.said(),
                60,
            )
            self._wait_for_second(
                victim, "led elsewhere", lambda one: one.leader not in (-1, victim) and victim not in one.isr
            )
            self._writers.wait_for_acks(60, self._topic)
        finally:
            devices.fsync.off()
        self._restart(victim)
        return (victim,)

    def _wait_for_second(self, victim: int, what: str, is_so: Callable[[State], bool]) -> None:
        """Wait until all partitions in the second directory of this node are so."""
        folder = self._devices[victim].second
        witness = next(one for one in self._cluster.members.values() if one.node_id != victim)

        def are_so() -> bool:
            found = states(witness, self._topic)
            return all(
                is_so(one) for index, one in found.items() if (folder / f"{self._topic}-{index}").is_dir()
            )

        wait_until(f"what is in {folder} to be {what}", are_so, 90)

    def _restart(self, victim: int) -> None:
        member = self._cluster.members[victim]
        if self._source.random() < 0.5:
            member.kill()
            self.kills += 1
        else:
            member.leave(120)
        member.start(120)

    def _aim(self, member: Member, part: str) -> None:
        """Choose the failures of a node; it gets them at its start."""
        wanted = f"/{part}/"
        if member.environ["FIRN_TEST_FSYNC_PATH"] != wanted:
            member.environ = {**member.environ, "FIRN_TEST_FSYNC_PATH": wanted}
            self._restart(member.node_id)

    def _fail_metadata(self) -> tuple[int, ...]:
        victim = self._source.choice(self._ids)
        member, devices = self._cluster.members[victim], self._devices[victim]
        self._aim(member, "__cluster_metadata-0")
        devices.fsync.on()
        try:
            # ISR changes, leaders and snapshots are what is written there
            other = next(one for one in self._ids if one != victim)
            self._kill([other])
            wait_until(f"node {victim} to end", lambda: not member.is_running, 60)
        finally:
            devices.fsync.off()
        assert member.process is not None
        assert member.process.returncode == 1, f"{member.process.returncode}; {member.log()}"
        member.start(120)
        return (victim,)

    @contextlib.contextmanager
    def _full(self, victims: Collection[int]) -> Iterator[None]:
        ballast = [Ballast(self._devices[one].second) for one in victims]
        try:
            yield
        finally:
            for one in ballast:
                one.drop()

    def _fill(self, victims: Sequence[int]) -> tuple[int, ...]:
        with self._full(victims):
            self._pause(0.5, self._longest_s)
        return tuple(victims)

    def _fill_follower(self) -> tuple[int, ...]:
        """Fill the disk until the node is in sync nowhere where it would have to write."""
        victim = self._follower()
        with self._full([victim]):
            self._wait_for_second(
                victim, "out of sync", lambda one: victim == one.leader or victim not in one.isr
            )
            self._pause(0, self._longest_s / 2)
        return (victim,)

    def _fill_and_kill(self) -> tuple[int, ...]:
        victim = self._source.choice(self._ids)
        with self._full([victim]):
            self._pause(0, self._longest_s / 2)
            self._cluster.members[victim].kill()
            self.kills += 1
            self._cluster.members[victim].launch()
            self._pause(0, self._longest_s)
        member = self._cluster.members[victim]
        if not member.is_running:  # a start on a full disk may be refused
            member.start(120)
        wait_until(f"node {victim} to serve", member.has_started, 120)
        return (victim,)


@contextlib.contextmanager
def on_devices(
    cluster: Cluster, folder: Path, size_bytes: int | None, source: random.Random
) -> Iterator[dict[int, Devices]]:
    """Gives the nodes a second directory each, before their start: of so many bytes, or of the disk there."""
    with contextlib.ExitStack() as stack:
        devices = {}
        for node_id, member in cluster.members.items():
            own = folder / f"device-{node_id}"
            second = own / f"second-{node_id}"
            own.mkdir(parents=True)
            if size_bytes is not None:
                stack.enter_context(small_disk(second, size_bytes))
            fsync = FailingFsync(own, f"/{second.name}/", once=source.random() < 0.5)
            member.settings["log.dirs"] = f"{member.data},{second}"
            member.environ = {**member.environ, **fsync.env}
            devices[node_id] = Devices(second, fsync, size_bytes is not None)
        yield devices
