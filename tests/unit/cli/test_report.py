"""Results that come one by one: lines at once, or one document at the end."""

from __future__ import annotations

import json

import pytest

from service.cli.report import Report


def test_lines_are_printed_at_once_and_no_document(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report("orphans")
    report.add("orphans", "orphan: a (3 bytes)", key="a", size=3)
    assert capsys.readouterr().out == "orphan: a (3 bytes)\n"
    report.keep("orphans", key="b")
    report.end(executed=True)
    assert capsys.readouterr().out == ""


def test_a_document_has_facts_and_rows_and_nothing_is_printed_before_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = Report("orphans", "skipped", as_json=True)
    report.add("orphans", "orphan: a (3 bytes)", key="a", size=3)
    report.say("1 orphan")
    assert capsys.readouterr().out == ""
    report.end(executed=False)
    assert json.loads(capsys.readouterr().out) == {
        "executed": False, "orphans": [{"key": "a", "size": 3}], "skipped": []
    }  # fmt: skip
