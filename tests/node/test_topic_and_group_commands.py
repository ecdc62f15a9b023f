"""`firn topic` and `firn group` where they change what is there, on a whole node."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from service.wire.api import ApiKey
from tests.node.conftest import NodeThread, Talk
from tests.node.requests import commit, list_offset
from tests.support.firn_commands import Firn
from tests.support.processes import wait_until

Start = Callable[..., NodeThread]
MIDNIGHT = 1_767_225_600_000  # 2026-01-01T00:00:00Z


@pytest.fixture
def talk(start: Start) -> Iterator[Talk]:
    """A node with topic `t` of two partitions: ten records from midnight on in the first, a millisecond
    apart, none in the second."""
    with start(offsets_topic_num_partitions="1").client() as client:
        talk = Talk(client)
        talk.create("t", 2)
        talk.produce(talk.topic_id("t"), [b"x"] * 10, MIDNIGHT)
        yield talk


@pytest.fixture
def firn(talk: Talk, capsys: pytest.CaptureFixture[str]) -> Firn:
    return Firn(talk.client.address, capsys)


def commits_seven(talk: Talk, firn: Firn, group: str, *, both: bool = False) -> None:
    """Have a group commit offset 7 of the first partition of `t`, or of both."""
    topic = talk.topic_id("t")
    firn("group", "reset-offsets", group, "--topic", "t:0", "--to-latest", "--execute")  # makes the topic
    assert commit(talk, {topic: range(2 if both else 1)}, group)[topic][0] == ErrorCode.none


def chosen(text: str) -> list[tuple[int, int | None, int]]:
    """Partition, committed offset and new one of each row of a reset's JSON."""
    rows = json.loads(text)["offsets"]
    assert {row["topic"] for row in rows} <= {"t"}
    return [(row["partition"], row["committed"], row["new_offset"]) for row in rows]


def test_settings_of_a_topic_are_set_and_deleted(firn: Firn) -> None:
    said = firn("topic", "alter", "t", "--config", "retention.ms=1000", "--config", "cleanup.policy=compact")
    assert said == "altered t: cleanup.policy=compact, retention.ms=1000\n"
    told = json.loads(firn("topic", "alter", "t", "--delete-config", "retention.ms", "--json"))
    assert told == {"topic": "t", "dry_run": False, "configs": {"cleanup.policy": "compact"}}
    firn("topic", "alter", "t", "--config", "retention.ms=5", "--dry-run")
    assert "retention.ms" not in firn("topic", "describe", "t")
    said = firn.refused("topic", "alter", "t", "--config", "retention.ms=5", "--config", "cleanup.policy=x")
    assert "cleanup.policy" in said
    assert "INVALID_CONFIG" in said
    assert "retention.ms" not in firn("topic", "describe", "t")  # all or none
    assert "what is to change?" in firn.refused("topic", "alter", "t")
    assert "firn topic list" in firn.refused("topic", "alter", "u", "--config", "retention.ms=5")


def test_topics_are_deleted_together_and_one_that_is_not_there_stops_no_other(firn: Firn) -> None:
    for name in ("a", "b", "c"):
        firn("topic", "create", name)
    assert firn("topic", "delete", "a", "gone", "b", "a", code=1) == "deleted a\ndeleted b\n"
    assert firn.err.count("gone") == 1
    assert "UNKNOWN_TOPIC_OR_PARTITION" in firn.err
    assert firn("topic", "list").split() == ["c", "t"]
    assert json.loads(firn("topic", "delete", "c", "t", "--json")) == {"topics": ["c", "t"]}


def test_a_topic_gets_more_partitions_and_never_fewer(firn: Firn) -> None:
    assert firn("topic", "add-partitions", "t", "--partitions", "5", "--dry-run") == (
        "t could get 5 partitions, 2 before\n"
    )
    told = json.loads(firn("topic", "add-partitions", "t", "--partitions", "4", "--json"))
    assert told == {"topic": "t", "dry_run": False, "before": 2, "partitions": 4}
    assert firn("topic", "describe", "t").count("partition: ") == 4
    said = firn.refused("topic", "add-partitions", "t", "--partitions", "3")
    assert "INVALID_PARTITIONS" in said
    assert "a topic can only grow" in said


def test_records_are_deleted_only_when_that_is_said(firn: Firn, talk: Talk) -> None:
    words = ("topic", "delete-records", "t:0", "--before-offset", "4")
    assert firn(*words).splitlines() == [
        "topic  partition  begins at  deletes below  offsets",
        "t      0          0          4              4",
        "nothing was deleted: --execute does it",
    ]
    assert list_offset(talk, -2).offset == 0
    assert firn(*words, "--execute").splitlines()[-1] == "deleted"
    assert list_offset(talk, -2).offset == 4
    firn("topic", "delete-records", "t", "--before-time", "2026-01-01T00:00:00.006", "--execute")
    assert list_offset(talk, -2).offset == 6
    said = firn.refused("topic", "delete-records", "t", "--before-offset", "11", "--execute")
    assert "t-0 ends at 10: it has no offset 11" in said
    told = json.loads(firn("topic", "delete-records", "t", "--all", "--execute", "--json"))
    assert [one["before"] for one in told["partitions"]] == [10, 0]
    assert list_offset(talk, -2).offset == 10


