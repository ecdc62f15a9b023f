"""Subscriptions by pattern, of each client: topics that match are read, and one that is made later, too."""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from tests.clients.conftest import Broker
from tests.support.java_clients import JavaClients, JavaMember
from tests.support.members import Member
from tests.support.processes import wait_until

_numbers = count(1)
# How often a client looks by itself whether there are other topics.
REFRESHED: dict[str, dict[str, Any]] = {
    "confluent": {"topic.metadata.refresh.interval.ms": 500},
    "confluent-consumer": {},
    "aiokafka": {"metadata_max_age_ms": 500},
    "kafka-python": {"metadata_max_age_ms": 500},
}


class Topics:
    """Topics of one test. Those that match are `names`, a dash and letters, and nothing behind these."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.names = f"pattern-{os.getpid()}-{next(_numbers)}"
        self.group = f"by-{self.names}"
        self._producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap})

    def make(self, end: str) -> None:
        """A topic of two partitions with a record on each."""
        name = f"{self.names}-{end}"
        self.broker.admin.create(name, 2)
        for partition in range(2):
            wait_until("the topic to be there", lambda number=partition: self.broker.leads(name, number))  # type: ignore[misc]
            self._producer.produce(name, f"{end} of {partition}", partition=partition)
        assert not self._producer.flush(30)

    def watch(self, member: Member | JavaMember) -> None:
        """Makes topics one after the other; the member reads what matches, and has nothing else."""

        def reads(*ends: str) -> None:
            wait_until(
                f"{ends} to be read",
                lambda: (
                    set(member.values) == {b"%s of %d" % (end.encode(), n) for end in ends for n in (0, 1)}
                ),
                40,
            )
            assert {topic for topic, _ in member.owned} == {f"{self.names}-{end}" for end in ends}

        reads("a")
        self.make("b2")
        self.make("b")
        reads("a", "b")
        member.leave()


@pytest.fixture
def topics(broker: Broker) -> Topics:
    made = Topics(broker)
    made.make("a")
    made.make("a1")
    return made


@pytest.mark.parametrize("kind", list(REFRESHED))
def test_a_new_topic_that_matches_is_read(kind: str, topics: Topics) -> None:
    """librdkafka's KIP-848 members and no other of these leave the pattern to the broker."""
    pattern, options = f"^{topics.names}-[a-z]+$", REFRESHED[kind]
    topics.watch(Member(kind, topics.broker.bootstrap, topics.group, pattern, **options).start())


@pytest.mark.java
@pytest.mark.parametrize(
    ("protocol", "by"), [("classic", "pattern"), ("consumer", "pattern"), ("consumer", "re2")]
)
def test_a_new_topic_that_matches_is_read_by_java(
    protocol: str, by: str, topics: Topics, tmp_path: Path
) -> None:
    """`re2`: a `SubscriptionPattern`, which the broker looks up; a `Pattern` is the client's own business."""
    with JavaClients(tmp_path, topics.broker.bootstrap) as java:
        pattern = f"{topics.names}-[a-z]+"
        topics.watch(java.join(topics.group, pattern, {"group.protocol": protocol}, by=by))


@pytest.mark.java
def test_a_pattern_that_is_none_is_refused_by_its_name(bootstrap: str, tmp_path: Path) -> None:
    with JavaClients(tmp_path, bootstrap) as java:
        member = java.join(f"none-{os.getpid()}", "a(b", {"group.protocol": "consumer"}, by="re2")
        wait_until("the member to fail", lambda: member.error, 30)
    assert member.error.startswith("InvalidRegularExpression"), member.error
    assert "a(b" in member.error
