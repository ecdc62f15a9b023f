from __future__ import annotations

import pickle
from datetime import UTC, datetime

import pytest

from service.base.errors import ConfigError
from service.spark.selection import END_OF_OFFSETS, END_OF_TIME, EVERYTHING, MIN_TIMESTAMP, NOTHING, Window
from service.spark.where import MAX_CONSTANTS, MAX_DEPTH, MAX_TEXT, parse_where

NOON = "2024-05-01 12:00:00"
NOON_MS = int(datetime(2024, 5, 1, 12, tzinfo=UTC).timestamp()) * 1000


def window(text: str, topic: str = "flights", partition: int = 3) -> Window:
    return parse_where(text).window()(topic, partition)


def offsets(text: str) -> list[tuple[int, int]]:
    return [slab[:2] for slab in window(text).slabs]


def times(text: str) -> tuple[tuple[int, int], ...]:
    (slab,) = window(text).slabs
    return slab.times


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("offset = 7", [(7, 8)]),
        ("offset == 7 or `offset` <=> 9", [(7, 8), (9, 10)]),
        ("OFFSET > 9 AND Offset <= 20 and offset >= 3", [(10, 21)]),
        ("offset between 5 and 6", [(5, 7)]),
        ("offset not between 5 and 6 and offset < 10", [(0, 5), (7, 10)]),
        ("offset in (3, 1, 2, 9)", [(1, 4), (9, 10)]),
        ("offset not in (0, 5)", [(1, 5), (6, END_OF_OFFSETS)]),
        ("offset <> 5 and offset != 6 and offset < 9", [(0, 5), (7, 9)]),
        ("not (offset >= 4)", [(0, 4)]),
        ("! offset >= 4", [(0, 4)]),
        ("10 > offset and -1 < offset", [(0, 10)]),
        ("offset < 5 or offset > 7 and offset < 9", [(0, 5), (8, 9)]),
        ("(offset < 5 or offset > 7) and offset < 9", [(0, 5), (8, 9)]),
        ("offset < 5 and offset > 10", []),
        ("offset >= 99999999999999999999", []),
        ("offset > -5", [(0, END_OF_OFFSETS)]),
    ],
)
def test_offsets(text: str, expected: list[tuple[int, int]]) -> None:
    assert offsets(text) == expected


@pytest.mark.parametrize(
    ("operator", "fraction", "expected"),
    [
        (">=", "", (NOON_MS, END_OF_TIME)),
        (">=", ".000001", (NOON_MS + 1, END_OF_TIME)),
        (">", "", (NOON_MS + 1, END_OF_TIME)),
        (">", ".000999", (NOON_MS + 1, END_OF_TIME)),
        ("<", "", (MIN_TIMESTAMP, NOON_MS)),
        ("<", ".000001", (MIN_TIMESTAMP, NOON_MS + 1)),
        ("<=", ".0", (MIN_TIMESTAMP, NOON_MS + 1)),
        ("=", "", (NOON_MS, NOON_MS + 1)),
        ("=", ".123", (NOON_MS + 123, NOON_MS + 124)),
    ],
)
def test_microseconds_of_spark_meet_milliseconds_of_kafka(
    operator: str, fraction: str, expected: tuple[int, int]
) -> None:
    assert times(f"timestamp {operator} TIMESTAMP '{NOON}{fraction}Z'") == (expected,)
    assert times(f"timestamp {operator} timestamp'2024-05-01T05:00:00{fraction}-07:00'") == (expected,)
    assert times(f"timestamp {operator} '{NOON}{fraction} UTC'") == (expected,)


def test_a_time_between_two_milliseconds_equals_none() -> None:
    assert window(f"timestamp = '{NOON}.000001Z'") == NOTHING
    assert window(f"timestamp <> '{NOON}.000001Z'") == EVERYTHING


