"""Storms of links, racks and disks over real nodes; three kinds of clients write, and four read.

What was acknowledged is read, by whomever; replicas are equal; no node ends that was not ended, and none logs
a traceback. `make soak-replicas SECONDS=600 SEED=n` for long ones. Of the short ones, each harm once, that of
links belongs to `make test`; those of racks, for which it takes five nodes and Java, and of disks, for which
it takes a compiler and file systems, to `make soak-replicas`.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.clients import Admin
from tests.support.harms import DiskStorm, HarmStorm, LinkStorm, RackStorm, complaints, in_racks, on_devices
from tests.support.links import Linked
from tests.support.moves import Mover, places, wait_placed
from tests.support.other_clients import READERS, JavaProducer, PythonWriter, Watcher, check_others_read
from tests.support.processes import wait_until
from tests.support.quorums import Cluster
from tests.support.replicas import check_equal, wait_in_sync
from tests.support.storms import BRISK, LONG_SLEEP_S, Storm, Writers, check_files

SEED = int(os.environ.get("SEED", random.SystemRandom().randrange(1 << 32)))
SECONDS = float(os.environ.get("SECONDS_OF_STORM", "300"))
MIB = 1 << 20
SMALL_DISK, LESS_SMALL = 96 * MIB, 768 * MIB
"""of a short and of a long storm"""
SAFE, JAVA, PYTHON = "safe", "java", "python"
"""topics of three replicas, by who writes to them"""
PARTITIONS = {SAFE: 5, JAVA: 3, PYTHON: 1}


def settings(source: random.Random, *, is_short: bool) -> dict[str, str]:
    """A long storm has the defaults half of the time."""
    return dict(BRISK) if is_short or source.random() < 0.5 else {}


class Clients:
    """All that write, and one that reads meanwhile."""

    def __init__(
        self, cluster: Cluster, folder: Path, *, java: bool, moves: bool = False, **config: str
    ) -> None:
        """`moves`: replicas, among more nodes than a partition needs."""
        admin = Admin(cluster.bootstrap)
        self.topics = [one for one in PARTITIONS if java or one != JAVA]
        for topic in self.topics:
            admin.replicate(
                topic,
                PARTITIONS[topic],
                3,
                min_insync_replicas="2",
                segment_bytes=str(MIB),
                file_delete_delay_ms="1000",
                **config,
            )
        for topic in self.topics:
            wait_in_sync(cluster, topic)
        self.cluster = cluster
        where = [(SAFE, index) for index in range(PARTITIONS[SAFE])]
        self.writers = Writers(cluster, where)
        self.writers.all.append(PythonWriter(cluster.bootstrap, (PYTHON, 0), 0.02))
        if java:
            producer = JavaProducer(cluster.bootstrap, JAVA, PARTITIONS[JAVA], 100, folder)
            self.writers.all += producer.all
        self.readers = list(READERS) if java else [one for one in READERS if one != "Java"]
        """each reads one at least; Java takes its time"""
        self.watcher = Watcher(cluster.bootstrap, where)
        # who is cut off, or dead, is one; two others are in sync
        self.mover = Mover(cluster, self.topics, random.Random(SEED + 1), least=3, most=4) if moves else None

    @contextlib.contextmanager
    def at_work(self) -> Iterator[Writers]:
        with self.writers:
            try:
                # Without a producer id a client may ask one broker for it over and over, be that cut off.
                wait_until("a first record of everybody's", self._have_begun, 60)
                with self.mover or contextlib.nullcontext():
                    yield self.writers
            finally:
                self.watcher.close()

    def _have_begun(self) -> bool:
        wrote = {one.place[0] for one in self.writers.all if one.acks}
        return wrote == set(self.topics) and all(one.acks for one in self.writers.all if one.place[0] == SAFE)

    def _still(self) -> contextlib.AbstractContextManager[None]:
        return self.mover.still() if self.mover is not None else contextlib.nullcontext()

    def _wait(self) -> None:
        for topic in self.topics:
            wait_in_sync(self.cluster, topic, 120)

    def wait(self) -> None:
        with self._still():
            self._wait()

    def check(self) -> None:
        """After the storm; the cluster is stopped by it."""
        with self._still():
            self._check()
        if self.mover is not None:
            print(", ".join(f"{count} {what}" for what, count in sorted(self.mover.done.items())), flush=True)

    def _check(self) -> None:
        cluster, writers = self.cluster, self.writers
        self._wait()
        writers.stop()
        for topic in self.topics:
            assert any(one.acks for one in writers.all if one.place[0] == topic), f"nobody wrote to {topic}"
        told = [f"{writers.check_read(cluster)} records acknowledged and read"]
        told.append(f"{self.watcher.check(writers.all)} seen meanwhile")
        for number, one in enumerate(writers.all):
            name = self.readers[number if number < len(self.readers) else number % 2]
            told.append(f"{check_others_read(cluster.bootstrap, one, name)} of {one.place} by {name}")
        self._wait()
        placed = places(cluster, self.topics)
        wait_placed(cluster, placed)
        cluster.stop()
        for topic in self.topics:
            equal = check_equal(cluster, topic, range(PARTITIONS[topic]))
            check_files(cluster, topic, range(PARTITIONS[topic]))
            told.append(f"{sum(equal.values())} equal batches of {topic}")
        print("; ".join(told), flush=True)
        codes = {one.node_id: one.process.returncode for one in cluster.members.values() if one.process}
        assert set(codes.values()) == {0}, codes
        # A node whose metadata log cannot be flushed says where that was, and ends; and what was set aside is
        # named at each start.
        found = complaints(cluster, "FsyncFailed", "not a replica in use")
        assert found == [], "\n".join(found[:20])


def blow(clients: Clients, storm: Storm, source: random.Random, seconds: float) -> None:
    storm.longest_sleep_s = LONG_SLEEP_S
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        storm.next()
        if source.random() < 0.5:
            clients.wait()
        time.sleep(source.uniform(0, 3))


Start = Callable[[Clients, Writers, random.Random], HarmStorm]


def run(clients: Clients, start: Start, source: random.Random, *skipped: str, seconds: float = 0) -> None:
    """Each harm once, but those, or so many seconds of any."""
    with clients.at_work() as writers:
        storm = start(clients, writers, source)
        storm.moves = clients.mover is not None
        if seconds:
            blow(clients, storm, source, seconds)
        else:
            storm.once(*skipped)
        clients.check()
    print(f"{len(storm.done)} harms, {storm.kills} kills", flush=True)


@contextlib.contextmanager
def linked(folder: Path, source: random.Random, nodes: int, *, is_short: bool) -> Iterator[Linked]:
    folder.mkdir()
    with Linked(folder, nodes, settings(source, is_short=is_short), brokers=True) as cluster:
        cluster.start()
        yield cluster


def blow_at_links(folder: Path, seconds: float = 0, *, moves: bool = False) -> None:
    print(f"SEED={SEED}", flush=True)
    source = random.Random(SEED)
    with linked(folder / "nodes", source, 5 if moves else 3, is_short=not seconds) as cluster:
        longest_s = 15 if seconds else 1.5

        def start(_: Clients, writers: Writers, source: random.Random) -> LinkStorm:
            return LinkStorm(cluster, SAFE, source, writers, longest_s)

        clients = Clients(cluster, folder, java=bool(seconds), moves=moves)  # Java takes its time
        # what is alike is left to the long ones
        run(
            clients,
            start,
            source,
            "cut the active controller off",
            "cut two off each other, one way",
            "slow all links of one",
            "links come and go",
            "let one sleep while another is cut off",
            seconds=seconds,
        )


def blow_at_racks(folder: Path, seconds: float = 0) -> None:
    print(f"SEED={SEED}", flush=True)
    source = random.Random(SEED)
    (folder / "nodes").mkdir()
    with Cluster(folder / "nodes", 5, 5, settings(source, is_short=not seconds)) as cluster:
        racks = in_racks(cluster, 3)
        cluster.start()

        def start(_: Clients, writers: Writers, source: random.Random) -> RackStorm:
            return RackStorm(cluster, SAFE, source, writers, racks)

        run(
            Clients(cluster, folder, java=True),
            start,
            source,
            "kill one rack after the other",
            "let a rack sleep",
            "kill a rack and one beside it",
            seconds=seconds,
        )


def blow_at_disks(folder: Path, *, is_small: bool, seconds: float = 0) -> None:
    """`is_small`: disks that fill up, for which file systems must be made."""
    print(f"SEED={SEED}", flush=True)
    source = random.Random(SEED)
    (folder / "nodes").mkdir()
    chosen = settings(source, is_short=not seconds)
    reserve = 0 if not seconds else source.choice((0, MIB))
    with contextlib.ExitStack() as stack:
        cluster = Cluster(folder / "nodes", 3, 3, {**chosen, "firn.disk.reserve.bytes": str(reserve)})
        size = (LESS_SMALL if seconds else SMALL_DISK) if is_small else None
        devices = stack.enter_context(on_devices(cluster, folder / "devices", size, source))
        stack.enter_context(cluster).start()

        def start(_: Clients, writers: Writers, source: random.Random) -> DiskStorm:
            return DiskStorm(cluster, SAFE, source, writers, devices, 12 if seconds else 2)

        skipped = ["one dies while its disk is full", "two disks are full", "a follower's device fails"]
        if is_small:
            skipped += ["a leader's device fails", "a device fails under the metadata log"]
        clients = Clients(cluster, folder, java=False, flush_messages="20")
        run(clients, start, source, *skipped, seconds=seconds)


@pytest.mark.thorough
@pytest.mark.timeout(300)
def test_a_short_storm_of_links_loses_nothing(tmp_path: Path) -> None:
    blow_at_links(tmp_path)


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.java
def test_a_short_storm_of_racks_loses_nothing(tmp_path: Path) -> None:
    blow_at_racks(tmp_path)


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize("is_small", [False, True], ids=["failing", "full"])
def test_a_short_storm_of_disks_loses_nothing(is_small: bool, tmp_path: Path) -> None:
    blow_at_disks(tmp_path, is_small=is_small)


@pytest.mark.soak
@pytest.mark.java
def test_a_long_storm_loses_nothing_of_links(tmp_path: Path) -> None:
    blow_at_links(tmp_path, SECONDS)


@pytest.mark.soak
@pytest.mark.java
def test_a_long_storm_loses_nothing_of_links_while_replicas_move(tmp_path: Path) -> None:
    blow_at_links(tmp_path, SECONDS, moves=True)


@pytest.mark.soak
@pytest.mark.java
def test_a_long_storm_loses_nothing_of_racks(tmp_path: Path) -> None:
    blow_at_racks(tmp_path, SECONDS)


@pytest.mark.soak
@pytest.mark.parametrize("is_small", [False, True], ids=["failing", "full"])
def test_a_long_storm_loses_nothing_of_disks(is_small: bool, tmp_path: Path) -> None:
    blow_at_disks(tmp_path, is_small=is_small, seconds=SECONDS)
