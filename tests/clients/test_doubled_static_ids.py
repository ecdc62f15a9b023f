"""Two members with one `group.instance.id`: which of them is fenced or refused, and with which error.

In a classic group the newer one takes the place over, and the older is fenced. In a KIP-848 group the place
is free when its owner has left or its session is over: until then the newer one is refused.
"""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path

import pytest

from tests.clients.conftest import NewTopic
from tests.clients.test_groups import write
from tests.support.java_clients import JavaClients
from tests.support.members import Member
from tests.support.processes import wait_until

_groups = count(1)
STATIC = {"group.instance.id": "one"}
ALL = frozenset(range(4))


def new_group() -> str:
    return f"doubled-{os.getpid()}-{next(_groups)}"


def test_the_newer_of_two_takes_the_place_in_a_classic_group(bootstrap: str, new_topic: NewTopic) -> None:
    topic, group = new_topic(4), new_group()
    older = Member("confluent", bootstrap, group, topic, **STATIC).start()
    wait_until("the older one to own all", lambda: older.partitions == ALL)
    newer = Member("confluent", bootstrap, group, topic, **STATIC).start()
    wait_until("the older one to be fenced", lambda: older.errors)
    assert any("Static consumer fenced by other consumer" in one for one in older.errors), older.errors
    wait_until("the newer one to own all", lambda: newer.partitions == ALL)
    expected = write(bootstrap, topic, 4, range(100))
    wait_until("the newer one to read", lambda: set(newer.values) == expected)
    older.leave()
    expected |= write(bootstrap, topic, 4, range(100, 200))
    wait_until("it to go on", lambda: set(newer.values) == expected)
    assert not older.values
    newer.leave()


def test_the_newer_of_two_is_refused_in_a_modern_group(bootstrap: str, new_topic: NewTopic) -> None:
    topic, group = new_topic(4), new_group()
    older = Member("confluent-consumer", bootstrap, group, topic, **STATIC).start()
    wait_until("the older one to own all", lambda: older.partitions == ALL)
    newer = Member("confluent-consumer", bootstrap, group, topic, **STATIC).start()
    wait_until("the newer one to be refused", lambda: newer.errors)
    assert any("instance ID is still used by another member" in one for one in newer.errors), newer.errors
    newer.leave()
    expected = write(bootstrap, topic, 4, range(100))
    wait_until("the older one to read", lambda: set(older.values) == expected)
    older.leave()
    heir = Member("confluent-consumer", bootstrap, group, topic, **STATIC).start()
    wait_until("the place to be taken once it is free", lambda: heir.partitions == ALL)
    heir.leave()


@pytest.mark.java
@pytest.mark.parametrize(
    ("protocol", "refusal"), [("classic", "FencedInstanceId"), ("consumer", "UnreleasedInstanceId")]
)
def test_java_reports_fenced_and_refused_static_members(
    protocol: str, refusal: str, bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic, group, options = new_topic(4), new_group(), {**STATIC, "group.protocol": protocol}
    with JavaClients(tmp_path, bootstrap) as java:
        older = java.join(group, topic, options)
        wait_until("the older one to own all", lambda: older.partitions == ALL)
        newer = java.join(group, topic, options)
        loser, winner = (older, newer) if protocol == "classic" else (newer, older)
        wait_until("one of them to fail", lambda: loser.error)
        assert loser.error.startswith(refusal), loser.error
        wait_until("the other to own all", lambda: winner.partitions == ALL)
        expected = write(bootstrap, topic, 4, range(100))
        wait_until("the other to read", lambda: set(winner.values) == expected)
        winner.leave()
