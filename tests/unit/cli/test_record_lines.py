"""Lines that stand for records: read, written, refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.cli.record_lines import LineError, LineRecord, ReadRecord, iso_time, line_reader, line_writer

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"))
BYTES = st.none() | st.binary(max_size=50)


def test_a_line_of_text_is_a_value() -> None:
    assert line_reader("text", None, None)(b"a\tb") == LineRecord(None, b"a\tb")


def test_a_separator_ends_the_key() -> None:
    read = line_reader("text", b"::", b"-")
    assert read(b"a::b::c") == LineRecord(b"a", b"b::c")
    assert read(b"a::-") == LineRecord(b"a", None)
    assert read(b"-::") == LineRecord(None, b"")
    with pytest.raises(LineError, match="there is no separator '::' behind the key"):
        read(b"ab")


def test_hexadecimal_digits_are_bytes() -> None:
    assert line_reader("hex", b":", b"null")(b"00ff:null") == LineRecord(b"\x00\xff", None)
    with pytest.raises(LineError, match="hexadecimal"):
        line_reader("hex", None, None)(b"xy")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"{", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b"[]", "no JSON object"),
        (b'{"values": "a"}', "there is no field values; a record has partition"),
        (b'{"value": 3}', "value is a string"),
        (b'{"key": {"base64": "!"}}', "key: "),
        (b'{"key": {"base64": 1}}', "key: "),
        (b'{"value": "\\ud800"}', "value: "),
        (b'{"headers": {"a": "b"}}', "list of pairs"),
        (b'{"headers": [["a", 1]]}', "header a is a string"),
        (b'{"headers": [["a\\u0000b", "1"]]}', "zero byte in its name"),
        (b'{"headers": [["\\ud800", "1"]]}', "header name: "),
        (b'{"timestamp": 0}', "cannot send timestamp 0"),
        (b'{"timestamp": -1}', "timestamp is -1"),
        (b'{"timestamp": true}', "timestamp is True"),
        (b'{"partition": 2147483648}', "partition is 2147483648"),
    ],
)  # fmt: skip
def test_json_that_is_no_record_is_refused(line: bytes, words: str) -> None:
    with pytest.raises(LineError, match=words):
        line_reader("json", None, None)(line)


@given(
    key=BYTES,
    value=BYTES,
    headers=st.lists(st.tuples(TEXT, BYTES), max_size=3),
    timestamp_ms=st.integers(1, 2**63 - 1),
    partition=st.integers(0, 2**31 - 1),
)
def test_json_is_read_back_as_the_same_record(
    key: bytes | None,
    value: bytes | None,
    headers: list[tuple[str, bytes | None]],
    timestamp_ms: int,
    partition: int,
) -> None:
    record = ReadRecord("t", partition, 7, timestamp_ms, key, value, headers, "local")
    line = line_writer("json", ())(record)
    assert line.endswith(b"\n")
    assert b"\n" not in line[:-1]
    assert line_reader("json", None, None)(line) == LineRecord(key, value, headers, timestamp_ms, partition)


def test_columns_stand_in_front_of_the_value() -> None:
    record = ReadRecord("t", 3, 7, 1_700_000_000_123, None, b"v", [("a", b"1"), ("b", None)], "remote")
    write = line_writer("text", ("tier", "partition", "offset", "timestamp", "headers", "key"))
    assert write(record) == b"remote\t3\t7\t2023-11-14T22:13:20.123Z\ta=1,b=null\tnull\tv\n"
    assert line_writer("hex", ("key",))(record._replace(key=b"k")) == b"6b\t76\n"


def test_times_that_no_calendar_has_are_told() -> None:
    assert iso_time(-1) == "-"
    assert iso_time(2**62) == "4611686018427387904"