def test_spans_of_time_are_joined() -> None:
    text = " or ".join(
        f"timestamp between '2024-05-01 {h}:00:00Z' and '2024-05-01 {h}:30:00Z'" for h in (1, 3)
    )
    (slab,) = window(text).slabs
    assert [end - begin for begin, end in slab.times] == [1_800_001] * 2


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ("topic = 'flights'", True),
        ("topic <> 'flights'", False),
        ("'flights' = topic", True),
        ("topic in ('trains', 'flights')", True),
        ("topic not in ('trains', 'flights')", False),
        ("topic like 'fl%s'", True),
        ("topic like 'flight'", False),
        ("topic like 'flight_'", True),
        (r"topic like 'flight\_'", False),
        ("topic not like '%.dlq'", True),
        ("topic between 'a' and 'g'", True),
        ("partition = 3", True),
        ("3 >= partition", True),
        ("partition in (0, 1)", False),
        ("partition > 2 and topic > 'a'", True),
        ("partition = 0 or topic = 'flights'", True),
        ("not (partition = 3 and topic = 'flights')", False),
    ],
)
def test_topics_and_partitions_are_taken_whole_or_not_at_all(text: str, taken: bool) -> None:
    assert window(text) == (EVERYTHING if taken else NOTHING)


def test_partitions_may_be_read_each_in_its_own_way() -> None:
    text = "partition = 0 and offset < 10 or partition = 1 and timestamp > '2024-05-01 00:00:00Z'"
    assert [slab[:2] for slab in window(text, partition=0).slabs] == [(0, 10)]
    assert window(text, partition=1).slabs[0].times[0][1] == END_OF_TIME
    assert window(text, partition=2) == NOTHING


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is expected here: at its end"),
        ("offset", "a comparison is expected here"),
        ("offset >", "a constant"),
        ("offset > 5 offset", "and or or is expected here: at character 12"),
        ("offset > 5 and", "a constant, or one of the columns"),
        ("(offset > 5", r"\) is expected"),
        ("offset > '5'", "whole numbers"),
        ("offset > 1.5", "not understood: at character 11"),
        ("offset > 1e5", "a constant"),
        ("offset > partition", "a constant"),
        ("5 > 3", "one of the columns"),
        ("partition = 'x'", "whole numbers"),
        ("topic = 5", "topic is compared with strings"),
        ("topic = 'it''s'", "not understood"),
        ('topic = "flights"', "not understood"),
        (r"topic = 'a\'", "backslash"),
        (r"topic like 'a\b'", "backslash"),
        ("topic like 5", "like takes a string"),
        ("topic rlike 'x'", "a comparison is expected"),
        ("offset like '5'", "a comparison is expected"),
        ("offset is null", "a comparison is expected"),
        ("offset not = 5", "between, in or like"),
        ("offset in ()", "a constant"),
        ("offset in (1, 2", r"\) is expected"),
        ("offset between 1 or 2", "and is expected"),
        ("offset = null", "a constant"),
        ("key > 'x'", "key is compared with = and in: at character 1"),
        ("'x' <> key", "key is compared with = and in"),
        ("key not in ('x')", "key is compared with = and in"),
        ("key = 5", "key is compared with strings, or with bytes"),
        ("key = X'0g'", "key is compared with strings, or with bytes"),
        (r"key = 'a\b'", "a key with one is written X'5c'"),
        ("key = '${x}'", "by a setting of its own; a key with it"),
        ("key in ('a', 'b${env:HOME}')", "by a setting of its own; a key with it"),
        ("topic = '${x}'", "by a setting of its own; a key with it"),
        ("key = '\ud800'", "half a character is no text"),
        ("key = 'x' or offset = 5", "key is compared outside of or and not"),
        ("offset = 5 and (offset = 6 or key = 'x')", "key is compared outside of or and not"),
        ("not (key = 'x' and offset = 5)", "key is compared outside of or and not"),
        ("offset > X'05'", "whole numbers"),
        ("timestamp > X'05'", "TIMESTAMP"),
        ("value like '%x%'", "one of the columns"),
        ("offset + 1 = 5", "not understood"),
        ("date(timestamp) = '2024-05-01'", "one of the columns"),
        ("timestamp > 5", "TIMESTAMP"),
        ("timestamp > '2024-05-01'", "needs its zone"),
        ("timestamp > TIMESTAMP '2024-05-01 12:00:00'", "needs its zone"),
        ("timestamp > '2024-02-30 00:00:00Z'", "no time"),
        ("timestamp > '2024-05-01 00:00:00+19:00'", "no zone"),
        ("timestamp > '2024-05-01 00:00:00 Europe/Berlin'", "no time as in"),
        ("timestamp > '2024-05-01Z'", "no time as in"),
        ("timestamp > '2024-05-01 12:00Z'", "no time as in"),
        ("offset > 5; drop table x", "not understood: at character 11"),
        ("offset > 5 -- all", "and or or is expected"),
        ("offset > ٥", "not understood"),
        ("(" * (MAX_DEPTH + 1), "levels deep"),
        ("not " * (MAX_DEPTH + 1), "levels deep"),
        (" or ".join(["offset = 1"] * (MAX_CONSTANTS + 1)), "constants"),
        ("offset = 1" + " " * MAX_TEXT, "longer than"),
        ("offset = " + "9" * 50, "whole numbers"),
    ],
)
def test_ambiguous_filters_are_refused_with_their_position(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"^option where: .*{said}"):
        parse_where(text)


