"""Records as people read them, and what a form may ask."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.console.web.query import RecordRequest, number_of
from service.console.web.record_query import RecordQuery
from service.console.web.rows import FORMATS, MOST_SHOWN, RecordFilter, as_json_line, most_shown, shown
from service.console.web.words import count, moment, money, parse_moment, size, span
from service.records.decode import Record


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b'{"a": [1]}', "JSON"),
        (b"plain words", "text"),
        ("snö".encode(), "text"),
        (b"\x00\x01\x02\xff", "hex"),
        (b"{not json", "text"),
        (b"[" * 100_000, "text"),
        (None, "null"),
    ],
)
def test_a_value_is_shown_as_what_it_is(data: bytes | None, what: str) -> None:
    assert shown(data, "auto").what == what


@given(st.binary(), st.sampled_from(FORMATS))
def test_every_value_can_be_shown_in_every_form(data: bytes, form: str) -> None:
    found = shown(data, form)
    assert found.size == len(data)
    assert not found.is_cut


def test_long_values_are_cut_and_say_so() -> None:
    found = shown("ö".encode() * MOST_SHOWN, "auto")
    assert (found.what, found.is_cut) == ("text", True)
    assert len(found.text) <= MOST_SHOWN


def test_json_stands_as_it_was_written() -> None:
    """Read and written again, doubled names, long numbers and escapes would not."""
    written = b'{"a": 1, "a": 1.10, "b": [], "c": {}, "d": [12345678901234567890.5, "x\\u00e9: {,}"]}'
    assert shown(written, "auto").text.splitlines() == [
        "{", '  "a": 1,', '  "a": 1.10,', '  "b": [],', '  "c": {},', '  "d": [',
        "    12345678901234567890.5,", '    "x\\u00e9: {,}"', "  ]", "}",
    ]  # fmt: skip


@given(st.recursive(st.none() | st.text() | st.floats(allow_nan=False), lambda inner: st.lists(inner)))
def test_json_means_on_lines_what_it_meant(value: object) -> None:
    found = shown(json.dumps([value]).encode(), "json")
    assert json.loads(found.text) == [value]


@pytest.mark.parametrize("data", [b"[" * 900 + b"]" * 900, b'{"a":' * 900 + b"1" + b"}" * 900])
def test_json_that_is_nested_deep_does_not_grow(data: bytes) -> None:
    assert len(shown(data, "auto").text) <= 4 * len(data)


def test_a_page_of_many_records_shows_less_of_each() -> None:
    assert [most_shown(n) for n in (0, 1, 20, 50, 500, 10**9)] == [16_384, 16_384, 16_384, 16_384, 2097, 800]


def test_a_filter_looks_into_keys_values_and_headers() -> None:
    record = Record(1, 2, 0, b"Key", None, (("Name", b"Value"),))
    for needle in (b"key", b"NAME", b"alu", b""):
        assert RecordFilter(needle).wants(record)
    assert not RecordFilter(b"other").wants(record)


def test_a_line_of_json_keeps_what_is_not_text() -> None:
    row = json.loads(as_json_line(3, Record(1, 2, 0, b"\xff", "é".encode(), ((b"\xfe", None),))))
    assert row["key"] == {"base64": "/w=="}
    assert row["value"] == "é"
    assert (row["partition"], row["offset"], row["timestamp"]) == (3, 1, 2)
    # Six characters for each byte were a large record's end.
    assert len(as_json_line(0, Record(1, 2, 0, None, bytes(10_000), ()))) < 15_000


def test_invalid_form_values_are_refused_by_name() -> None:
    assert RecordRequest({}).ask is None
    assert RecordRequest({"topic": "t", "where": "offset", "at": "-1"}).problem is not None
    assert RecordRequest({"topic": "t", "where": "time", "at": "soon"}).problem is not None
    for number in ("x", "-1", "1.5", "NaN", "\u0661", str(2**31), "9" * 40):
        found = RecordRequest({"topic": "t", "partition": number})
        assert (found.ask, found.download) == (None, None)
        assert "is not a partition" in (found.problem or "")
    for wrong in ({"where": "offset", "at": "7"}, {"positions": "1--2"}):
        assert RecordRequest({"topic": "t", **wrong}).ask is None
    for offset in ("x", "-1", "NaN", "\u0661", str(2**63), "9" * 40, ""):
        assert RecordRequest({"topic": "t", "offset": offset, "part": "value"}).download is None
    one = {"topic": "t", "partition": "0", "offset": "7", "part": "value"}
    assert RecordRequest(one).download == RecordQuery("t", 0, "offset", 7, 1)
    assert RecordRequest({**one, "partition": ""}).download is None
    asked = RecordRequest({"topic": "t", "where": "time", "at": "2026-01-31T12:00", "most": "7"})
    assert asked.ask is not None
    assert (asked.ask.value, asked.ask.most, asked.ask.partition) == (1_769_860_800_000, 50, -1)


@given(st.text())
def test_numbers_from_a_query_are_bounded(written: str) -> None:
    assert 0 <= number_of(written, 0) < 2**63
    assert parse_moment(written) is None or isinstance(parse_moment(written), int)


def test_quantities_are_said_as_people_say_them() -> None:
    assert [size(n) for n in (None, 0, 999, 1000, 999_999, 10**15)] == [
        "–",
        "0 B",
        "999 B",
        "1.0 kB",
        "1.0 MB",
        "1.0 PB",
    ]
    assert [span(s) for s in (0, 0.0005, 0.25, 5, 90, 600, 86_400, 10**6)] == [
        "0", "500 µs", "250.0 ms", "5.0 s", "90 s", "10 min", "24 h", "12 d",
    ]  # fmt: skip
    assert (count(1234567), money(0, "USD"), money(1234.5, "USD")) == ("1,234,567", "0 USD", "1,234.50 USD")
    assert moment(10**18) == f"{10**18} ms"
