"""Numbers and screens of the demo; the demo as a whole is `make demo`."""

from __future__ import annotations

import io
import json
from typing import Any
from uuid import UUID

import pytest

from demo.__main__ import addresses, settled
from demo.delays import as_lines, table_of
from demo.flights import flight_of
from demo.node import Dev
from demo.screen import Screen, bar
from service.cli.tiers import PartitionTiers, TopicTiers

ROW = {
    "year": "2013", "month": "1", "day": "1", "dep_time": "517", "sched_dep_time": "515", "dep_delay": "2",
    "tailnum": "N14228", "origin": "EWR", "hour": "5", "minute": "15", "time_hour": "2013-01-01T10:00:00Z",
}  # fmt: skip


def test_a_flight_is_stamped_with_its_departure_in_utc() -> None:
    flight = flight_of(ROW)
    assert flight.timestamp_ms == 1357035420000  # 05:17 in New York, 10:17 UTC
    assert flight.tail_number == b"N14228"
    assert json.loads(flight.value)["dep_delay"] == 2
    assert json.loads(flight.value)["origin"] == "EWR"


def test_a_flight_that_never_left_counts_at_its_scheduled_time_and_may_have_no_tail_number() -> None:
    flight = flight_of({**ROW, "dep_time": "NA", "dep_delay": "NA", "tailnum": "NA"})
    assert flight.timestamp_ms == 1357035420000 - 120_000
    assert flight.tail_number is None
    assert json.loads(flight.value)["dep_time"] is None


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_the_status_is_painted_over_and_a_line_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    screen = Screen(out)
    screen.begin()
    screen.status(["one", "two"], "plain")
    screen.line("done")
    assert out.getvalue() == "one\ntwo\n\x1b[2A\x1b[Jdone\n"


def test_elsewhere_there_are_plain_lines_only() -> None:
    out = io.StringIO()
    screen = Screen(out)
    screen.begin()
    screen.status(["one", "two"], "plain")
    screen.line("done")
    assert out.getvalue() == "done\n"


@pytest.mark.parametrize(("done", "share"), [(0, "[------------------------------]   0%"), (10, "100%")])
def test_a_bar(done: int, share: str) -> None:
    assert share in bar(done, 10, "read", 0.0)


def test_delays_are_a_row_for_each_of_the_greatest_carriers() -> None:
    found = [(f"C{i}", 1, i, 1.0) for i in range(1, 10)] + [("C9", 12, 100, -2.4), ("C9", 2, 1, None)]
    delays = table_of(found)
    assert delays.flights == 146
    assert [carrier for carrier, _ in delays.rows] == [f"C{i}" for i in range(9, 1, -1)]
    lines = as_lines(delays)
    assert lines[0].split()[1:3] == ["Jan", "Feb"]
    assert lines[1].split() == ["C9", "1", *["-"] * 10, "-2"]


def test_settled_records_in_both_tiers_are_counted_once() -> None:
    apart = PartitionTiers(0, 80, 100, 2_000, 1, 0, 80, 8_000, 4)
    overlapping = PartitionTiers(1, 50, 100, 5_000, 3, 10, 70, 6_000, 3)
    assert settled(TopicTiers("flights", UUID(int=1), None, None, (apart,))) == (
        "settled      80 records in S3 only (8.0 kB in 4 objects), "
        "the newest 20 on disk only (2.0 kB in 1 segments)"
    )
    assert settled(TopicTiers("flights", UUID(int=1), None, None, (apart, overlapping))) == (
        "settled      120 records in S3 only (14.0 kB in 7 objects), "
        "the newest 50 on disk only (7.0 kB in 4 segments), 20 in both"
    )


def test_a_demo_that_stays_says_where_everything_is() -> None:
    process: Any = None
    dev = Dev("127.0.0.1:9092", "http://127.0.0.1:5000", "s3://firn/dev", process, "http://127.0.0.1:9464")
    console, node, metrics, archive = addresses(dev, "http://127.0.0.1:8080")
    assert console.endswith("http://127.0.0.1:8080")
    assert "firn tiers flights --bootstrap-server 127.0.0.1:9092" in node
    assert "http://127.0.0.1:9464/metrics" in metrics
    assert "export AWS_ENDPOINT_URL=http://127.0.0.1:5000 AWS_ACCESS_KEY_ID=" in archive