def test_times_without_a_zone_take_that_of_the_option() -> None:
    def first(text: str) -> int:
        (slab,) = parse_where(f"timestamp >= '{text}'", "Europe/Berlin").window()("t", 0).slabs
        return slab.times[0][0]

    assert first("2024-05-01 14:00:00") == first("2024-05-01 12:00:00Z") == NOON_MS
    assert first("2024-05-02") == NOON_MS + 10 * 3_600_000
    assert first("2024-03-31 02:30:00") == first("2024-03-31 01:30:00Z"), "a time that no clock showed"
    assert first("2024-10-27 02:30:00") == first("2024-10-27 00:30:00Z"), "the first of two"
    with pytest.raises(ConfigError, match="no zone 'Europe/Bielefeld'"):
        parse_where("offset > 5", "Europe/Bielefeld")
    with pytest.raises(ConfigError, match="no zone"):
        parse_where("offset > 5", "../../etc/passwd")


def test_an_in_list_makes_one_slab_for_each_offset() -> None:
    text = f"offset in ({', '.join(str(2 * n) for n in range(MAX_CONSTANTS))})"
    assert len(window(text).slabs) == MAX_CONSTANTS


def test_a_filter_is_pickled_as_its_text() -> None:
    where = parse_where("topic like 'a%' or offset < 5")
    assert pickle.loads(pickle.dumps(where)) == where


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("key = 'customer-4711'", {b"customer-4711"}),
        ("'größe' == `KEY`", {"größe".encode()}),
        ("key <=> X'00FF'", {b"\0\xff"}),
        ("x'5' = key", {b"\x05"}),
        ("key in ('a', X'', 'b')", {b"a", b"", b"b"}),
        ("key in ('a', 'b') and (offset < 5 or offset > 7) and key in ('b', 'c')", {b"b"}),
        ("(not partition = 9 and (key = 'a'))", {b"a"}),
        ("offset = 5", None),
    ],
)
def test_keys_are_those_that_a_row_may_have(text: str, keys: set[bytes] | None) -> None:
    assert parse_where(text).keys == keys
    assert window(text)


def test_keys_that_exclude_each_other_leave_nothing() -> None:
    assert window("key = 'a' and key = 'b'") == NOTHING


def test_a_condition_of_keys_narrows_by_its_other_parts() -> None:
    assert offsets("key = 'a' and offset between 5 and 6") == [(5, 7)]
    assert pickle.loads(pickle.dumps(parse_where("key = 'a'"))).keys == {b"a"}