def test_records_are_deleted_by_a_file_of_kafkas_tool(firn: Firn, talk: Talk, tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    path.write_text('{"partitions": [{"topic": "t", "partition": 0, "offset": 3}], "version": 1}')
    firn("topic", "delete-records", "--offset-json-file", str(path), "--execute")
    assert list_offset(talk, -2).offset == 3
    assert "which partitions?" in firn.refused("topic", "delete-records", "--all")
    path.write_text('{"partitions": [{"topic": "t", "partition": 0}]}')
    assert "has no offset" in firn.refused("topic", "delete-records", "--offset-json-file", str(path))


MODES = [
    (("--to-earliest",), [(0, 7, 0), (1, None, 0)]),
    (("--to-latest",), [(0, 7, 10), (1, None, 0)]),
    (("--to-current",), [(0, 7, 7), (1, None, 0)]),
    (("--to-offset", "4"), [(0, 7, 4), (1, None, 0)]),
    (("--to-datetime", "2026-01-01T00:00:00.003"), [(0, 7, 3), (1, None, 0)]),
    (("--to-datetime", "2026-01-01T01:00:00.002+01:00"), [(0, 7, 2), (1, None, 0)]),
    (("--by-duration", "P36500D"), [(0, 7, 0), (1, None, 0)]),
    (("--by-duration", "PT0S"), [(0, 7, 10), (1, None, 0)]),
]


def test_each_mode_of_kafkas_tool_chooses_its_offsets(firn: Firn, talk: Talk) -> None:
    commits_seven(talk, firn, "g")
    for mode, wanted in MODES:
        told = firn("group", "reset-offsets", "g", "--topic", "t", *mode, "--json")
        assert (mode, chosen(told)) == (mode, wanted)
    back = firn("group", "reset-offsets", "g", "--all-topics", "--shift-by", "-3", "--json")
    assert chosen(back) == [(0, 7, 4)]
    far = firn("group", "reset-offsets", "g", "--all-topics", "--shift-by", "100", "--json")
    assert chosen(far) == [(0, 7, 10)]
    assert "t-0 ends at 10: it gets that instead of 107" in firn.err
    said = firn.refused("group", "reset-offsets", "g", "--topic", "t:1", "--shift-by", "1")
    assert "nothing is committed that could be shifted: t-1" in said


def test_a_reset_is_a_dry_run_unless_it_is_executed(firn: Firn, talk: Talk) -> None:
    commits_seven(talk, firn, "g")
    words = ("group", "reset-offsets", "g", "--topic", "t:0", "--to-offset", "2")
    assert firn(*words).splitlines() == [
        "group  topic  partition  committed  new offset",
        "g      t      0          7          2",
        "nothing was changed: --execute does it",
    ]
    assert "7  " in firn("group", "describe", "g")
    assert firn(*words, "--execute").splitlines()[-1] == "committed 1"
    (row,) = json.loads(firn("group", "describe", "g", "--json"))["positions"]
    assert (row["committed"], row["lag"]) == (2, 8)


def test_exported_offsets_come_back_from_the_file(firn: Firn, talk: Talk, tmp_path: Path) -> None:
    commits_seven(talk, firn, "g", both=True)
    csv = firn("group", "reset-offsets", "g", "--all-topics", "--to-current", "--export")
    assert csv == "t,0,7\nt,1,7\n"
    path = tmp_path / "g.csv"
    path.write_text("t,0,5\nt,1,0\n")
    told = firn("group", "reset-offsets", "g", "--from-file", str(path), "--execute", "--json")
    assert chosen(told) == [(0, 7, 5), (1, 7, 0)]
    both = firn("group", "reset-offsets", "g", "h", "--topic", "t:0", "--to-current", "--export")
    assert both == "g,t,0,5\nh,t,0,10\n"
    assert "there is no such group yet" in firn.err
    path.write_text(both)
    told = firn("group", "reset-offsets", "h", "--from-file", str(path), "--execute", "--json")
    assert chosen(told) == [(0, None, 10)]
    path.write_text("t,0\n")
    said = firn.refused("group", "reset-offsets", "g", "--from-file", str(path))
    assert "line 1: expected [group,]topic,partition,offset" in said


def join(talk: Talk, group: str) -> Any:
    """Have a member of KIP-848 join, subscribed to `t`."""
    answer = talk(
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        "ConsumerGroupHeartbeatRequest",
        group_id=group,
        member_id="9b1c0a52-6a4e-4a6e-9f5a-0d9a0c1b2f33",
        member_epoch=0,
        rebalance_timeout=300_000,
        subscribed_topic_names=("t",),
        topic_partitions=(),
    )
    assert answer.error_code == ErrorCode.none
    return answer


def test_a_group_with_members_is_left_alone(firn: Firn, talk: Talk) -> None:
    commits_seven(talk, firn, "empty")
    wait_until("the coordinator", lambda: "empty" in firn("group", "list"))
    join(talk, "busy")
    for words in (
        ("reset-offsets", "busy", "--topic", "t", "--to-earliest", "--execute"),
        ("delete", "busy", "--execute"),
        ("delete", "busy"),
    ):
        said = firn.refused("group", *words)
        assert "NON_EMPTY_GROUP" in said or "without members" in said or "has members" in said
        assert "stop its consumers; 'firn group describe GROUP' names them" in said
    both = firn("group", "delete", "busy", "empty", "--execute", code=1)
    assert both == "deleted empty\n"


def test_groups_and_their_offsets_are_deleted_only_when_that_is_said(firn: Firn, talk: Talk) -> None:
    commits_seven(talk, firn, "g", both=True)
    words = ("group", "delete-offsets", "g", "--topic", "t:1")
    assert firn(*words).splitlines() == [
        "topic  partition  committed",
        "t      1          7",
        "nothing was changed: --execute does it",
    ]
    told = json.loads(firn(*words, "--execute", "--json"))
    assert told == {
        "group": "g", "executed": True, "offsets": [{"topic": "t", "partition": 1, "committed": 7}]
    }  # fmt: skip
    assert "has committed nothing there" in firn.refused(*words)
    assert [p["partition"] for p in json.loads(firn("group", "describe", "g", "--json"))["positions"]] == [0]
    assert firn("group", "delete", "g") == "would delete g\nnothing was changed: --execute does it\n"
    assert "g  " in firn("group", "list")
    assert firn("group", "delete", "g", "--execute") == "deleted g\n"
    assert firn("group", "list") == ""
    assert (
        firn.refused("group", "delete", "g", "--execute")
        == "firn group: there is no group g; 'firn group list' has the names\n"
    )


def test_an_argument_that_does_not_do_is_said_with_what_would(firn: Firn) -> None:
    to_earliest = ("--to-earliest",)
    for words, reason in (
        (("g", *to_earliest), "of which topics?"),
        (("--topic", "t", *to_earliest), "which groups?"),
        (("g", "--topic", "t:9", *to_earliest), "there is no t-9"),
        (("g", "--topic", "nope", *to_earliest), "there is no topic nope"),
        (("g", "--all-topics", *to_earliest), "g has committed nothing"),
        (("g", "--topic", "t", "--to-datetime", "yesterday"), "is not a time like"),
        (("g", "--topic", "t", "--by-duration", "7d"), "is not a duration like P7D"),
        (("g", "--topic", "t", "--to-datetime", "1969-12-31T23:59:59.999Z"), "is before 1970"),
        (("g", "--topic", "t", "--export", "--json", *to_earliest), "one of them"),
        (("g", "--topic", "\udcff", *to_earliest), "a name that it was given is not UTF-8"),
    ):
        assert reason in firn.refused("group", "reset-offsets", *words), words


def test_a_group_that_fails_leaves_the_others_done_and_is_said(firn: Firn, talk: Talk) -> None:
    for group in ("a", "c"):
        commits_seven(talk, firn, group)
    firn("group", "reset-offsets", "b", "--topic", "t:1", "--to-latest", "--execute")
    words = (
        "group",
        "reset-offsets",
        "a",
        "b",
        "c",
        "--topic",
        "t:0",
        "--shift-by",
        "-1",
        "--execute",
        "--json",
    )
    rows = json.loads(firn(*words, code=1))["offsets"]
    assert [(row["group"], row["new_offset"]) for row in rows] == [("a", 6), ("c", 6)]
    assert firn.err == "firn group: group b: nothing is committed that could be shifted: t-0\n"


def test_topics_are_made_and_deleted_with_one_document_each(firn: Firn) -> None:
    made = json.loads(firn("topic", "create", "u", "--json"))
    assert made == {
        "topic": "u",
        "topic_id": json.loads(firn("topic", "describe", "u", "--json"))["topic_id"],
    }
    assert json.loads(firn("topic", "settings-known", "u", "--json")) == {
        "topic": "u", "configs": {"retention.ms": "-1", "retention.bytes": "-1"}
    }  # fmt: skip
    assert json.loads(firn("topic", "delete", "u", "--json")) == {"topic": "u", "topics": ["u"]}
    told = json.loads(firn("cluster", "repair-internal", "--dry-run", "--json"))
    assert told == {"dry_run": True, "waited_for": [], "partitions": []}
