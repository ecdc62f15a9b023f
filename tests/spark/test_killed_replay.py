"""Replays that are killed midway, or given up: everything is there, in its order, little of it twice."""

from __future__ import annotations

import json
import sys
import threading
from dataclasses import replace
from pathlib import Path

from service.pipelines.replay_claim import Attempts, AttemptSuperseded
from service.pipelines.replay_state import Part, PartState
from service.pipelines.replay_task import Replayer, ReplayWork, open_state
from service.spark.options import parse_options
from service.spark.plan.archive import ArchiveReader
from service.spark.plan.ranges import plan_ranges, resolve_ranges
from service.spark.store import open_store_of
from service.spark.write.options import producer_settings
from tests.spark.filling import Row
from tests.spark.growing import Growing
from tests.spark.killing import Job
from tests.support.processes import wait_until

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
    assert replay.begin("--conf", "spark.speculation=true").end() == 1
    assert "spark.speculation=true is refused" in replay.said()
    assert not [*state.glob("*/*.1.json")], "a task has begun"
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


def test_a_task_that_was_given_up_and_still_runs_stops_before_its_successor_sends(
    grown: Growing, tmp_path: Path
) -> None:
    grown.topic("alive")
    sealed = grown.append("alive", 1500)[0]
    grown.admin.create("sent", 1)
    options = parse_options({"url": grown.store.url, "assign": '{"alive":[0]}', "includeHeaders": "true"})
    with ArchiveReader(open_store_of(options)) as archive:
        (wanted,) = resolve_ranges(archive, options)
        (split,) = plan_ranges(archive, [wanted], options)
    snapshot, begin, end = wanted
    chosen = snapshot.chosen
    part = Part(chosen.topic, str(chosen.topic_id), chosen.partition, begin, end)
    settings = producer_settings(grown.node.bootstrap, {})
    slow = Replayer(options, tmp_path.as_uri(), 1, "sent", True, 200.0, None, settings)
    state = open_state(slow.state_url, options)
    errors: list[Exception] = []

    def given_up() -> None:
        try:
            list(slow([[ReplayWork(part, split)]]))
        except Exception as e:
            errors.append(e)

    old = threading.Thread(target=given_up)
    old.start()
    wait_until("it sends", lambda: Attempts(state).newest(part)[1].next_offset > begin)
    assert (
        sum(records for records, _ in replace(slow, records_per_second=None)([[ReplayWork(part, split)]]))
        < sealed
    )
    old.join(30)
    assert [type(error) for error in errors] == [AttemptSuperseded]
    assert Attempts(state).newest(part) == (1, PartState(sealed, sealed, size(grown, sealed), 1, True))
    sent = [row._replace(topic="alive") for row in grown.rows("sent", {0: sealed})]
    assert sent == grown.rows("alive", {0: sealed})
    assert grown.ends("sent")[0] == sealed


def size(grown: Growing, end: int) -> int:
    return sum(len(row.key or b"") + len(row.value or b"") for row in grown.rows("alive", {0: end}))


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
