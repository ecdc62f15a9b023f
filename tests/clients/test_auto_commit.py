"""`enable.auto.commit=true`, every client's default: members and nodes are killed, nothing is skipped."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from signal import SIGTERM
from typing import Protocol

import pytest
from confluent_kafka import KafkaException

from tests.clients.conftest import NODES, REPLICAS, REPLICATED
from tests.clients.test_groups import committed
from tests.conftest import BRISK
from tests.support.auto_commit_member import EVERY_MS, KINDS
from tests.support.clients import Admin
from tests.support.flow import Flow
from tests.support.java_clients import JavaClients, JavaMember
from tests.support.processes import PYTHON, REPOSITORY, Node, end, wait_until
from tests.support.quorums import Cluster
from tests.support.requirements import has_javac
from tests.support.tiers import LATEST, offset

PARTITIONS = 4
JAVA = ("java", "java-consumer")
_groups = count(1)


class Reads(Protocol):
    """A member as a process of its own."""

    values: list[bytes]

    def kill(self) -> None: ...
    def leave(self) -> None: ...


class PythonMember:
    """One of `KINDS`."""

    def __init__(self, kind: str, bootstrap: str, group: str, topic: str, log: Path) -> None:
        self.values: list[bytes] = []
        self._log = log
        command = [str(PYTHON), "-m", "tests.support.auto_commit_member", kind, bootstrap, group, topic]
        with log.open("ab") as stderr:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=stderr, cwd=REPOSITORY, text=True
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                if line.endswith("\n"):  # a kill may cut the last one
                    self.values.append(line.strip().encode())

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join(30)

    def leave(self) -> None:
        end(self._process, 60)
        self._reader.join(30)
        is_over = self._process.returncode == 0 or (self._process.returncode == -SIGTERM and not self.values)
        assert is_over, self._log.read_text()[-2000:]  # one that has just been started knows no signal yet


class OneOfJava:
    """One member on a Java machine of its own."""

    def __init__(self, protocol: str, bootstrap: str, group: str, topic: str, folder: Path) -> None:
        self._clients = JavaClients(folder, bootstrap)
        commits = {"enable.auto.commit": "true", "auto.commit.interval.ms": EVERY_MS}
        self._member: JavaMember = self._clients.join(group, topic, {"group.protocol": protocol, **commits})
        self.values = self._member.values

    def kill(self) -> None:
        self._clients.kill()

    def leave(self) -> None:
        self._clients.stop()
        assert not self._member.error, self._member.error


class Group:
    """Members of one kind, of which all that they ever read is kept."""

    def __init__(self, kind: str, bootstrap: str, topic: str, folder: Path) -> None:
        self.kind = kind
        self._bootstrap, self._topic, self._folder = bootstrap, topic, folder
        self._name = f"auto-{kind}-{os.getpid()}-{next(_groups)}"
        self._all: list[Reads] = []
        self._present: list[Reads] = []

    @property
    def values(self) -> list[bytes]:
        return [value for one in self._all for value in one.values]

    def join(self) -> None:
        at = self._folder / f"{self._name}-{len(self._all)}"
        if self.kind in JAVA:
            protocol = "consumer" if self.kind == "java-consumer" else "classic"
            member: Reads = OneOfJava(protocol, self._bootstrap, self._name, self._topic, at)
        else:
            member = PythonMember(self.kind, self._bootstrap, self._name, self._topic, at)
        self._all.append(member)
        self._present.append(member)

    def all_read(self) -> bool:
        """Whether each of its members has its share: not every client can begin while the node is away."""
        return all(one.values for one in self._present)

    def lose(self) -> None:
        """kill -9 of the one that is there longest."""
        self._present.pop(0).kill()

    def committed(self) -> list[int]:
        return committed(self._bootstrap, self._name, self._topic, PARTITIONS)

    def has_committed(self) -> bool:
        """Whether there is a position on each partition; a coordinator that is just being made has none."""
        try:
            return min(self.committed()) > 0
        except KafkaException as e:
            if e.args[0].name() not in ("NOT_COORDINATOR", "COORDINATOR_NOT_AVAILABLE"):
                raise
            return False

    @contextmanager
    def told_of(self, expected: frozenset[bytes]) -> Iterator[None]:
        """Says in an error what was not read."""
        try:
            yield
        except AssertionError as e:
            missing = sorted(expected.difference(self.values), key=int)
            partitions = sorted({int(one) % PARTITIONS for one in missing})
            raise AssertionError(
                f"{self.kind}: {e}; {len(missing)} of {len(expected)} records were not read, {missing[:3]} "
                f"to {missing[-3:]} of partitions {partitions}; committed: {self.committed()}"
            ) from None

    def end(self) -> None:
        while self._present:
            self._present.pop().leave()

    def close(self) -> None:
        while self._present:
            self._present.pop().kill()


SETTINGS = {
    **BRISK,
    "group.consumer.min.session.timeout.ms": "3000",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.heartbeat.interval.ms": "500",
    "group.consumer.heartbeat.interval.ms": "500",
}


@dataclass
class Killable:
    """A node, or a cluster, of which a node can be killed and started again."""

    bootstrap: str
    kill: Callable[[], None]
    start: Callable[[], object]


@pytest.fixture
def killable(tmp_path: Path) -> Iterator[Killable]:
    if NODES == 1:
        node = Node(tmp_path / "node", SETTINGS).start(60)
        try:
            yield Killable(node.bootstrap, node.kill, partial(node.start, 60))
        finally:
            node.close()
        return
    settings = {**SETTINGS, **REPLICATED, "offsets.topic.replication.factor": str(REPLICAS)}
    with Cluster(tmp_path, NODES, NODES, settings=settings) as cluster:
        cluster.start()
        one = cluster.members[1]
        yield Killable(cluster.bootstrap, one.kill, one.start)


@pytest.fixture(
    params=["most", pytest.param("confluent-consumer", marks=pytest.mark.thorough)],
)
def groups(request: pytest.FixtureRequest, killable: Killable, tmp_path: Path) -> Iterator[list[Group]]:
    """One group of each client, those of Java where it is; or of librdkafka's KIP-848 members, by themselves.

    Of these, on a machine with ten times more to do than it can, one sometimes keeps partitions that it is to
    give up until its rebalance timeout (five minutes): whose fault that is is not known yet.
    """
    Admin(killable.bootstrap, REPLICAS).create("t", PARTITIONS)
    kinds = ["confluent-consumer"]
    if request.param == "most":
        kinds = [one for one in KINDS if one != "confluent-consumer"]
        kinds += JAVA if has_javac() or os.environ.get("CI") == "true" else ()
    made = [Group(kind, killable.bootstrap, "t", tmp_path) for kind in kinds]
    yield made
    for group in made:
        group.close()


def test_nothing_is_skipped_when_members_and_the_node_are_killed(
    killable: Killable, groups: list[Group]
) -> None:
    flow = Flow(killable.bootstrap, [("t", number) for number in range(PARTITIONS)], 0.02)

    def all_read(what: str) -> None:
        """Each group has read all that is acknowledged until now."""
        acked = frozenset(flow.acked)
        for group in groups:
            with group.told_of(acked):
                wait_until(what, lambda one=group: acked <= {*one.values}, 60, 0.3)  # type: ignore[misc]

    def all_lose_one() -> None:
        for group in groups:
            group.lose()
            group.join()

    for group in groups:
        group.join()
        group.join()
    wait_until("records to flow", lambda: len(flow.acked) > 100)
    all_read("to read what there is")
    for group in groups:
        wait_until(f"{group.kind} to commit", group.has_committed)
    all_lose_one()
    all_read("to go on without the one that was killed")
    for group in groups:
        wait_until(f"all members of {group.kind} to read", group.all_read, 60)
    killable.kill()
    killable.start()
    all_read("to go on with the node")
    all_lose_one()
    flow.stop()
    all_read("to read all")
    ends = [offset(killable.bootstrap, "t", number, LATEST) for number in range(PARTITIONS)]
    for group in groups:
        group.end()
        assert group.committed() == ends, group.kind
        again = len(group.values) - len(flow.acked)
        assert again < len(flow.acked), f"{group.kind} read {again} records again: nothing was committed"
