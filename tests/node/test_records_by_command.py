"""`firn produce` and `firn consume` on a whole node, by a real librdkafka."""

from __future__ import annotations

import io
import json
import os
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from service.base.confluent import confluent_kafka
from service.cli.address import fill_in
from service.cli.main import build_parser, main
from service.cli.reading import Reading
from tests.node.conftest import NodeThread
from tests.support.batches import batch, varint
from tests.support.wire import RawConnection
from tests.support.wire import produce as send

Start = Callable[..., NodeThread]
Run = Callable[..., str]


@pytest.fixture
def node(start: Start) -> NodeThread:
    settings = {"offsets_topic_num_partitions": "1", "transaction_state_log_num_partitions": "1"}
    return start(auto_create_topics_enable="false", group_initial_rebalance_delay_ms="0", **settings)


def at(node: NodeThread) -> list[str]:
    return ["--bootstrap-server", f"127.0.0.1:{node.port}"]


@pytest.fixture
def run(node: NodeThread, capsysbinary: pytest.CaptureFixture[bytes]) -> Run:
    def command(*words: str, code: int = 0) -> str:
        capsysbinary.readouterr()
        assert main([*words, *at(node)]) == code
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


def test_a_key_goes_to_the_partition_that_javas_clients_choose(run: Run, produce: Run) -> None:
    run("topic", "create", "t", "--partitions", "16")
    produce("t", "21\tv\nfoobar\tv\na-little-bit-long-string\tv\n", "--key-separator", "\\t")
    found = run("consume", "t", "--to", "end", "--show", "partition,key").splitlines()
    # murmur2 of Kafka's UtilsTest: -973932308, -790332482, -985981536
    assert sorted(found) == ["0\ta-little-bit-long-string\tv", "12\t21\tv", "14\tfoobar\tv"]


def test_hexadecimal_lines_copy_keys_and_tombstones(run: Run, produce: Run) -> None:
    run("topic", "create", "t")
    run("topic", "create", "copy")
    produce("t", '{"key":{"base64":"AP8K"}}\n{"value":"null"}\n{"key":"","value":""}\n', "--format", "json")
    words = ("--to", "end", "--format", "hex", "--show", "key")
    printed = run("consume", "t", *words)
    assert printed == "00ff0a\tnull\nnull\t6e756c6c\n\t\n"
    produce("copy", printed, "--format", "hex", "--key-separator", "\\t")
    assert run("consume", "copy", *words) == printed


def test_a_group_commits_only_what_was_written(run: Run, produce: Run, node: NodeThread) -> None:
    """A group reads again what its reader, as `head`, did not take."""
    run("topic", "create", "t")
    produce("t", "a\nb\n")
    args = build_parser("consume").parse_args(["consume", "t", "--group", "g", *at(node)])
    fill_in(args, {})

    class Closed(io.BytesIO):
        def write(self, _: Any) -> int:
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError), closing(Reading(args, confluent_kafka(""))) as reading:
        reading.print_records(Closed())
    assert run("consume", "t", "--group", "g", "-n", "2") == "a\nb\n"


def test_headers_with_names_of_other_bytes_end_nothing(run: Run, node: NodeThread) -> None:
    run("topic", "create", "t")
    body = b"\0\0\0\1" + varint(1) + b"v" + varint(1) + varint(2) + b"\xff\xfe" + varint(1) + b"x"
    odd = batch([b""], payload=varint(len(body)) + body)
    connection = RawConnection(f"127.0.0.1:{node.port}")
    for _ in range(30):
        assert send(connection, "t", 0, odd).error_code == 0
    lines = run("consume", "t", "--to", "end", "--format", "json").splitlines()
    assert [(one["value"], one["headers"]) for one in map(json.loads, lines)] == [("v", None)] * 30


def test_a_topic_that_is_deleted_meanwhile_is_told(
    run: Run, node: NodeThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.cli.reading._LOOK_EVERY_S", 0.05)
    run("topic", "create", "t")
    threading.Timer(0.5, lambda: main(["topic", "delete", "t", *at(node)])).start()
    assert "Unknown topic or partition" in run("consume", "t", code=1)


def test_partitions_that_come_later_are_read(
    run: Run, produce: Run, node: NodeThread, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("service.cli.reading._LOOK_EVERY_S", 0.05)
    run("topic", "create", "t")
    (tmp_path / "late").write_text("late\n")

    def grow() -> None:
        main(["topic", "add-partitions", "t", "--partitions", "2", *at(node)])
        main(["produce", "t", "--partition", "1", "--file", str(tmp_path / "late"), *at(node)])

    threading.Timer(0.3, grow).start()
    assert run("consume", "t", "-n", "1", "--show", "partition").endswith("1\tlate\n")


def test_a_transaction_is_all_or_nothing(run: Run, produce: Run) -> None:
    run("topic", "create", "t")
    in_one = ("--format", "hex", "--set", "transactional.id=load")
    assert "line 2" in produce("t", "aa\nxy\n", *in_one, code=1)
    produce("t", "bb\ncc\n", *in_one)
    assert run("consume", "t", "--to", "end", "--format", "hex") == "bb\ncc\n"


def test_a_record_that_fails_is_told_while_no_line_comes(
    run: Run, node: NodeThread, capsysbinary: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where standard input stays open."""
    run("topic", "create", "t", "--config", "max.message.bytes=1000")
    reader, writer = os.pipe()
    os.write(writer, b"x" * 2000 + b"\n")
    with open(reader) as lines:
        monkeypatch.setattr("sys.stdin", lines)
        assert main(["produce", "t", *at(node)]) == 1
    os.close(writer)
    assert b"brokers did not take 1 of 1 records" in capsysbinary.readouterr().err


def test_a_topic_that_is_not_there_is_told(run: Run, produce: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.cli.sending._TOPIC_S", 0.1)
    assert "none: Broker: Unknown topic or partition" in produce("none", "a\n", code=1)
