"""Values of forms: whatever a browser, or somebody else, may send."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from service.base.errors import ConfigError
from service.client.partitioner import murmur2
from service.console.web.acts import fields
from service.console.web.acts.act import is_confirmed, word_of


def refused(read: Callable[[], object]) -> str:
    with pytest.raises(ConfigError) as raised:
        read()
    return str(raised.value)


@pytest.mark.parametrize(
    "written", ["", " ", "0", "-1", "1.5", "1e3", "٣", "²", "0x10", "2147483648", "9" * 5000, "1_000", "+1"]
)
def test_numbers_that_are_none_are_refused(written: str) -> None:
    assert (
        refused(lambda: fields.whole({"n": written}, "n", "Partitions", 1))
        == "Partitions is a number from 1 to 2,147,483,647"
    )


def test_numbers_within_their_bounds_are_taken() -> None:
    assert fields.whole({"n": " 10000 "}, "n", "N", 1) == 10_000
    assert fields.whole({}, "n", "N", 1, default=-1) == -1
    assert fields.offset({"n": "9223372036854775807"}, "n", "N") == 2**63 - 1
    assert fields.offset({"n": "-9223372036854775807"}, "n", "N", is_signed=True) == 1 - 2**63
    assert "from 0" in refused(lambda: fields.offset({"n": "-1"}, "n", "N"))
    assert "to 9,223" in refused(lambda: fields.offset({"n": "9223372036854775808"}, "n", "N"))


def test_settings_are_lines_of_keys_and_values() -> None:
    written = {"s": "a = 1 \r\n\r\nb=x=y\r\nc=\r\n"}
    assert fields.settings(written, "s", "Set") == {"a": "1", "b": "x=y", "c": ""}
    assert refused(lambda: fields.settings({"s": "a=1\nb"}, "s", "Set")) == "Set, line 2: expected KEY=VALUE"
    assert "expected" in refused(lambda: fields.settings({"s": "=secret"}, "s", "Set"))
    assert refused(lambda: fields.settings({"s": "a=1\na=2"}, "s", "Set")) == "Set: a is there twice"
    many = "\n".join(f"k{n}=1" for n in range(101))
    assert "101 are too many" in refused(lambda: fields.settings({"s": many}, "s", "Set"))
    assert fields.keys({"k": "a\r\nb a"}, "k", "Unset") == ["a", "b"]
    # Only a line's end ends a line: what else Unicode calls one is of the value.
    assert fields.settings({"s": "a=1\u2028b=2\x85c=3\rd=4"}, "s", "Set") == {
        "a": "1\u2028b=2\x85c=3",
        "d": "4",
    }
    assert fields.headers({"h": "a=1\x1eb=2"}, "h", "Headers") == [("a", b"1\x1eb=2")]
    # No part of what may be a secret is told.
    assert "s3cret" not in refused(lambda: fields.keys({"k": "key=s3cret"}, "k", "Unset"))


def test_bytes_are_text_json_hex_or_none() -> None:
    def read(form: str, written: str) -> bytes | None:
        return fields.content({"v": written, "v_form": form}, "v", "The value")

    assert read("text", "a\r\nb") == b"a\nb"
    assert read("text", "") == b""
    assert read("json", '{"a": 1.0, "a": 2}') == b'{"a": 1.0, "a": 2}'
    assert read("hex", "00 FF\r\n0a") == b"\x00\xff\n"
    assert read("none", "") is None
    assert fields.content({}, "v", "The value") is None
    assert read("json", "1" * 5000) == b"1" * 5000
    for form, written in BAD:
        assert refused(partial(read, form, written)).startswith("The value"), (form, written[:9])


BAD = (
    ("json", "{"), ("json", ""), ("json", "[" * 100_000), ("json", "NaN"), ("json", "[1]]"), ("hex", "abc"),
    ("hex", "é"), ("hex", "0x00"), ("none", "x"), ("avro", "x"), ("text", "\ud800"),
)  # fmt: skip


def test_headers_keep_their_order_and_may_repeat() -> None:
    assert fields.headers({"h": "b=1\r\na=é=\r\nb="}, "h", "Headers") == [
        ("b", b"1"),
        ("a", "é=".encode()),
        ("b", b""),
    ]
    assert refused(lambda: fields.headers({"h": "=x"}, "h", "Headers")).endswith("expected NAME=VALUE")
    assert "too many" in refused(lambda: fields.headers({"h": "a=\n" * 101}, "h", "Headers"))


def test_names_that_nobody_can_type_have_a_word_that_confirms_them() -> None:
    for name, word in (
        ("orders", "orders"),
        (" padded  name ", "padded name"),
        ("a\nb\u202e", r"a\nb\u202e"),
        ("", "(the empty id)"),
        ("\u3000", r"\u3000"),
        ("<b>&", "<b>&"),
        ("x" * 249, "x" * 249),
        ("x" * 32_767, "x" * 40),
    ):
        assert word_of(name) == word
        assert is_confirmed(f" {word} ", word)
    for typed in ("", "order", "ORDERS", "orders2", "ord ers"):
        assert not is_confirmed(typed, "orders")


@pytest.mark.parametrize(
    ("key", "found"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_a_keys_hash_is_that_of_kafkas_own_tests(key: bytes, found: int) -> None:
    assert murmur2(key) == found % 2**32
