"""Counts of all brokers at once: what one cannot tell is named, and holds up nothing of the others."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from service.cli import erase
from service.cli.erase_words import status_document, status_lines
from service.cli.main import main
from service.client.admin import Cluster
from service.client.admin_models import ClusterInfo, NodeInfo, PartitionInfo, TopicInfo
from service.client.all_brokers import CommandDeadline
from service.client.erasures import find_orders
from service.inspect.erase_report import plan_of, verify
from service.remote.format.erase_codec import ErasedTopic, ErasureOrder
from service.wire.erasures import ErasureOp, ErasureScope, ErasuresRequest, ErasuresResponse
from tests.support.world import WORLD

TOPIC, ORDER = UUID(int=7), UUID(int=5)
GIVEN = ErasureOrder(
    "c", ORDER, 1, -1, b"s" * 16, b"h" * 16, b"f" * 8, (ErasedTopic(TOPIC, "events", (9, 9)),)
)
ROW = {
    "id": str(ORDER), "state": "done", "started_ms": 1, "done_ms": 2, "keys": 1, "is_restored": False,
    "topics": [{"id": str(TOPIC), "name": "events"}],
}  # fmt: skip
COUNTS = {
    "objects": 2, "size": 20, "hit_objects": 1, "hit_size": 10, "records": 0, "requests": 2, "bytes_read": 20,
}  # fmt: skip


@dataclass
class Brokers:
    """A `Cluster` of three brokers. `dead` do not answer; `refuse` a partition; 1 keeps the prefix."""

    dead: set[int] = field(default_factory=set)
    refuse: set[int] = field(default_factory=set)
    fenced: set[int] = field(default_factory=set)
    asked: list[tuple[int, int, int | None]] = field(default_factory=list)

    def __enter__(self) -> Brokers:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def describe(self) -> ClusterInfo:
        nodes = (NodeInfo(one, "h", 9, None, one in self.fenced) for one in (1, 2, 3))
        return ClusterInfo("c", 1, tuple(nodes))

    def topics(self, names: object = None) -> list[TopicInfo]:
        rows = tuple(PartitionInfo(one, leader, (1, 2, 3), (1, 2, 3)) for one, leader in enumerate((1, 2)))
        return [TopicInfo("events", TOPIC, rows)]

    def topic_configs(self, names: object, keys: object) -> dict[str, dict[str, str | None]]:
        return {"events": {"cleanup.policy": "delete"}}

    def apart(self, broker: int, timeout_s: float, set_up_timeout_s: float) -> Any:
        if broker in self.dead:
            raise TimeoutError(f"broker {broker} did not answer in time")
        return Client(self, broker)


class Client:
    def __init__(self, brokers: Brokers, broker: int) -> None:
        self.brokers, self.broker = brokers, broker

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def request(self, key: int, request: ErasuresRequest, *, timeout_s: float) -> ErasuresResponse:
        if request.op == ErasureOp.LIST:
            told: dict[str, Any] = {"broker": self.broker, "is_keeper": self.broker == 1, "orders": [ROW]}
            states = {"left": 1, "looked_at": 2, "rewritten": 3}
            told |= {"problems": [], "progress": [{"order": str(ORDER), "objects": states, "bytes": states}]}
            return ErasuresResponse(error_code=ErrorCode.none, document=json.dumps(told))
        self.brokers.asked.append((self.broker, request.scope, request.partition))
        if request.partition in self.brokers.refuse:
            return ErasuresResponse(error_code=ErrorCode.kafka_storage_error, error_message="no disk")
        return ErasuresResponse(error_code=ErrorCode.none, document=json.dumps(COUNTS), next_offset=-1)


def cluster(**how: Any) -> Cluster:
    return cast("Cluster", Brokers(**how))


def test_everything_is_read_by_whom_it_concerns() -> None:
    brokers = Brokers()
    report = verify(cast("Cluster", brokers), ORDER, None, 9, CommandDeadline(20, WORLD))
    assert report.is_clean
    found = [(one.kind, one.partition, one.broker) for one in report.places]
    assert found == [
        ("log", 0, 1), ("log", 0, 2), ("log", 0, 3), ("objects", 0, 1),
        ("log", 1, 1), ("log", 1, 2), ("log", 1, 3), ("objects", 1, 2),
        ("tails", -1, 1),
    ]  # fmt: skip
    assert len(brokers.asked) == len(found)
    assert (1, ErasureScope.TAILS, -1) in brokers.asked


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (
            {"is_deleted": True, "has_objects": True},
            "gone is deleted, and its objects are not all gone yet",
        ),
        ({"is_deleted": True, "has_objects": False}, None),
        ({}, "gone: it is not there, or this client may not describe it"),
    ],
)
def test_a_topic_that_is_deleted_is_named(
    more: dict[str, bool], problem: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = [{"id": str(TOPIC), "name": "events"}, {"id": str(UUID(int=8)), "name": "gone", **more}]
    monkeypatch.setitem(ROW, "topics", topics)
    report = verify(cluster(), ORDER, None, 9, CommandDeadline(20, WORLD))
    last = report.places[-1]
    assert (last.kind, last.topic, last.problem) == ("deleted topic", "gone", problem)
    assert report.is_clean == (problem is None)
    assert report.topics == ("events", "gone")


def test_a_broker_that_does_not_answer_is_named_for_all_that_it_has() -> None:
    report = verify(cluster(dead={3}), ORDER, None, 9, CommandDeadline(20, WORLD))
    assert not report.is_clean
    wrong = [(one.partition, one.broker, one.problem) for one in report.places if one.problem is not None]
    why = "broker 3: broker 3 did not answer in time"
    assert wrong == [(0, 3, f"events-0 at broker 3: {why}"), (1, 3, f"events-1 at broker 3: {why}")]


def test_a_partition_that_a_broker_refuses_holds_up_none_behind_it() -> None:
    report = verify(cluster(refuse={0}), ORDER, None, 9, CommandDeadline(20, WORLD))
    wrong = {(one.kind, one.partition) for one in report.places if one.problem is not None}
    assert wrong == {("log", 0), ("objects", 0)}


def test_without_a_keeper_tails_are_not_read() -> None:
    report = verify(cluster(dead={1}), ORDER, None, 9, CommandDeadline(20, WORLD))
    problems = [one.problem for one in report.places if one.kind == "tails"]
    assert problems == ["tails: no broker keeps the prefix now"]


def test_a_plan_names_what_was_not_looked_at() -> None:
    plan = plan_of(cluster(dead={2}), GIVEN, CommandDeadline(20, WORLD))
    assert (plan.objects, plan.problems) == (2, ("events-1: broker 2: broker 2 did not answer in time",))


@pytest.mark.parametrize(
    ("words", "dead", "fenced", "code"),
    [
        (("status", str(ORDER)), set(), set(), 0),
        (("status", str(ORDER)), {3}, set(), 1),
        (("status", str(ORDER)), set(), {3}, 0),
        (("list",), set(), set(), 0),
        (("list",), {3}, set(), 1),
        (("plan", "--topics", "events", "--key", "k"), set(), set(), 0),
        (("plan", "--topics", "events", "--key", "k"), {2}, set(), 1),
        (("verify", str(ORDER)), set(), set(), 0),
        (("verify", str(ORDER)), {2}, set(), 1),
    ],
)
def test_exit_codes_say_who_did_not_answer(
    words: tuple[str, ...],
    dead: set[int],
    fenced: set[int],
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(erase, "_connected", lambda args: Brokers(dead=dead, fenced=fenced))
    monkeypatch.setattr(erase, "_order", lambda args, cluster: GIVEN)
    assert main(["erase", *words, "--bootstrap-server", "h:1", "--json"]) == code
    said = json.loads(capsys.readouterr().out)
    if dead and words[0] in ("status", "list"):
        assert said["silent"] == ["broker 3: broker 3 did not answer in time"]
    if fenced:
        assert said["away"] == ["broker 3 is away"]


def test_a_report_is_printed_where_its_file_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """To read everything once more may take a day."""
    monkeypatch.setattr(erase, "_connected", lambda args: Brokers())
    words = ["erase", "verify", str(ORDER), "--bootstrap-server", "h:1", "-o", str(tmp_path / "none" / "x")]
    assert main(words) == 1
    said = capsys.readouterr()
    assert json.loads(said.out[said.out.index("{") :])["is_clean"] is True
    assert "No such file or directory; the report is on standard output" in said.err


def test_status_adds_up_what_brokers_tell() -> None:
    found = find_orders(cluster(), CommandDeadline(20, WORLD))
    document = status_document(found.orders[str(ORDER)], found)
    assert document["objects"] == {"left": 3, "looked_at": 6, "rewritten": 9}


def test_status_says_how_far_an_order_is_and_until_when() -> None:
    more = {
        "waits": "a newer cut", "replicas": 6, "replicas_left": 1, "archives": 2, "archives_left": 1,
        "left": [{"topic": "events", "partition": 0, "broker": 3}],
        "cuts_left": 4, "cuts_from_ms": 0, "cuts_until_ms": 60_000, "tails": 9, "tails_clean": 8,
        "grace_until_ms": None, "remains": [], "remaining_objects": 0, "versions_left": 0,
        "versions_until_ms": None, "locked": [], "locked_objects": 0,
    }  # fmt: skip
    found = find_orders(cluster(), CommandDeadline(20, WORLD))
    lines = status_lines(status_document({**ROW, **more, "state": "open", "done_ms": None}, found))
    assert lines[2:] == [
        "waits: a newer cut",
        "replicas: 5 of 6 done",
        "archives: 1 of 2 done",
        "objects: 6 looked at (0.0 MB), 3 left (0.0 MB), 9 written anew (0.0 MB)",
        "tails: 8 of 9 have none of the keys",
        "cuts: 4 that may have the keys, from 1970-01-01T00:00:00.000Z to 1970-01-01T00:01:00.000Z; the "
        "first complete one after the archives are done replaces them",
        "left: events-0: broker 3",
    ]
    done = {
        "grace_until_ms": 0, "remaining_objects": 1, "remains": ["data/x"], "versions_left": 2,
        "versions_until_ms": 60_000, "locked": ["data/y until 2031"], "locked_objects": 1, "left": [],
    }  # fmt: skip
    lines = status_lines(status_document({**ROW, **more, **done}, found))
    assert lines[5:] == [
        "what it dropped stays for readers until 1970-01-01T00:00:00.000Z",
        "objects: 1 are not deleted yet",
        "not deleted yet: data/x",
        "old versions: 2, until 1970-01-01T00:01:00.000Z",
        "under retention: 1",
        "locked: data/y until 2031",
    ]
