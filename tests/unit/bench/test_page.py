"""The page of benchmarks: figures survive their file, goals are judged the right way, losses are shown."""

from __future__ import annotations

import sys
from itertools import permutations
from pathlib import Path

import pytest

from bench.figures import FIRN, KAFKA, Figures, read_figures, write_json
from bench.measures import Measured
from bench.page.__main__ import measured
from bench.page.parts import PARTS, Part, without_soaks
from bench.page.results import PartResult, Results, read_results
from bench.page.rows import SECTIONS, Goal, Row
from bench.page.text import page


def result(**sides: list[float]) -> PartResult:
    found = PartResult(3.0, "abc", "2 × Fast")
    for side, values in sides.items():
        for value in values:
            figure = Measured("user CPU per produced GB (batches of 200 KB)", "s", 0.5, value)
            found.figures.note({"firn": FIRN, "kafka": KAFKA}[side], [figure])
    return found


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    failed = PartResult(1.5, "abc", "2 × Fast", "`bench.x` ended with 3", Figures())
    made = Results(
        True, {"kernel": "6.1"}, {"speed": result(firn=[3, 1, 2], kafka=[4, 4, 5]), "cold": failed}
    )
    made.write(tmp_path / "figures.json")
    assert read_results(tmp_path / "figures.json") == made
    (tmp_path / "other.json").write_text('{"format": 2}')
    with pytest.raises(ValueError, match="format 2"):
        read_results(tmp_path / "other.json")


@pytest.mark.parametrize(
    ("row", "ours", "theirs", "is_met"),
    [
        (Row("x", goal=Goal(0.6)), 5.9, 10.0, True),
        (Row("x", goal=Goal(0.6)), 6.1, 10.0, False),
        (Row("x", more_is_better=True, goal=Goal(1.3)), 12.9, 10.0, False),
        (Row("x", more_is_better=True, goal=Goal(1.3)), 13.1, 10.0, True),
        (Row("x", goal=Goal(0.6)), 5.9, None, None),
        (Row("x", goal=Goal(15, is_ratio=False)), 15.1, None, False),
        (Row("x"), 1.0, 1.0, None),
    ],
)
def test_goals_are_judged(row: Row, ours: float, theirs: float | None, is_met: bool | None) -> None:
    assert row.is_met(ours, theirs) is is_met


def test_the_page_has_medians_spread_ratio_and_what_was_missed() -> None:
    text = page(
        Results(False, {"kernel": "6.1"}, {"speed": result(firn=[3, 1, 2], kafka=[2, 2, 2])}), ["speed"]
    )
    assert (
        "| user CPU per produced GB (batches of 200 KB) | 2 s (1 to 3) | 2 s | 1.00 × | **≤ 0.6 ×: missed** |"
    ) in text.splitlines()
    assert "speed-dark.svg" in text
    assert "What could not be measured" not in text


def test_small_ratios_keep_a_digit_and_thousands_are_words() -> None:
    found = PartResult(1.0, "abc")
    found.figures.note(FIRN, [Measured("… and beside it", "1000/s", None, 17.1)])
    found.figures.note(KAFKA, [Measured("… and beside it", "1000/s", None, 4278.0)])
    text = page(Results(False, {}, {"catch-up": found}), [])
    assert "| … and beside it | 17.1 thousand/s | 4,278 thousand/s | 0.004 × |" in text


def test_a_part_of_another_commit_or_machine_is_told() -> None:
    parts = {"speed": result(firn=[1], kafka=[2])}
    for facts, told in (
        ({"commit": "abc", "processors": "2 × Fast"}, None),
        ({"commit": "def", "processors": "2 × Fast"}, "Measured at commit abc."),
        ({"commit": "abc", "processors": "2 × Slow"}, "Measured on 2 × Fast."),
        ({"commit": "def", "processors": "2 × Slow"}, "Measured at commit abc on 2 × Fast."),
    ):
        found = [one for one in page(Results(False, facts, parts), []).splitlines() if "Measured" in one]
        assert found == ([] if told is None else [told])


def test_a_part_that_failed_is_told() -> None:
    text = page(Results(False, {}, {"cold": PartResult(failed="`bench.cold` ended with 2")}), [])
    assert "- cold: `bench.cold` ended with 2" in text.splitlines()


def test_each_section_is_of_a_part_and_no_row_takes_figures_of_another() -> None:
    for section in SECTIONS:
        assert section.part in PARTS
        begins = [row.begins for row in section.rows]
        assert not [(one, other) for one, other in permutations(begins, 2) if one.startswith(other)]


def test_sides_of_two_runs_are_put_together(tmp_path: Path) -> None:
    both = Figures()
    for side in (FIRN, KAFKA):
        one = Figures()
        one.note(side, [Measured("m", "s", None, 1.0)])
        write_json(tmp_path / "one.json", one.as_fields())
        both.add(read_figures(tmp_path / "one.json"))
    assert both.found["m"].sides == {FIRN: [1.0], KAFKA: [1.0]}


def test_a_bench_that_ends_with_an_error_is_a_part_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "false")
    found = measured([["bench.none", "--rounds", "5"]])
    assert found.failed == "`bench.none --rounds 5` ended with 1"


def test_a_part_runs_what_its_size_and_its_sides_ask_for() -> None:
    part = Part(("bench.x", "--sizes", "1"), ("--rounds", "1"), ("2", "--rounds", "5"))
    assert part.commands(is_quick=True, with_kafka=True) == [
        ["bench.x", "--sizes", "1", "--rounds", "1", "--kafka"]
    ]
    assert part.commands(is_quick=False, with_kafka=False) == [
        ["bench.x", "--sizes", "1", "2", "--rounds", "5"]
    ]
    apart = Part(("bench.x",), (), (), is_apart=True)
    assert apart.commands(is_quick=True, with_kafka=True) == [["bench.x"], ["bench.x", "--kafka"]]
    slow = Part(("bench.x",), None, ("--rounds", "5"))
    assert slow.commands(is_quick=True, with_kafka=True) == []
    assert slow.commands(is_quick=False, with_kafka=True) == [["bench.x", "--rounds", "5", "--kafka"]]
    often = Part(("bench.x",), (), (), times=2)
    assert often.commands(is_quick=False, with_kafka=True) == [["bench.x", "--kafka"]] * 2
    assert often.commands(is_quick=True, with_kafka=False) == [["bench.x"]]
    needs = Part(("bench.x",), (), (), (), needs_kafka=True)
    assert needs.commands(is_quick=True, with_kafka=False) == []
    assert needs.commands(is_quick=True, with_kafka=True) == [["bench.x"]]


def test_charts_are_drawn_for_light_and_dark_pages(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="make spark brings it")
    from bench.page.charts import draw_bars

    made = Results(False, {}, {"speed": result(firn=[3, 1, 2], kafka=[2, 2, 2])})
    assert draw_bars(made, SECTIONS[0], tmp_path, "speed")
    assert not draw_bars(made, SECTIONS[1], tmp_path, "sizes")
    drawn = [(tmp_path / f"speed-{theme}.svg").read_text(encoding="utf-8") for theme in ("light", "dark")]
    assert all("user CPU per produced GB" in one for one in drawn)
    assert drawn[0] != drawn[1]


def test_soaks_run_only_where_they_are_named() -> None:
    assert set(PARTS) - set(without_soaks()) == {"nothing", "mixed"}
