"""Streams of a command: closed ones, and encodings that lack characters."""

from __future__ import annotations

import sys
from io import BytesIO, TextIOWrapper

import pytest

from service.cli.main import main


def test_problems_do_not_go_among_results_where_stderr_is_closed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    assert main(["profile", "use", "a/b", "--json"]) == 1
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["profile", "list"]) == 0


def test_help_is_printed_in_an_encoding_that_lacks_its_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = BytesIO()
    monkeypatch.setattr(sys, "stdout", TextIOWrapper(printed, "ascii"))
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["topic", "list", "--help"])
    sys.stdout.flush()
    assert rb"HOST:PORT,\u2026" in printed.getvalue()


def test_numbers_that_a_request_has_no_room_for_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^2$"):
        main(["topic", "create", "t", "--replication-factor", "32768"])
    assert "--replication-factor: expected a number below 32768" in capsys.readouterr().err
