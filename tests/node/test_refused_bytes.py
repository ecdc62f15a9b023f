"""A client without rights gets Kafka's bytes, for every API in every version, alone and through Envelopes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from service.security.principal import Principal
from service.wire.apis import APIS, ListenerType
from tests.node.conftest import NodeThread, Talk
from tests.node.test_authorization import SETTINGS, People, of_a_cluster
from tests.support.acl_requests import Asker
from tests.support.refused_requests import (
    PLACEHOLDER,
    RIGHTS,
    TOPIC,
    frame_of,
    golden_of,
    name_of,
    request_of,
    requests,
)
from tests.support.wire import ConnectionLost, RawConnection, decode_response

Start = Callable[..., NodeThread]
OURS = {"nothing": {"DescribeUserScramCredentials 0": "00000000001f000100"}}
"""Kafka's has an element without a name for each user, beside the error."""
GOLDEN = Path(__file__).parents[1] / "golden" / "security" / "refusals.json"


@pytest.fixture
def people(monkeypatch: pytest.MonkeyPatch) -> People:
    return People(monkeypatch)


@pytest.fixture(params=["alone", "of a cluster"])
def node(request: Any, start: Callable[..., NodeThread], people: People) -> NodeThread:
    return start(**SETTINGS, **(of_a_cluster() if request.param == "of a cluster" else {}))


@pytest.fixture
def asker(node: NodeThread, people: People) -> Iterator[Asker]:
    with ExitStack() as stack:
        admin, alice = (Talk(stack.enter_context(people.client(node, name))) for name in ("admin", "alice"))
        asker = Asker(admin, alice)
        asker.wait_for_groups()
        yield asker


def ask(node: NodeThread, people: People, frame: bytes) -> bytes | None:
    people.next = Principal("User", "alice")
    with RawConnection(f"{node.host}:{node.port}") as peer:
        try:
            peer.send_frame(frame)
            return peer.receive_frame()
        except ConnectionLost:
            return None


@pytest.mark.parametrize("words", RIGHTS)
def test_refusals_are_kafkas_bytes(node: NodeThread, people: People, asker: Asker, words: str) -> None:
    expected = json.loads(GOLDEN.read_text())[words]
    topic_id = asker.admin.create(TOPIC).topic_id
    if RIGHTS[words]:
        asker.allow(*RIGHTS[words])
    found = {}
    for key, version, variant in requests(words):
        answer = ask(node, people, frame_of(key, version, variant, topic_id))
        found[name_of(key, version, variant)] = golden_of(key, version, variant, topic_id, answer)
    assert found == {**expected, **OURS.get(words, {})}


def codes(found: Any) -> Iterator[int]:
    """All error codes in a message."""
    if isinstance(found, tuple):
        for one in found:
            yield from codes(one)
    elif is_dataclass(found):
        for field in fields(found):
            value = getattr(found, field.name)
            if field.name == "error_code" or field.name.endswith("_error_code"):
                yield int(value)
            yield from codes(value)


def test_a_controller_refuses_every_request_of_a_user(start: Start, people: People) -> None:
    settings = of_a_cluster()
    start(**SETTINGS, **settings)
    people.next = Principal("User", "alice")
    address = settings["controller_quorum_voters"].rpartition("@")[2]
    found, words = {}, ("nothing", ListenerType.CONTROLLER)
    with RawConnection(address) as peer:
        for key, version, variant in requests(*words):
            peer.send_frame(frame_of(key, version, variant, PLACEHOLDER))
            answer = decode_response(request_of(key, version, variant, PLACEHOLDER), peer.receive_frame())
            found[name_of(key, version, variant)] = set(codes(answer)) - {0}
    without = {name for name, seen in found.items() if not seen}
    fetches = {f"Fetch {n}{v}" for n in (4, 5, 6) for v in ("", ", as replica")}
    assert without == fetches | {"ElectLeaders 0, of all"}, "there is no field for the error"
    odd = {"CreateTopics": 42, "DeleteTopics": 100}
    """what nobody may have: a topic of the metadata's name, an id that is not there"""
    for name, seen in found.items():
        assert seen <= {29, 30, 31, odd.get(name.split()[0], 31)}, name


@pytest.mark.parametrize("words", RIGHTS)
def test_a_hidden_topic_is_as_one_that_is_absent(start: Start, people: People, words: str) -> None:
    """By name; that an id is known is no secret, in Kafka either."""
    node = start(**SETTINGS)
    with ExitStack() as stack:
        admin, alice = (Talk(stack.enter_context(people.client(node, name))) for name in ("admin", "alice"))
        asker = Asker(admin, alice)
        asker.wait_for_groups()
        topic_id = asker.admin.create(TOPIC).topic_id
        if RIGHTS[words]:
            asker.allow(*RIGHTS[words])
    absent, seen = b"absen", 0
    assert len(absent) == len(TOPIC)
    for key, version, variant in requests(words):
        one = key, version, variant, topic_id
        frame = frame_of(*one)
        there, is_border = TOPIC.encode(), version in (APIS[key].min_version, APIS[key].max_version)
        if there not in frame or not is_border:
            continue
        hidden, not_there = (
            golden_of(*one, ask(node, people, of)) for of in (frame, frame.replace(there, absent))
        )
        assert hidden.replace(there.hex(), absent.hex()) == not_there, name_of(key, version, variant)
        seen += 1
    assert seen > 5
