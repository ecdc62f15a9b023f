"""Command lines of the pipelines: what they take, and what they refuse before Spark is started."""

from __future__ import annotations

import argparse

import pytest

from service.cli.main import build_parser, main
from service.cli.pipeline import _PIPELINES
from service.pipelines.arguments import moment


@pytest.mark.parametrize("name", sorted(_PIPELINES))
def test_every_pipeline_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["pipeline", name, "--help"])
    assert left.value.code == 0
    assert "file:///dir" in capsys.readouterr().out


def test_settings_repeat_and_times_are_utc() -> None:
    args = build_parser("pipeline").parse_args(
        ["pipeline", "stats", "file:///x", "--conf", "a=1", "--conf", "b=2=3", "--from", "2013-01-01"]
    )
    assert args.conf == [("a", "1"), ("b", "2=3")]
    assert args.from_ms == 1356998400000
    assert moment("2013-01-01T02:00+02:00") == args.from_ms


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["stats"],
        ["stats", "file:///x", "--topics", "a", "--pattern", "b"],
        ["stats", "file:///x", "--top", "-1"],
        ["stats", "file:///x", "--top", "many"],
        ["stats", "file:///x", "--from", "yesterday"],
        ["stats", "file:///x", "--conf", "novalue"],
        ["stats", "file:///x", "--from", "2013-01-01", "--starting-offsets", "{}"],
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["pipeline", *arguments])
    assert left.value.code == 2


def test_a_malformed_time_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["pipeline", "stats", "file:///x", "--from", "soon"])
    assert "'soon' is not a time" in capsys.readouterr().err


def test_a_time_may_be_milliseconds_but_not_a_year() -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        moment("12")
    assert moment("1356998400000") == 1356998400000
