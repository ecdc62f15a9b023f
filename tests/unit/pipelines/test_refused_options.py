"""Pipelines that read what is archived say so when they are given brokers."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.cli.main import main

pytest.importorskip("pyspark", reason="pyspark is not installed: make spark")


@pytest.mark.parametrize("option", ["bootstrap.servers=host:9092", "kafka.security.protocol=SSL"])
@pytest.mark.parametrize(
    ("pipeline", "reason"),
    [
        ("stats", "stats counts the archive, and connects to no brokers"),
        ("replay", "replay reads the archive; brokers only receive it (--bootstrap-server)"),
    ],
)
def test_brokers_are_refused_with_the_reason_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], pipeline: str, reason: str, option: str
) -> None:
    state = tmp_path / "state"
    more = ["--bootstrap-server", "host:9092", "--into", "again", "--state", str(state)]
    command = ["pipeline", pipeline, f"file://{tmp_path}", "--option", option]
    assert main([*command, *(more if pipeline == "replay" else ())]) == 1
    name = option.partition("=")[0]
    assert capsys.readouterr().err == f"firn pipeline: option {name} is refused: {reason}\n"
    assert not state.exists()


@pytest.mark.parametrize("option", ["bootstrap.servers=host:9092", "isolationLevel=read_committed"])
def test_an_audit_takes_no_options_but_those_of_the_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    assert main(["pipeline", "audit", f"file://{tmp_path}", "--option", option]) == 1
    name = option.partition("=")[0]
    said = capsys.readouterr().err
    assert said.startswith(
        f"firn pipeline: option {name} is refused: an audit reads everything, and takes only "
    )
    assert main(["pipeline", "audit", f"file://{tmp_path}", "--option", "AWS.Profile=auditor"]) == 1
    assert "aws.… options are for s3:// alone" in capsys.readouterr().err
