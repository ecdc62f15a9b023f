"""Partitions as people name them: `flights`, `flights:3`, `flights:0,2,5`. [P]"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from service.client.admin_models import Place

METAVAR = "TOPIC[:PARTITION,…]"


class NamedPartitions(NamedTuple):
    """A topic and some of its partitions; None: all."""

    topic: str
    numbers: tuple[int, ...] | None


def named_partitions(text: str) -> NamedPartitions:
    """Parse one argument; `ArgumentTypeError` for any other text."""
    topic, colon, listed = text.partition(":")
    if not topic or (colon and not listed):
        raise argparse.ArgumentTypeError(f"expected {METAVAR}, found {text!r}")
    return NamedPartitions(topic, whole_numbers(listed) if colon else None)


def whole_numbers(text: str) -> tuple[int, ...]:
    """Parse `1,2,3`; `ArgumentTypeError` for any other text."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and int(word) < 2**31 for word in words):
        raise argparse.ArgumentTypeError(f"expected numbers with commas between, found {text!r}")
    if len(set(words)) != len(words):
        raise argparse.ArgumentTypeError(f"a number is there twice in {text!r}")
    return tuple(map(int, words))


def chosen_places(
    named: Iterable[NamedPartitions], there: Mapping[str, Sequence[int]]
) -> tuple[list[Place], list[str]]:
    """Return the named partitions among those that are `there`, sorted, and the names of the missing ones."""
    found: set[Place] = set()
    missing: list[str] = []
    for topic, numbers in named:
        has = there.get(topic)
        if has is None:
            missing.append(topic)
            continue
        found |= {(topic, number) for number in (has if numbers is None else numbers) if number in has}
        missing += [place_name((topic, number)) for number in numbers or () if number not in has]
    return sorted(found), missing


def place_name(place: Place) -> str:
    """Return `topic-partition`, as Kafka writes it."""
    return f"{place[0]}-{place[1]}"
