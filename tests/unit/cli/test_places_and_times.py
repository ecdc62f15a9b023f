"""Partitions, times and durations as people write them."""

from __future__ import annotations

import argparse

import pytest

from service.base.errors import ConfigError
from service.base.times import duration_ms, time_ms
from service.cli.places import named_partitions, whole_numbers
from service.client.places import chosen_places


@pytest.mark.parametrize(
    ("text", "topic", "numbers"),
    [("flights", "flights", None), ("flights:3", "flights", (3,)), ("a:0,2,5", "a", (0, 2, 5))],
)
def test_partitions_are_named_by_topic_and_number(
    text: str, topic: str, numbers: tuple[int, ...] | None
) -> None:
    assert named_partitions(text) == (topic, numbers)


@pytest.mark.parametrize("text", ["", ":1", "a:", "a:x", "a:1,", "a:-1", "a:1,1", "a:2147483648", "a:²"])
def test_other_words_name_no_partition(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        named_partitions(text)


def test_missing_topics_and_partitions_are_named() -> None:
    named = [named_partitions(text) for text in ("b", "a:1,9", "c")]
    found, missing = chosen_places(named, {"a": [0, 1], "b": [0, 1]})
    assert found == [("a", 1), ("b", 0), ("b", 1)]
    assert missing == ["a-9", "c"]


def test_numbers_keep_their_order() -> None:
    assert whole_numbers("3, 1,2") == (3, 1, 2)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("2026-01-01T00:00:00Z", 1_767_225_600_000),
        ("2026-01-01T00:00:00.250", 1_767_225_600_250),
        ("2026-01-01T01:00+01:00", 1_767_225_600_000),
        ("2026-01-01", 1_767_225_600_000),
    ],
)
def test_a_time_without_a_zone_is_utc(text: str, ms: int) -> None:
    assert time_ms(text) == ms


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("P7D", 604_800_000),
        ("PT1H30M", 5_400_000),
        ("P1DT0.5S", 86_400_500),
        ("-PT1S", -1_000),
        ("pt15m", 900_000),
    ],
)
def test_a_duration_is_written_as_in_java(text: str, ms: int) -> None:
    assert duration_ms(text) == ms


@pytest.mark.parametrize("text", ["", "P", "PT", "P1DT", "7d", "P1Y", "PT1", "PT1S ago", f"P{'9' * 30}D"])
def test_another_duration_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        duration_ms(text)


@pytest.mark.parametrize("text", ["", "now", "2026-13-01", "12:00", "2026-01-01T25:00Z"])
def test_another_time_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        time_ms(text)
