"""A log of Apache Kafka's with committed, aborted, open and hanging transactions, opened as our own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from service.base.clock import ManualClock
from service.base.types import TopicIdPartition
from service.config.settings import LogConfig
from service.hot.log import LocalLog
from service.hot.log_dir import read_topic_id
from tests.support.isolation import Seen, seen, shown
from tests.support.world import make_world

GOLDEN = Path(__file__).parent
EXPECTED: dict[str, Any] = json.loads((GOLDEN / "expected.json").read_text())
END, STABLE = EXPECTED["high_watermark"], EXPECTED["last_stable_offset"]
OPENINGS = ("clean", "unclean", "without indexes")


@pytest.fixture(params=OPENINGS)
def log(request: pytest.FixtureRequest, tmp_path: Path) -> LocalLog:
    """The log as Kafka left it, killed, and killed with its indexes and snapshots lost."""
    directory = tmp_path / "flights-0"
    shutil.copytree(GOLDEN / "kafka-data" / "flights-0", directory)
    if request.param == "without indexes":
        for path in [*directory.glob("*index"), *directory.glob("*.snapshot")]:
            path.unlink()
    world = make_world(ManualClock(1_795_900_000_000))
    topic_id = read_topic_id(world.disk, directory)
    assert topic_id is not None
    tip = TopicIdPartition(topic_id, "flights", 0)
    found = LocalLog.open(directory, tip, LogConfig(), world=world, clean=request.param == "clean")
    found.high_watermark_moved(END)
    return found


def test_the_log_is_stable_up_to_where_kafka_says(log: LocalLog) -> None:
    assert (log.log_end_offset, log.first_unstable_offset) == (END, STABLE)
    assert log.oldest_open is not None
    open_id = EXPECTED["ids"]["open"]
    assert log.oldest_open[:2] == (open_id["producer_id"], STABLE)


def test_rows_are_kafkas_however_the_log_was_opened(log: LocalLog) -> None:
    kafkas = sorted((GOLDEN / "kafka-data" / "flights-0").glob("*.txnindex"))
    assert [path.name[:20].lstrip("0") for path in kafkas] == ["", "15", "20"]
    ours = log.aborted_transactions(0, END)
    rows = [(one.producer_id, one.first_offset, one.last_offset, one.last_stable_offset) for one in ours]
    assert rows == [
        (0, 3, 4, 5), (2, 8, 9, 10), (2, 13, 14, 10), (3, 10, 17, 18), (2, 23, 24, 21),
    ]  # fmt: skip


def values(log: LocalLog, offset: int) -> list[str]:
    """The values from an offset to the stable end that a consumer shows by the rows of this log."""
    batches: list[Seen] = []
    position = offset
    while position < STABLE:
        found = log.read(position, 1 << 20).slice
        assert found is not None
        batches += seen(bytes(found.read()))
        position = batches[-1].last_offset + 1
    rows = [(one.producer_id, one.first_offset) for one in log.aborted_transactions(offset, STABLE)]
    # Kafka's rows of the rest of the segment beside these are none of a batch below its bound.
    told = {tuple(one) for one in EXPECTED["aborted"][str(offset)]}
    assert set(rows) == {one for one in told if one[1] < STABLE}
    assert len(rows) == len(set(rows))
    return [
        value.decode()
        for one in shown(batches, rows)
        if one.last_offset < STABLE
        for value in one.values
        if value is not None
    ]


def test_each_fetch_is_told_of_the_transactions_that_kafka_told(log: LocalLog) -> None:
    committed = EXPECTED["committed"]
    assert values(log, 0) == committed
    for offset in range(STABLE):
        found = values(log, offset)
        assert found == committed[len(committed) - len(found) :]
