"""`firn produce` and `firn consume` on a whole node, by a real librdkafka."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from service.cli.main import main
from tests.node.conftest import NodeThread

Start = Callable[..., NodeThread]
Run = Callable[..., str]


@pytest.fixture
def run(start: Start, capsysbinary: pytest.CaptureFixture[bytes]) -> Run:
    node = start()

    def command(*words: str, code: int = 0) -> str:
        capsysbinary.readouterr()
        assert main([*words, "--bootstrap-server", f"127.0.0.1:{node.port}"]) == code
        said = capsysbinary.readouterr()
        return (said.out if code == 0 else said.err).decode()

    return command


@pytest.fixture
def produce(run: Run, tmp_path: Path) -> Run:
    def send(topic: str, lines: str, *words: str, code: int = 0) -> str:
        file = tmp_path / "lines"
        file.write_text(lines, newline="")
        return run("produce", topic, "--file", str(file), *words, code=code)

    return send


def test_lines_come_back_as_they_went(run: Run, produce: Run) -> None:
    run("topic", "create", "t", "--partitions", "2")
    produce("t", "one\n\ntwo\r\nlast without an end", "--partition", "1")
    assert run("consume", "t", "--to", "end") == "one\n\ntwo\r\nlast without an end\n"
    assert run("consume", "t", "--to", "end", "--partition", "0") == ""
    assert run("consume", "t", "-n", "2", "--show", "partition,offset") == "1\t0\tone\n1\t1\t\n"


def test_places_bound_what_is_read(run: Run, produce: Run) -> None:
    run("topic", "create", "t")
    lines = [json.dumps({"value": f"{n}", "timestamp": 1_700_000_000_000 + 1000 * n}) for n in range(10)]
    produce("t", "\n".join(lines), "--format", "json")

    def values(*words: str) -> str:
        return run("consume", "t", *words).replace("\n", "")

    assert values("--from", "3", "--to", "6") == "345"
    assert values("--from", "-2", "--to", "end") == "89"
    assert values("--from", "@1700000004000", "--to", "@2023-11-14T22:13:26") == "45"
    assert values("--from", "@2023-11-14T23:13:28+01:00", "--to", "end") == "89"
    assert values("--from", "end", "--to", "end") == ""
    assert values("--from", "@2099-01-01", "--to", "end") == ""
    assert values("--from", "7", "--to", "99") == "789"


def test_json_copies_keys_headers_times_and_tombstones(run: Run, produce: Run) -> None:
    run("topic", "create", "t", "--partitions", "2")
    run("topic", "create", "copy", "--partitions", "2")
    produce(
        "t",
        "a\tb\nc\tNULL\n",
        "--key-separator",
        "\\t",
        "--null",
        "NULL",
        "--header",
        "h=ü",
        "--partition",
        "1",
    )
    document = '{"value":{"base64":"/wA="},"timestamp":5,"partition":0}\n'
    produce("t", document, "--format", "json")
    printed = run("consume", "t", "--to", "end", "--format", "json")
    produce("copy", printed, "--format", "json")
    copied = run("consume", "copy", "--to", "end", "--format", "json")
    found = sorted(printed.splitlines()), sorted(copied.replace('"copy"', '"t"').splitlines())
    assert found[0] == found[1]
    rows = [json.loads(line) for line in found[0]]
    assert [(row["key"], row["value"], row["headers"]) for row in rows] == [
        (None, {"base64": "/wA="}, []),
        ("a", "b", [["h", "ü"]]),
        ("c", None, [["h", "ü"]]),
    ]
    assert rows[0]["timestamp"] == 5


def test_a_group_goes_on_where_it_was(run: Run, produce: Run) -> None:
    run("topic", "create", "t")
    produce("t", "".join(f"{number}\n" for number in range(5)))
    assert run("consume", "t", "--group", "g", "-n", "2") == "0\n1\n"
    assert run("consume", "t", "--group", "g", "-n", "3") == "2\n3\n4\n"


def test_each_record_says_its_tier(run: Run, produce: Run) -> None:
    run("topic", "create", "t")
    produce("t", "a\n")
    assert run("consume", "t", "--to", "end", "--tier") == "local\ta\n"
    assert json.loads(run("consume", "t", "--to", "end", "--tier", "--format", "json"))["tier"] == "local"


@pytest.mark.parametrize(
    ("lines", "words", "said"),
    [
        ('{"value":"a"}\n{"value":3}\n', ("--format", "json"), "line 2: value is a string"),
        ("a\n", ("--partition", "9"), "line 1: it was not taken: "),
        ("a" * 2_000_000, (), "Message size too large"),
        ("a\n", ("--set", "no.such=1"), 'No such configuration property: "no.such"'),
    ],
)
def test_lines_that_are_not_taken_are_told(run: Run, produce: Run, lines: str, words: Any, said: str) -> None:
    run("topic", "create", "t")
    assert said in produce("t", lines, *words, code=1)


def test_records_before_a_bad_line_are_sent(run: Run, produce: Run) -> None:
    run("topic", "create", "t")
    produce("t", "ab\n00\nxy\n00\n", "--format", "hex", code=1)
    assert run("consume", "t", "--to", "end", "--format", "hex") == "ab\n00\n"


def test_unreadable_places_are_told(run: Run) -> None:
    assert run("consume", "none", "--to", "end", code=1).startswith("firn consume: none: ")
    run("topic", "create", "t")
    assert "t has no partition 7" in run("consume", "t", "--partition", "7", code=1)
    assert "--group reads from where the group is" in run(
        "consume", "t", "--group", "g", "--to", "end", code=1
    )
    with pytest.raises(SystemExit) as ended:
        main(["consume", "t", "--from", "soon"])
    assert ended.value.code == 2


def test_standard_input_is_read(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run("topic", "create", "t")
    (tmp_path / "lines").write_text("from stdin\n")
    with (tmp_path / "lines").open("rb") as lines:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(lines))
        run("produce", "t")
    assert run("consume", "t", "--to", "end") == "from stdin\n"
