"""Assignors of the clients by name, Java's and librdkafka's: members come and go while records flow.

The broker only carries what the members agree on, so what is looked at is the whole: the shares are
those that the assignor is known for, no partition has two owners at any time, and each record is read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import count, pairwise
from typing import Any

import pytest

from tests.clients.conftest import NewTopic
from tests.support.flow import Flow, Owners
from tests.support.java_clients import JavaClients, JavaMember
from tests.support.members import Member
from tests.support.processes import wait_until

_groups = count(1)
JAVA = {
    "range": "org.apache.kafka.clients.consumer.RangeAssignor",
    "roundrobin": "org.apache.kafka.clients.consumer.RoundRobinAssignor",
    "sticky": "org.apache.kafka.clients.consumer.StickyAssignor",
    "cooperative-sticky": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
}
AnyMember = Member | JavaMember


class Group:
    """A group of one client's members on two topics of three partitions, to which records flow."""

    def __init__(self, bootstrap: str, topics: Sequence[str], java: JavaClients | None) -> None:
        self.places = frozenset((topic, number) for topic in topics for number in range(3))
        self.owners = Owners()
        self.present: list[AnyMember] = []
        self._all: list[AnyMember] = []
        self.mixes = java is not None
        """whether a member may know both kinds of assignors, eager and cooperative"""
        self.assignors = [one for one in SHARES if java is not None or one != "sticky"]
        self._bootstrap, self._topics, self._java = bootstrap, topics, java
        self._name = f"assigned-{os.getpid()}-{next(_groups)}"
        self.flow = Flow(bootstrap, sorted(self.places))

    def join(self, *assignors: str) -> AnyMember:
        """A member that knows these assignors, the preferred first; of KIP-848 where there are none."""
        topics = ",".join(self._topics)
        if self._java is not None:
            chosen = {"partition.assignment.strategy": ",".join(JAVA[one] for one in assignors)}
            own = chosen if assignors else {"group.protocol": "consumer"}
            member: AnyMember = self._java.join(self._name, topics, own, owners=self.owners)
        else:
            kind, own = "confluent-consumer", {}
            if assignors:
                kind = "confluent"
                own = {"partition.assignment.strategy": ",".join(assignors), "heartbeat.interval.ms": "300"}
            member = Member(kind, self._bootstrap, self._name, topics, **own)
            member.owners = self.owners
            member.start()
        self.present.append(member)
        self._all.append(member)
        return member

    def leave(self, member: AnyMember) -> None:
        self.present.remove(member)
        member.leave()

    def settle(self, *sizes: int) -> None:
        """Waits until each partition has one owner, and members so many, or some, as nothing is said."""

        def settled() -> bool:
            shares = [one.owned for one in self.present]
            found = sorted(map(len, shares))
            is_shared = found == [*sizes] if sizes else all(found)
            return is_shared and sum(found) == 6 and frozenset().union(*shares) == self.places

        wait_until(f"members to own {sizes or 'a part each'}", settled, 60)

    def close(self) -> None:
        self.flow.stop()
        for member in list(self.present):
            self.leave(member)

    def end(self) -> None:
        """No more records come; each was read, and no partition ever had two owners."""
        expected = self.flow.stop()
        wait_until(
            "everything to be read",
            lambda: {value for one in self._all for value in one.values} >= expected,
            60,
        )
        self.close()
        assert not self.owners.doubled, self.owners.doubled[:5]


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory, broker: Any) -> Iterator[JavaClients]:
    with JavaClients(tmp_path_factory.mktemp("java"), broker.bootstrap) as clients:
        yield clients


@pytest.fixture(params=["librdkafka", pytest.param("java", marks=pytest.mark.java)])
def group(request: pytest.FixtureRequest, bootstrap: str, new_topic: NewTopic) -> Iterator[Group]:
    java = request.getfixturevalue("java") if request.param == "java" else None
    made = Group(bootstrap, sorted([new_topic(3), new_topic(3)]), java)
    yield made
    made.close()


# Two members on two topics of three partitions: `range` gives the first one two of each, the others are even.
SHARES = {"range": [2, 4], "roundrobin": [3, 3], "sticky": [3, 3], "cooperative-sticky": [3, 3]}


@pytest.mark.parametrize("assignor", list(SHARES))
def test_members_come_and_go_while_records_flow(assignor: str, group: Group) -> None:
    if assignor not in group.assignors:
        pytest.skip("librdkafka has no assignor of that name")
    first = group.join(assignor)
    group.settle(6)
    group.join(assignor)
    group.settle(*SHARES[assignor])
    group.join(assignor)
    group.settle(2, 2, 2)
    group.leave(first)
    group.settle(*SHARES[assignor])
    group.end()


@pytest.mark.parametrize(
    "path",
    [
        ("range", "cooperative-sticky"),
        pytest.param(
            ("range", "roundrobin", "sticky", "cooperative-sticky", "range"), marks=pytest.mark.thorough
        ),
    ],
    ids=lambda path: f"{len(path)} assignors",
)
def test_a_group_rolls_from_one_assignor_to_the_next(path: tuple[str, ...], group: Group) -> None:
    """As Kafka's documentation says: first all members know both, the new one preferred, then it alone."""
    path = tuple(one for one in path if one in group.assignors)
    if "cooperative-sticky" in path and not group.mixes:
        path = tuple(one for one in path if one != "cooperative-sticky")
        if len(path) < 2:
            pytest.skip("librdkafka does not mix eager and cooperative assignors")
    for _ in range(2):
        group.join(path[0])
    group.settle(*SHARES[path[0]])
    for old, new in pairwise(path):
        for known in ((new, old), (new,)):
            for member in list(group.present):
                group.join(*known)
                group.leave(member)
                group.settle()
        group.settle(*SHARES[new])
    group.end()


def test_a_group_rolls_to_the_consumer_protocol_and_back(group: Group) -> None:
    for _ in range(2):
        group.join("cooperative-sticky")
    group.settle()
    for known in ((), ("cooperative-sticky",)):
        for member in list(group.present):
            group.join(*known)
            group.leave(member)
            group.settle()
        group.settle(3, 3)
    group.end()
