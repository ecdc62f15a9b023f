"""Fetch sessions (KIP-227) answer as Apache Kafka's do, request by request; real consumers use them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, NamedTuple

import pytest

from tests.conftest import NodeFactory
from tests.support.batches import batch
from tests.support.clients import Admin
from tests.support.kafka_node import KafkaNode
from tests.support.processes import Node, wait_until
from tests.support.requirements import need_kafka_tools
from tests.support.wire import RawConnection, produce, schema

VERSIONS = [7, 11, 12, 13, 17]
UNKNOWN_ID = "9c1ba29b-5b6f-4d2e-8a56-7b6d3f0b1a11"


class Ask(NamedTuple):
    """What one request asks of a partition."""

    topic: str
    partition: int
    offset: int
    epoch: int = -1
    max_bytes: int = 1 << 20


class Talk:
    """One client's requests to one node; answers in words that do not depend on the node."""

    def __init__(self, bootstrap: str, version: int) -> None:
        self.connection = RawConnection(bootstrap)
        self.version = version
        self.ids: dict[str, Any] = {}
        self.names: dict[Any, str] = {}
        self.session = 0

    def learn(self, *topics: str) -> None:
        module = schema(3, 12)
        asked = tuple(module.MetadataRequestTopic(topic_id=None, name=topic) for topic in topics)
        request = module.MetadataRequest(
            topics=asked, allow_auto_topic_creation=False, include_topic_authorized_operations=False
        )
        for topic in self.connection.call(request).topics:
            self.ids[topic.name], self.names[topic.topic_id] = topic.topic_id, topic.name

    def fetch(
        self,
        epoch: int,
        *asked: Ask,
        forgotten: tuple[tuple[str, int], ...] = (),
        session: int | None = None,
        version: int | None = None,
        **fields: Any,
    ) -> list[Any]:
        """Sends one fetch of the session, and returns what the answer says."""
        version = self.version if version is None else version
        module = schema(1, version)
        topics = [
            module.FetchTopic(
                **self._key(version, topic), partitions=tuple(self._asked(module, version, parts))
            )
            for topic, parts in _grouped(asked)
        ]
        gone = [
            module.ForgottenTopic(**self._key(version, topic), partitions=(index,))
            for topic, index in forgotten
        ]
        settings = {
            "max_wait": timedelta(0),
            "min_bytes": 1,
            "max_bytes": 50 << 20,
            "isolation_level": 0,
            "session_id": self.session if session is None else session,
            "session_epoch": epoch,
            "topics": tuple(topics),
            "forgotten_topics_data": tuple(gone),
            **({"rack_id": ""} if version >= 11 else {}),
            **({"replica_id": -1} if version <= 14 else {}),
            **fields,
        }
        answer = self.connection.call(module.FetchRequest(**settings))
        known = self.session if session is None else session
        told = "none" if answer.session_id == 0 else "same" if answer.session_id == known else "new"
        if answer.session_id and told == "new":
            self.session = answer.session_id
        return [int(answer.error_code), told, [self._told(topic) for topic in answer.responses]]

    def _key(self, version: int, topic: str) -> dict[str, Any]:
        return {"topic_id": self.ids[topic]} if version >= 13 else {"topic": topic}

    def _asked(self, module: Any, version: int, parts: list[Ask]) -> Iterator[Any]:
        for part in parts:
            fields: dict[str, Any] = {"partition": part.partition, "fetch_offset": part.offset}
            fields |= {"partition_max_bytes": part.max_bytes, "log_start_offset": -1}
            if version >= 9:
                fields["current_leader_epoch"] = part.epoch
            if version >= 12:
                fields["last_fetched_epoch"] = -1
            yield module.FetchPartition(**fields)

    def _told(self, topic: Any) -> list[Any]:
        name = self.names.get(topic.topic_id, "?") if hasattr(topic, "topic_id") else topic.topic
        told = [
            [
                p.partition_index,
                int(p.error_code),
                p.high_watermark,
                p.log_start_offset,
                len(p.records or b""),
            ]
            for p in topic.partitions
        ]
        return [name, told]


def _grouped(asked: tuple[Ask, ...]) -> list[tuple[str, list[Ask]]]:
    grouped: dict[str, list[Ask]] = {}
    for one in asked:
        grouped.setdefault(one.topic, []).append(one)
    return list(grouped.items())


