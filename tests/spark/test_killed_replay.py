"""A replay that is killed midway and run again: everything is there, in its order, little of it twice."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.spark.filling import Row
from tests.spark.growing import Growing
from tests.spark.killing import Job

pytest.importorskip("pyspark", reason="pyspark is not installed: make spark")

RECORDS = 4000
PER_SECOND = 1000
"""Of both partitions, each by a task of its own."""


def test_a_replay_killed_midway_goes_on_where_it_was_acknowledged(grown: Growing, tmp_path: Path) -> None:
    grown.topic("source")
    sealed = grown.append("source", RECORDS)
    grown.admin.create("again", 2)
    state = tmp_path / "state"
    command = [sys.executable, "-m", "service.cli.main", "pipeline", "replay", grown.store.url]
    command += ["--topics", "source", "--into", "again", "--bootstrap-server", grown.node.bootstrap]
    command += ["--state", str(state), "--records-per-second", str(PER_SECOND), "--keep-partition"]
    replay = Job([*command, "--master", "local[2]"], state, tmp_path / "log")

    def acknowledged() -> list[int]:
        return sorted(json.loads(one.read_bytes())["next_offset"] for one in state.glob("*/*.json"))

    try:
        replay.begin().wait_for("a third is sent", lambda: min([0, 0, *acknowledged()][-2:]) > RECORDS // 3)
    finally:
        replay.kill()
    at_kill = grown.ends("again")
    assert all(0 < at_kill[p] < sealed[p] for p in sealed), "it was not killed midway"
    assert replay.begin().end() == 0, replay.said()
    sent = grown.rows("again", grown.ends("again"))
    wanted = grown.rows("source", sealed)
    for partition in sealed:
        again = resumed(
            [row for row in sent if row.partition == partition],
            [row for row in wanted if row.partition == partition],
        )
        # A second's worth of a task, and what was under way to the broker when its state was written.
        assert again <= 2 * PER_SECOND // 2


def resumed(sent: list[Row], wanted: list[Row]) -> int:
    """How many records the second of two runs sent again; fails where anything is missing or out of order."""
    found = [row._replace(topic="", offset=0) for row in sent]
    expected = [row._replace(topic="", offset=0) for row in wanted]
    again = len(found) - len(expected)
    pairs = zip(found, expected, strict=False)
    first_run = next((i for i, (a, b) in enumerate(pairs) if a != b), len(expected))
    assert 0 <= again <= first_run
    assert found[first_run:] == expected[first_run - again :]
    return again
