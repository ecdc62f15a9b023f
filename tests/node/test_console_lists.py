"""The console's lists on a whole node: groups with lag and members, topics with size and rate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import confluent_kafka
import pytest

from service.console.web import group_sampler, topic_figures
from tests.node.conftest import NodeThread
from tests.support.clients import Admin
from tests.support.console_thread import ConsoleThread
from tests.support.processes import wait_until


class Shown(NamedTuple):
    console: ConsoleThread
    bootstrap: str


@pytest.fixture
def shown(start: Callable[..., NodeThread], monkeypatch: pytest.MonkeyPatch) -> Iterator[Shown]:
    """A node and its console, which samples more often than usual."""
    for name, value in (("EVERY_S", 0.2), ("LEAST_MS", 100)):
        monkeypatch.setattr(topic_figures, name, value)
    monkeypatch.setattr(group_sampler, "FRESH_MS", 200)
    node = start(offsets_topic_num_partitions="2", group_initial_rebalance_delay_ms="0")
    bootstrap = f"{node.host}:{node.port}"
    with ConsoleThread(bootstrap) as console:
        yield Shown(console, bootstrap)


def write(bootstrap: str, topic: str, count: int) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for number in range(count):
        producer.produce(topic, b"x" * 1000, partition=number % 2)
    assert not producer.flush(30)


def committed(bootstrap: str, group: str, topic: str, offset: int) -> confluent_kafka.Consumer:
    """Return a consumer of all of `topic` that has committed this offset in each of two partitions."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False}
    )
    places = [confluent_kafka.TopicPartition(topic, n, offset) for n in (0, 1)]
    consumer.assign(places)
    consumer.commit(offsets=places, asynchronous=False)
    return consumer


def test_groups_and_topics_are_listed_with_their_figures(shown: Shown) -> None:
    bootstrap, get = shown.bootstrap, shown.console.get
    admin = Admin(bootstrap)
    for topic in ("flights", "small"):
        admin.create(topic, 2)
    write(bootstrap, "flights", 200)
    write(bootstrap, "small", 2)
    for group, topic, offset in (("billing", "flights", 40), ("audit-<b>", "small", 1)):
        committed(bootstrap, group, topic, offset).close()
    member = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "billing", "enable.auto.commit": False}
    )
    member.subscribe(["flights"])
    try:
        wait_until("it is a member", lambda: member.poll(0.1) is not None and len(member.assignment()) == 2)
        wait_until(
            "members and lag", lambda: get("/groups?sort=lag").row("billing")[1:4] == ["Stable", "1", "120"]
        )
        rows = get("/groups?sort=lag").text
        assert rows.index("billing") < rows.index("audit-<b>")
        assert get("/groups").row("audit-<b>")[1:4] == ["Empty", "0", "0"]

        page = get("/topic?name=flights")
        assert page.row("billing")[1:] == ["Stable", "1", "120"]
        assert page.row("0")[1:5] == ["1", "1", "1", "0"]
        assert 'href="/records?topic=flights"' in page.source
        assert "in the bucket" not in page.text.lower()
        assert "No group has committed" in get("/topic?name=__consumer_offsets").text
    finally:
        member.close()

    def row(name: str, sort: str = "name") -> list[str]:
        return get(f"/topics?sort={sort}").row(name)

    wait_until(
        "sizes", lambda: row("flights")[5].endswith("kB") and float(row("flights")[5].split()[0]) > 200
    )
    assert row("flights")[1:4] == ["2", "1", "online"]
    write(bootstrap, "flights", 400)
    wait_until("a rate", lambda: row("flights")[4] not in ("–", "0"), 40)
    for sort in ("size", "rate"):
        text = get(f"/topics?sort={sort}").text
        assert text.index("flights") < text.index("small")
