"""Java's hash of strings: values that `jshell` printed."""

from __future__ import annotations

import pytest

from service.base.java_hash import partition_of, string_hash


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("group", 98629247),
        ("my-group", -1906497762),
        ("console-consumer-12345", 158455506),
        ("grüße", 98768023),
        ("\U0001f9ca", 1772876),
        ("\ud83e", 55358),
        ("polygenelubricants", -(1 << 31)),
    ],
)
def test_the_hash_is_javas(text: str, expected: int) -> None:
    assert string_hash(text) == expected


def test_the_least_number_belongs_to_the_first_partition() -> None:
    assert partition_of("polygenelubricants", 50) == 0
    assert partition_of("console-consumer-12345", 50) == 158455506 % 50