def life_of_a_session(bootstrap: str, talk: Talk) -> Iterator[tuple[str, list[Any]]]:
    one = batch([b"x" * 100])
    fetch = talk.fetch
    yield "begin", fetch(0, Ask("a", 0, 0), Ask("a", 1, 0), Ask("b", 0, 0))
    yield "nothing new", fetch(1)
    produce(talk.connection, "a", 1, one)
    yield "one has records", fetch(2)
    yield "the same, not confirmed", fetch(3)
    yield "confirmed", fetch(4, Ask("a", 1, 1))
    yield "an epoch that was used", fetch(4)
    yield "an epoch to come", fetch(9)
    yield "no epoch", fetch(-5)
    yield "it goes on", fetch(5)
    yield "no such session", fetch(1, session=(talk.session ^ 1) or 2)
    yield "an unknown partition joins", fetch(6, Ask("a", 9, 0))
    yield "it is told each time", fetch(7)
    yield "it is forgotten", fetch(8, forgotten=(("a", 9),))
    yield "an offset that is not there", fetch(9, Ask("b", 0, 100))
    yield "told each time, too", fetch(10)
    yield "mended, and told anew", fetch(11, Ask("b", 0, 0))
    yield "nothing new again", fetch(12)
    if talk.version >= 9:
        yield "an epoch of leaders ahead of ours", fetch(13, Ask("b", 0, 0, epoch=7))
        yield "and a right one", fetch(14, Ask("b", 0, 0, epoch=0))
    else:
        yield "twice", fetch(13)
        yield "nothing", fetch(14)
    yield "added and forgotten at once", fetch(15, Ask("b", 1, 0), forgotten=(("b", 1),))
    yield "all are forgotten", fetch(16, forgotten=(("a", 0), ("a", 1), ("b", 0)))
    yield "and with them the session", fetch(17)


def ends_of_sessions(bootstrap: str, talk: Talk) -> Iterator[tuple[str, list[Any]]]:
    fetch = talk.fetch
    yield "begin", fetch(0, Ask("a", 0, 0))
    first = talk.session
    yield "another takes its place", fetch(0, Ask("a", 0, 0))
    yield "the first is gone", fetch(1, session=first)
    yield "the second is not", fetch(1)
    yield "a last fetch", fetch(-1, Ask("a", 0, 0))
    yield "the second is gone", fetch(2)
    yield "no session is wanted", fetch(-1, Ask("a", 0, 0), session=0)
    yield "a session of nothing", fetch(0, session=0)
    yield "begins empty", fetch(1, Ask("a", 0, 0))


def turns(bootstrap: str, talk: Talk) -> Iterator[tuple[str, list[Any]]]:
    """Under a small budget each partition has its turn."""
    for partition in (0, 1):
        for _ in range(3):
            produce(talk.connection, "a", partition, batch([b"x" * 100]))
    at = {0: 0, 1: 0}
    yield "begin", talk.fetch(0, Ask("a", 0, 0), Ask("a", 1, 0), max_bytes=10)
    order = []
    changed = [Ask("a", 0, 0), Ask("a", 1, 0)]
    for epoch in range(1, 7):
        _, _, topics = talk.fetch(epoch, *changed, max_bytes=10)
        told = [part[0] for _, parts in topics for part in parts if part[4]]
        assert len(told) == 1, topics
        order.append(told[0])
        at[told[0]] += 1
        changed = [Ask("a", told[0], at[told[0]])]
    yield "turns", sorted(order)


def other_keys(bootstrap: str, talk: Talk) -> Iterator[tuple[str, list[Any]]]:
    """A session of names is not gone on with by ids, nor the other way round."""
    yield "begin", talk.fetch(0, Ask("a", 0, 0))
    other = 12 if talk.version >= 13 else 13
    yield "the other keys", talk.fetch(1, version=other)
    yield "its own", talk.fetch(1)
    if talk.version >= 13:
        talk.ids["nobody"] = type(talk.ids["a"])(UNKNOWN_ID)
        yield "an unknown id", talk.fetch(2, Ask("nobody", 0, 0))
        yield "told each time", talk.fetch(3)
        yield "forgotten", talk.fetch(4, forgotten=(("nobody", 0),))


