"""Partitions as people name them: a topic, and some of its numbers. [P]

Commands import it for `--help`, so it imports the standard library alone until it has something to refuse.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from service.client.admin_models import Place

_END: Final = 2**31


class NamedPartitions(NamedTuple):
    """A topic and some of its partitions; None: all."""

    topic: str
    numbers: tuple[int, ...] | None


def numbers_of(text: str) -> tuple[int, ...]:
    """Parse `1,2,3`. Raises `ConfigError`."""
    from service.base.errors import ConfigError

    words = [word.strip() for word in text.split(",")]
    if not all(
        word.isascii() and word.isdigit() and len(word) <= len(str(_END)) and int(word) < _END
        for word in words
    ):
        raise ConfigError(f"expected numbers with commas between, found {text!r}")
    if len(set(words)) != len(words):
        raise ConfigError(f"a number is there twice in {text!r}")
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
