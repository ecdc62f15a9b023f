"""The pipelines over buckets that a real node filled, through their command line."""

from __future__ import annotations

import json
import re
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from service.cli.main import main
from tests.spark.filling import Filled, Row


def day_of(row: Row) -> str:
    return datetime.fromtimestamp(row.timestamp_ms / 1000, UTC).date().isoformat()


@pytest.fixture
def pipeline(spark: Any, filled: Filled) -> Any:
    """`pipeline(name, *arguments)` over the folder; returns the exit code. Runs in the tests' session."""

    def run(name: str, *arguments: str) -> int:
        return main(["pipeline", name, filled.store.url, *arguments])

    return run


class TestStats:
    def test_days_and_keys_are_counted_as_a_consumer_would(
        self, pipeline: Any, filled: Filled, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        plot = tmp_path / "stats.png"
        assert pipeline("stats", "--pattern", "mixed|stamped", "--json", "--top", "4", f"--plot={plot}") == 0
        captured = capsys.readouterr()
        found = json.loads(captured.out)
        rows = filled.rows["mixed"] + filled.rows["stamped"]
        days = Counter((row.topic, day_of(row)) for row in rows)
        assert {(day["topic"], day["day"]): day["records"] for day in found["days"]} == days
        size = sum(len(row.key or b"") + len(row.value or b"") for row in rows)
        assert sum(day["bytes"] for day in found["days"]) == size
        keys = Counter(row.key for row in filled.rows["mixed"])
        mixed = [key for key in found["keys"] if key["topic"] == "mixed"]
        assert [key["records"] for key in mixed] == [count for _, count in keys.most_common(4)]
        for key in mixed:
            assert keys[None if key["key_hex"] is None else bytes.fromhex(key["key_hex"])] == key["records"]
        assert plot.read_bytes().startswith(b"\x89PNG")
        assert re.search(rf"^stats: {len(rows):,} records, ", captured.err, re.MULTILINE)

    def test_a_range_of_offsets_and_no_keys(self, pipeline: Any, capsys: pytest.CaptureFixture[str]) -> None:
        starting, ending = '{"mixed":{"0":10,"1":20,"2":30}}', '{"mixed":{"0":11,"1":22,"2":33}}'
        arguments = ("--starting-offsets", starting, "--ending-offsets", ending, "--top", "0")
        assert pipeline("stats", "--topics", "mixed", *arguments) == 0
        out = capsys.readouterr().out
        assert re.search(r"mixed +20\d\d-\d\d-\d\d +6 ", out)
        assert "key" not in out

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (("--topics", "planes"), "the archive knows no topic 'planes'"),
            (("--pattern", "nothing"), "no topic of the archive is asked for"),
            (("--option", "startingoffset=earliest"), "unknown option startingoffset"),
            (("--plot", "/nowhere/at/all.png"), "there is no folder /nowhere/at"),
        ],
    )
    def test_what_cannot_be_is_said_in_one_line(
        self, pipeline: Any, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
    ) -> None:
        assert pipeline("stats", *arguments) == 1
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("firn pipeline: ")
        assert said in captured.err
        assert captured.err.count("\n") == 1
