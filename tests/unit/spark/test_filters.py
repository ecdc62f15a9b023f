from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from service.spark.plan.selection import END_OF_TIME, MIN_TIMESTAMP, Condition, Selection, push

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
NOON_MS = int(NOON.timestamp()) * 1000


def test_conditions_on_offsets_become_one_range() -> None:
    pushed, done = push(
        [
            Condition("offset", "GreaterThan", 9),
            Condition("offset", "LessThanOrEqual", 20),
            Condition("offset", "GreaterThanOrEqual", 3),
            Condition("offset", "IsNotNull"),
        ]
    )
    assert (pushed.begin_offset, pushed.end_offset) == (10, 21)
    assert done == [True] * 4
    assert push([Condition("offset", "EqualTo", 7)])[0].end_offset == 8


def test_ranges_that_do_not_meet_leave_nothing() -> None:
    pushed, _ = push([Condition("offset", "LessThan", 5), Condition("offset", "GreaterThan", 10)])
    assert pushed.begin_offset == pushed.end_offset


@pytest.mark.parametrize(
    ("operator", "microseconds", "expected"),
    [
        ("GreaterThanOrEqual", 0, (NOON_MS, END_OF_TIME)),
        ("GreaterThanOrEqual", 1, (NOON_MS + 1, END_OF_TIME)),
        ("GreaterThan", 0, (NOON_MS + 1, END_OF_TIME)),
        ("GreaterThan", 999, (NOON_MS + 1, END_OF_TIME)),
        ("LessThan", 0, (MIN_TIMESTAMP, NOON_MS)),
        ("LessThan", 1, (MIN_TIMESTAMP, NOON_MS + 1)),
        ("LessThanOrEqual", 0, (MIN_TIMESTAMP, NOON_MS + 1)),
        ("EqualTo", 0, (NOON_MS, NOON_MS + 1)),
    ],
)
def test_microseconds_of_spark_meet_milliseconds_of_kafka(
    operator: str, microseconds: int, expected: tuple[int, int]
) -> None:
    for zone in (UTC, timezone(timedelta(hours=-7))):
        value = (NOON + timedelta(microseconds=microseconds)).astimezone(zone)
        pushed, done = push([Condition("timestamp", operator, value)])
        assert (pushed.begin_timestamp, pushed.end_timestamp) == expected
        assert done == [True]
        assert pushed.by_time


def test_a_time_between_two_milliseconds_equals_none() -> None:
    pushed, _ = push([Condition("timestamp", "EqualTo", NOON + timedelta(microseconds=1))])
    assert pushed.begin_timestamp == pushed.end_timestamp


def test_times_prune_what_lies_wholly_outside_and_trust_no_unknown_minimum() -> None:
    pushed = Selection(begin_timestamp=100, end_timestamp=200)
    assert [pushed.takes_times(low, high) for low, high in [(0, 99), (0, 100), (199, 300), (200, 300)]] == [
        False,
        True,
        True,
        False,
    ]
    assert pushed.takes_times(-1, 300)
    assert not pushed.takes_times(-1, -1)


def test_topics_and_partitions_are_chosen_by_any_condition() -> None:
    pushed, done = push(
        [
            Condition("partition", "In", (1, 3)),
            Condition("partition", "EqualTo", 3, negated=True),
            Condition("topic", "StringStartsWith", "fl"),
        ]
    )
    assert done == [True] * 3
    assert [pushed.takes_partition("flights", n) for n in range(4)] == [False, True, False, False]
    assert not pushed.takes_partition("trains", 1)


@pytest.mark.parametrize(
    "condition",
    [
        Condition("offset", "In", (1, 2)),
        Condition("offset", "EqualTo", 5, negated=True),
        Condition("offset", "EqualTo", None),
        Condition("offset", "EqualTo", True),
        Condition("timestamp", "EqualTo", datetime(2024, 5, 1)),
        Condition("timestamp", "GreaterThan", NOON, negated=True),
        Condition("key", "EqualTo", b"x"),
        Condition("key", "IsNotNull"),
        Condition("value", "IsNull"),
        Condition("topic", "EqualNullSafe", None),
        Condition("partition", "In", (1, None)),
        Condition("partition", "StringContains", 1),
        Condition("timestampType", "EqualTo", 0),
    ],
)
def test_what_cannot_be_decided_here_is_left_to_spark(condition: Condition) -> None:
    pushed, done = push([condition])
    assert done == [False]
    assert pushed == Selection()