def topics_that_go(bootstrap: str, talk: Talk) -> Iterator[tuple[str, list[Any]]]:
    """A session knows by which name its topic's id went."""
    assert isinstance(talk, _OwnTopics)
    epoch = 0

    def error_of(topic: str) -> int | None:
        nonlocal epoch
        epoch += 1
        told = dict(talk.fetch(epoch)[2])
        return told[topic][0][1] if topic in told else None

    def once_told(topic: str, errors: tuple[int, ...]) -> list[Any]:
        found: list[Any] = []

        def is_told() -> bool:
            found[:] = [error_of(topic)]
            return found[0] in errors

        wait_until(f"one of the errors {errors}", is_told)
        return found

    yield "begin", talk.fetch(0, Ask("a", 0, 0), Ask("b", 0, 0))
    client = Admin(bootstrap)
    client.delete(talk.full("a"))
    yield "it is deleted", once_told("a", (3, 100))
    if talk.version >= 13:
        client.create(talk.full("a"), 1)
        yield "another one has its name", once_told("a", (100, 103))


Scenario = Callable[[str, Talk], Iterator[tuple[str, list[Any]]]]


def told_by(bootstrap: str, scenario: Scenario, version: int) -> list[tuple[str, list[Any]]]:
    """All that a node answers in a scenario, on topics that were made for it."""
    admin = Admin(bootstrap)
    for topic, partitions in (("a", 2), ("b", 1)):
        admin.create(f"{topic}-{scenario.__name__}-{version}", partitions)
    own = _OwnTopics(bootstrap, version, f"-{scenario.__name__}-{version}")
    everything = (Ask("a", 0, 0), Ask("a", 1, 0), Ask("b", 0, 0))

    def can_be_fetched() -> bool:
        own.learn("a", "b")  # Kafka answers before it knows all of a new topic
        _, _, topics = own.fetch(-1, *everything, session=0)
        return all(error == 0 for _, parts in topics for _, error, *_ in parts)

    wait_until("leaders of all partitions", can_be_fetched)
    found = list(scenario(bootstrap, own))
    own.connection.socket.close()
    return found


class _OwnTopics(Talk):
    """A talk about topics whose names end as one test's do; scenarios leave that out."""

    def __init__(self, bootstrap: str, version: int, ending: str) -> None:
        super().__init__(bootstrap, version)
        self._ending = ending
        self.connection = _Renaming(bootstrap, ending)

    def full(self, topic: str) -> str:
        return topic + self._ending

    def learn(self, *topics: str) -> None:
        super().learn(*map(self.full, topics))
        for topic in topics:
            self.ids[topic] = self.ids[self.full(topic)]
            self.names[self.ids[topic]] = topic

    def _key(self, version: int, topic: str) -> dict[str, Any]:
        return {"topic_id": self.ids[topic]} if version >= 13 else {"topic": self.full(topic)}

    def _told(self, topic: Any) -> list[Any]:
        name, told = super()._told(topic)
        return [name.removesuffix(self._ending), told]


class _Renaming(RawConnection):
    def __init__(self, bootstrap: str, ending: str) -> None:
        super().__init__(bootstrap)
        self.ending = ending

    def call(self, request: Any) -> Any:
        if request.__api_key__ == 0:
            (data,) = request.topic_data
            renamed = type(data)(name=data.name + self.ending, partition_data=data.partition_data)
            request = type(request)(acks=request.acks, timeout=request.timeout, topic_data=(renamed,))
        return super().call(request)


@pytest.fixture(scope="module")
def firn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    node = Node(tmp_path_factory.mktemp("firn")).start()
    yield node.bootstrap
    node.stop()


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    need_kafka_tools()
    node = KafkaNode(tmp_path_factory.mktemp("kafka") / "node", heap="512m")
    yield node.bootstrap
    node.stop()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("scenario", [life_of_a_session, ends_of_sessions, turns, other_keys, topics_that_go])
def test_a_session_is_answered_as_by_apache_kafka(
    firn: str, kafka: str, scenario: Scenario, version: int
) -> None:
    ours, theirs = told_by(firn, scenario, version), told_by(kafka, scenario, version)
    assert ours == theirs


def test_all_slots_taken_is_full_fetches_for_the_next(start_node: NodeFactory) -> None:
    node = start_node(**{"max.incremental.fetch.session.cache.slots": "2"})
    Admin(node.bootstrap).create("a", 1)
    talks = [Talk(node.bootstrap, 12) for _ in range(3)]
    told = [talk.fetch(0, Ask("a", 0, 0))[1] for talk in talks]
    assert told == ["new", "new", "none"]
    assert talks[0].fetch(-1)[1] == "none"
    assert talks[2].fetch(0, Ask("a", 0, 0))[1] == "new"
    node.stop()
