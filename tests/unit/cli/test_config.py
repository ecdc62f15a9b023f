"""`firn config explain`: what becomes of each key of a file, as a table and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from service.cli.main import main

SHIPPED = Path(__file__).parents[2] / "golden" / "config" / "shipped" / "server.properties"


def explained(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = main(["config", "explain", *words])
    return code, capsys.readouterr().out


def test_each_key_has_its_outcome_its_value_its_default_and_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FIRN_BROKER_RACK", "r1")
    file = tmp_path / "server.properties"
    file.write_text("node.id=7\n\nnum.network.threads=3\nssl.key.password=s3cret\nconfluent.x=s3cret\n")
    code, out = explained(capsys, str(file), "--override", "no.such.key=1", "--json")
    found = json.loads(out)
    rows = {row["key"]: row for row in found["keys"]}
    assert (code, found["would_start"]) == (1, False)
    assert found["problems"] == ["--set no.such.key: unknown configuration key"]
    assert rows["node.id"] == {
        "key": "node.id",
        "value": "7",
        "place": f"{file}:1",
        "outcome": "taken",
        "default": "1",
        "effect": "Number of this node.",
    }
    assert {key: row["outcome"] for key, row in rows.items()} == {
        "node.id": "taken",
        "num.network.threads": "ignored",
        "ssl.key.password": "taken",
        "confluent.x": "ignored",
        "no.such.key": "refused",
        "broker.rack": "taken",
    }
    assert (rows["num.network.threads"]["place"], rows["broker.rack"]["place"]) == (
        f"{file}:3",
        "FIRN_BROKER_RACK",
    )
    assert rows["num.network.threads"]["effect"].startswith("no effect here: a node is one event loop")
    assert "s3cret" not in out


def test_kafkas_own_file_would_start(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = explained(capsys, str(SHIPPED))
    assert code == 0
    assert out.splitlines()[-1] == "24 keys: 17 taken, 7 ignored, 0 refused"
    lines = out.splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("num.partitions "))
    assert lines[at].split() == ["num.partitions", "1", "taken", "1"]
    assert lines[at + 1] == "    Partitions of a topic that is created without a number of partitions."
