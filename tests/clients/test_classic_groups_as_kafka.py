"""Classic groups and offsets answer as Apache Kafka's do, request by request, in old and new versions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pprint import pformat
from typing import Any

import pytest

from tests.support.classic_peer import FIND, JOIN, OFFSET_COMMIT, OFFSET_FETCH, SETTINGS, Peer, build
from tests.support.clients import Admin
from tests.support.kafka_node import KafkaNode
from tests.support.processes import Node, wait_until
from tests.support.requirements import need_kafka_tools
from tests.support.wire import RawConnection, schema

Told = Iterator[tuple[str, Any]]


def life_of_a_group(peer: Peer) -> Told:
    yield "nobody", [peer.describe(), peer.listed(), peer.heartbeat("a", "nobody", 1)]
    peer.join("a", "nobody")
    yield "an id of another world", peer.told("a")
    told, (a, b) = peer.stable("a", "b")
    yield "stable", told
    yield "described", [peer.describe(), peer.listed()]
    yield "deleted while it lives", peer.delete("g", "none")
    for generation in (1, 3):
        yield "another generation", peer.heartbeat("a", a, generation)
    yield "alive", [peer.heartbeat("a", a, 2), peer.heartbeat("b", b, 2)]
    peer.sync("b", b, 2)
    yield "again", peer.told("b")
    peer.sync("b", b, 1)
    yield "too late", peer.told("b")
    peer.join("b", b)
    yield "a follower that did not change", peer.told("b")
    yield "b leaves", peer.leave("b", (b, None))
    peer.wait_for("PreparingRebalance")
    yield "described", peer.describe()
    peer.sync("a", a, 2)
    yield "no time for sync", peer.told("a")
    peer.join("a", a)
    yield "alone", peer.told("a")
    yield "it completes", peer.describe()
    peer.sync("a", a, 3, {a: b"all"})
    yield "all for one", peer.told("a")
    yield "it leaves", peer.leave("a", (a, None))
    yield "and again", peer.leave("a", (a, None))
    yield "empty", [peer.describe(), peer.listed(), peer.heartbeat("a", a, 4)]
    yield "deleted", [peer.delete("g"), peer.describe(), peer.delete("g")]


def who_does_not_fit(peer: Peer) -> Told:
    peer.join("x", protocols=[])
    yield "no protocol", peer.told("x")
    peer.join("x", session_timeout=timedelta(milliseconds=1))
    yield "no session", peer.told("x")
    peer.join("x", session_timeout=timedelta(hours=1))
    yield "a long one", peer.told("x")
    peer.join("x", group_id="")
    yield "no group", peer.told("x")
    _, (a,) = peer.stable("a")
    peer.join("x", protocols=[("other", b"")])
    yield "no protocol in common", peer.told("x")
    peer.join("x", protocol_type="connect")
    yield "another type", peer.told("x")
    peer.join("a", a, protocols=[("other", b"")])
    yield "nor a member", peer.told("a")
    peer.sync("a", a, 1, protocol_name="sticky")
    yield "another protocol", peer.told("a")
    peer.sync("a", a, 1, protocol_type="connect")
    yield "another type of it", peer.told("a")
    peer.sync("a", a, 1, group_id="")
    yield "sync with no group", peer.told("a")
    yield "heartbeat with no group", peer.heartbeat("a", a, 1, group_id="")
    yield "leave with no group", peer.leave("a", (a, None), group_id="")
    yield "strangers leave", peer.leave("a", ("nobody", None))
    yield "alive for all that", peer.heartbeat("a", a, 1)


def offsets(peer: Peer) -> Told:
    topic = f"topic-{peer.group}"
    yield "nothing yet", [peer.fetch(topic, 0, 9), peer.fetch("none", 0)]
    yield "a generation of nobody", peer.commit(topic, (0, 5), member="m", generation=1)
    yield "nobody commits", peer.commit(topic, (0, 5), (1, 6), (7, 8))
    yield "to no topic", peer.commit("none", (0, 5))
    yield "too much to say", peer.commit(topic, (1, 7), metadata="x" * 4097)
    yield "listed", [peer.listed(), peer.describe()]
    _, (a,) = peer.stable("a")
    yield "nobody any more", peer.commit(topic, (0, 7))
    yield "a stranger", peer.commit(topic, (0, 7), member="m", generation=1)
    yield "an old one", peer.commit(topic, (0, 7), member=a, generation=0)
    yield "the member", peer.commit(topic, (0, 7), member=a, generation=1)
    yield "read back", peer.fetch(topic, 0, 1, 2)
    peer.join("a", a)
    peer.told("a")
    yield "while it completes", peer.commit(topic, (0, 8), member=a, generation=2)
    yield "the one before", peer.commit(topic, (0, 8), member=a, generation=1)
    yield "deleted while it reads who knows what", peer.delete_offsets(topic, 0)
    peer.leave("a", (a, None))
    yield "a member that left", peer.commit(topic, (0, 8), member=a, generation=1)
    yield "anybody, now that it is empty", peer.commit(topic, (2, 8), member=a, generation=-1)
    yield "read", peer.fetch(topic, 0, 1, 2)
    yield "deleted", [peer.delete_offsets(topic, 0, 1, 5), peer.delete_offsets("none", 0)]
    yield "read again", peer.fetch(topic, 0, 1, 2)
    yield "all gone", [peer.delete("g"), peer.fetch(topic, 2), peer.delete_offsets(topic, 0)]


def static_members(peer: Peer) -> Told:
    peer.join("a", group_instance_id="one")
    yield "one", peer.told("a")
    peer.sync("a", "one#1", 1, {"one#1": b"all"}, group_instance_id="one")
    yield "assigned", peer.told("a")
    peer.join("a2", group_instance_id="one")
    yield "one is back", peer.told("a2")
    yield (
        "the other is fenced",
        [
            peer.heartbeat("a", "one#1", 1, group_instance_id="one"),
            peer.heartbeat("a", "one#1", 1),
            peer.heartbeat("a2", "one#2", 1, group_instance_id="one"),
        ],
    )
    peer.sync("a", "one#1", 1, group_instance_id="one")
    yield "nor syncs", peer.told("a")
    peer.join("a", "one#1", group_instance_id="one")
    yield "nor joins", peer.told("a")
    yield "nor leaves", peer.leave("a", ("one#1", "one"))
    peer.sync("a2", "one#2", 1, group_instance_id="one")
    yield "the new one has what the old had", peer.told("a2")
    yield "described", peer.describe()
    peer.join("a2", "one#2", group_instance_id="two")
    yield "an instance that is not there", peer.told("a2")
    peer.join("b", group_instance_id="two")
    peer.wait_for("PreparingRebalance")
    peer.join("a3", group_instance_id="one")
    yield "back in a round", [peer.told("a3"), peer.told("b")]
    peer.sync("b", "two#1", 2, group_instance_id="two")
    peer.join("b2", group_instance_id="two")
    yield "replaced while the leader assigns", peer.told("b")
    peer.join("a3", "one#3", group_instance_id="one")
    yield "the next round", [peer.told("b2"), peer.told("a3")]
    peer.sync("a3", "one#3", 3, {"one#3": b"x", "two#2": b"y"}, group_instance_id="one")
    yield "assigned again", peer.told("a3")
    yield "ousted", peer.leave("admin", ("", "two"), ("", "three"), ("one#3", "two"))
    peer.wait_for("PreparingRebalance")
    yield "described", peer.describe()


def sessions(peer: Peer) -> Told:
    short = {"session_timeout": timedelta(seconds=2), "rebalance_timeout": timedelta(seconds=3)}
    peer.member("a", **short)
    yield "joined", peer.told("a")
    yield "no sync, no member", _after(peer, lambda: peer.wait_for("Empty"))
    _, a = peer.member("a", **short)
    yield "anew", peer.told("a")
    generation = 3
    peer.sync("a", a, generation, {a: b"all"})
    peer.told("a")
    yield "silent", _after(peer, lambda: peer.wait_for("Empty"))
    yield "gone", peer.heartbeat("a", a, generation)


def rounds(peer: Peer) -> Told:
    """Who is late, who wants otherwise, who is one too many."""
    patient: dict[str, Any] = {"rebalance_timeout": timedelta(seconds=3)}
    if peer.versions[JOIN] == 0:
        patient = {"session_timeout": timedelta(seconds=3)}
    peer.member("a", **patient)
    told = peer.told("a")
    yield "a", told
    a = told["member_id"]
    peer.sync("a", a, 1, {a: b"x"})
    peer.told("a")
    wants = [("sticky", b"s"), ("range", b"r")]
    first, b = peer.member("b", protocols=wants, **patient)
    yield "b waits", first
    peer.wait_for("PreparingRebalance")
    yield "in a round", [peer.heartbeat("a", a, 1), peer.describe()]
    told = peer.told("b")
    yield "a is late, b leads", [told, peer.heartbeat("a", a, 1)]
    b = told["member_id"]
    generation = told["generation_id"]
    first, _ = peer.member("a", **patient)
    yield "a comes as somebody new", first
    peer.wait_for("PreparingRebalance")
    peer.sync("b", b, generation, {b: b"y"}, protocol_name="sticky")
    yield "too late for that", peer.told("b")
    peer.join("b", b, protocols=[("sticky", b"other")], **patient)
    yield "the one protocol that both know", [peer.told("b"), peer.told("a")]
    yield "described", peer.describe()


def one_too_many(peer: Peer) -> Told:
    patient: dict[str, Any] = {"rebalance_timeout": timedelta(seconds=3)}
    if peer.versions[JOIN] == 0:
        patient = {"session_timeout": timedelta(seconds=3)}
    _, (a, b, x) = peer.stable("a", "b", "x", **patient)
    peer.join("c", **patient)
    yield "a fourth", [peer.told("c"), peer.describe()]
    peer.join("a", a, **patient)
    peer.wait_for("PreparingRebalance")
    yield "x is still in", peer.heartbeat("x", x, 3)
    peer.join("x", x, **patient)
    first, c = peer.member("c", **patient)
    yield "a fourth in a round, before the third", first
    wait_until("all to wait", lambda: len(peer.describe()["groups"][0]["members"]) == 4)
    peer.join("b", b, **patient)
    yield "the third is one too many", peer.told("b")
    yield "the others are a group", [peer.told("c"), peer.told("a"), peer.told("x"), peer.describe(), c]
    peer.join("c", c, protocols=[("range", b"other")], **patient)
    peer.wait_for("PreparingRebalance")
    yield "given up before anybody was assigned anything", peer.describe()


def by_id(peer: Peer) -> Told:
    """Version 10 of OffsetCommit and OffsetFetch, and what older ones say of the same offsets."""
    topic = f"topic-{peer.group}"
    module = schema(3, 12)
    asked = (module.MetadataRequestTopic(topic_id=None, name=topic),)
    request = module.MetadataRequest(
        topics=asked, allow_auto_topic_creation=False, include_topic_authorized_operations=False
    )
    with RawConnection(peer.bootstrap) as connection:
        (found,) = connection.call(request).topics
    stranger = type(found.topic_id)("9c1ba29b-5b6f-4d2e-8a56-7b6d3f0b1a11")
    names = {str(found.topic_id): "the topic", str(stranger): "a stranger", "None": "none"}

    def named(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: names[str(v)] if k == "topic_id" else named(v) for k, v in value.items()}
        return sorted((named(one) for one in value), key=str) if isinstance(value, list) else value

    def commit(topic_id: Any, *parts: tuple[int, int]) -> Any:
        module = schema(OFFSET_COMMIT, 10)
        partitions = tuple(
            module.OffsetCommitRequestPartition(
                partition_index=p, committed_offset=o, committed_leader_epoch=3, committed_metadata=None
            )
            for p, o in parts
        )
        topics = (module.OffsetCommitRequestTopic(topic_id=topic_id, partitions=partitions),)
        values = {"generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}
        return named(peer.call("committer", OFFSET_COMMIT, version=10, topics=topics, **values))

    def fetch(version: int, *asked: tuple[Any, tuple[int, ...]], groups: int = 1) -> Any:
        module = schema(OFFSET_FETCH, version)
        key = "topic_id" if version >= 10 else "name"
        topics = tuple(
            build(module.OffsetFetchRequestTopics, {key: one, "partition_indexes": p}) for one, p in asked
        )
        values = {"group_id": peer.group, "member_id": None, "member_epoch": -1, "topics": topics or None}
        one = build(module.OffsetFetchRequestGroup, values)
        other = build(module.OffsetFetchRequestGroup, {**values, "group_id": "of nobody"})
        all_of_them = (one, other)[:groups]
        return named(
            peer.call("committer", OFFSET_FETCH, version=version, groups=all_of_them, require_stable=False)
        )

    yield "committed", commit(found.topic_id, (0, 5), (2, 7), (9, 9))
    yield "a topic that is not there", commit(stranger, (0, 5))
    yield "no topic at all", commit(None, (0, 5))
    yield "by id", fetch(10, (found.topic_id, (0, 1, 2)), (stranger, (0,)), (None, (1,)))
    yield "by name", fetch(9, (topic, (0, 1, 2)), ("none", (0,)))
    yield "all", [fetch(10), fetch(9), fetch(8, groups=2), fetch(10, groups=2)]


def filters(peer: Peer) -> Told:
    topic = f"topic-{peer.group}"
    peer.commit(topic, (0, 5))
    cases: list[dict[str, tuple[str, ...]]] = [
        {"states_filter": ("Empty",)},
        {"states_filter": (" eMPTY ",)},
        {"states_filter": ("Stable",)},
        {"states_filter": ("nonsense",)},
        {"types_filter": ("classic",)},
        {"types_filter": ("CLASSIC", "nonsense")},
        {"types_filter": ("nonsense",)},
        {"types_filter": ("consumer",), "states_filter": ("Empty",)},
    ]
    for case in cases:
        yield str(case), peer.listed(**case)
    yield "described, and nobody", [peer.describe(), peer.describe("none"), peer.describe("")]
    yield "the group without a name", peer.fetch(topic, 0, group="")
    yield "deleted", peer.delete("g", "none", "")


def _after(peer: Peer, wait: Callable[[], None]) -> Any:
    wait()
    return peer.describe()


Scenario = Callable[[Peer], Told]


def told_by(bootstrap: str, scenario: Scenario, era: int) -> list[tuple[str, Any]]:
    """All that a node answers in a scenario, about a group and a topic of its own."""
    group = f"{scenario.__name__}-{era}"
    Admin(bootstrap).create(f"topic-{group}", 3)
    peer = Peer(bootstrap, era, group)

    def is_coordinated() -> bool:
        """Kafka makes the topic first, and says so."""
        found = peer.call("admin", FIND, key=group, version=0)
        return bool(found["error_code"] == 0 and peer.describe()["groups"][0]["error_code"] in (0, 69))

    wait_until("a coordinator", is_coordinated)
    try:
        return list(scenario(peer))
    finally:
        peer.close()


@pytest.fixture(scope="module")
def firn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    node = Node(tmp_path_factory.mktemp("firn"), SETTINGS).start()
    yield node.bootstrap
    node.stop()


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    need_kafka_tools()
    node = KafkaNode(tmp_path_factory.mktemp("kafka") / "node", SETTINGS, heap="512m")
    yield node.bootstrap
    node.stop()


CASES = [
    *((scenario, era) for scenario in (life_of_a_group, who_does_not_fit, offsets) for era in range(10)),
    *((static_members, era) for era in range(5, 10)),
    *((scenario, era) for scenario in (sessions, rounds, filters, one_too_many) for era in (0, 3, 5, 9)),
    (by_id, 9),
]


@pytest.mark.parametrize(("scenario", "era"), CASES)
def test_a_group_is_answered_as_by_apache_kafka(firn: str, kafka: str, scenario: Scenario, era: int) -> None:
    ours, theirs = told_by(firn, scenario, era), told_by(kafka, scenario, era)
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert pformat(mine) == pformat(other)
