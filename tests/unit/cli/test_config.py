"""`firn config explain`: what becomes of each key of a file, as a table and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from service.cli.main import main


def explained(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = main(["config", "explain", *words])
    return code, capsys.readouterr().out


def test_each_key_has_its_outcome_its_value_and_its_default(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "server.properties"
    file.write_text("node.id=7\nnum.network.threads=3\nssl.key.password=s3cret\n")
    code, out = explained(capsys, str(file), "--json")
    rows = {row["key"]: row for row in json.loads(out)["keys"]}
    assert code == 0
    assert (rows["node.id"]["outcome"], rows["node.id"]["value"]) == ("taken", "7")
    assert rows["node.id"]["default"] == "1"
    assert rows["num.network.threads"]["outcome"] == "ignored"
    assert "s3cret" not in out
    code, out = explained(capsys, str(file), "--set", "no.such.key=1")
    assert code == 1
    assert "no.such.key" in out
