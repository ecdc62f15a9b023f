"""Warning of a replay into a topic that keeps records for less time than they are old."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.remote.format.manifest import SegmentEntry
from tests.node.conftest import NodeThread, Talk

pytest.importorskip("pyspark", reason="pyspark is not installed: make spark")

from service.pipelines.replay import warn_of_retention
from service.pipelines.replay_state import Part
from service.pipelines.replay_task import ReplayWork
from service.spark.plan.splits import SegmentPiece, Split
from service.spark.write.target import kept_ms, retention_of

DAY = 86_400_000
NOW = 20_000 * DAY
DEFAULTS = {"cleanup.policy": "delete", "retention.ms": str(7 * DAY), "message.timestamp.type": "CreateTime"}


def work(*newest: int) -> ReplayWork:
    pieces = tuple(
        SegmentPiece("t", 0, SegmentEntry(0, 9, 100, 90, one, 9, ((0, 0),), "key", 90, 1), 0, 90, 0, 10)
        for one in newest
    )
    return ReplayWork(Part("t", "id", 0, 0, 10), Split(pieces, 100))


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({}, 7 * DAY),
        ({"retention.ms": "-1"}, None),
        ({"cleanup.policy": "compact"}, None),
        ({"cleanup.policy": "compact,delete"}, 7 * DAY),
        ({"message.timestamp.type": "LogAppendTime"}, None),
    ],
)
def test_a_topic_keeps_records_for_its_retention_after_their_timestamps(
    changes: dict[str, str], kept: int | None
) -> None:
    assert kept_ms(DEFAULTS | changes) == kept


def test_a_replay_of_what_the_topic_would_not_keep_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    works = [work(NOW - 8 * DAY, NOW - 6 * DAY), work(NOW - 9 * DAY, -1)]
    warn_of_retention(works, "again", 7 * DAY, NOW)
    assert capsys.readouterr().err == (
        "replay: 2 of 4 segments are older than again keeps records (retention.ms=604800000): brokers delete"
        " such records soon after they arrive. 'firn topic alter again --config retention.ms=-1' keeps them\n"
    )
    warn_of_retention(works, "again", 10 * DAY, NOW)
    warn_of_retention(works, "again", None, NOW)
    warn_of_retention([], "again", 1, NOW)
    assert capsys.readouterr().err == ""


def test_brokers_say_how_long_a_topic_keeps_a_record(tmp_path: Path) -> None:
    node = NodeThread(tmp_path).start()
    try:
        with node.client() as client:
            talk = Talk(client)
            talk.create("short", retention_ms="60000")
            talk.create("endless", retention_ms="-1")
        settings = {"bootstrap.servers": f"{node.host}:{node.port}"}
        kept = [retention_of(settings, topic) for topic in ("short", "endless", "gone")]
    finally:
        node.stop()
    assert kept == [60_000, None, None]
