"""Lookup of the partitions that people name, and refusals of partitions, told line by line."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from service.cli.places import NamedPartitions, chosen_places, place_name

if TYPE_CHECKING:
    from service.client.admin import Cluster
    from service.client.admin_models import Place


def resolved(cluster: Cluster, named: Collection[NamedPartitions]) -> list[Place]:
    """Return the partitions that are named, sorted. Raises `RequestError` if one is not there."""
    from kio.schema.errors import ErrorCode

    from service.base.errors import RequestError
    from service.client.offset_queries import partitions_of
    from service.client.partition_changes import by_topic

    there = by_topic([place for place, _ in partitions_of(cluster, {one.topic for one in named})])
    places, missing = chosen_places(named, there)
    if missing:
        raise RequestError(ErrorCode.unknown_topic_or_partition, f"there is no {', no '.join(missing)}")
    return places


def tell_refused(command: str, refused: Mapping[Place, Exception]) -> int:
    """Print each refusal in a line with what to do; return the exit code."""
    for place, error in sorted(refused.items()):
        tell(command, f"{place_name(place)}: {words_of(error)}")
    return 1 if refused else 0


def tell(command: str, words: str) -> None:
    """Print one line to stderr, as every error of `firn COMMAND`."""
    from service.base.printable import escaped

    print(f"firn {command}: {escaped(words)}", file=sys.stderr)


def words_of(error: Exception) -> str:
    """Return an error's words, of a refused request with what to do."""
    from service.base.errors import RequestError
    from service.cli.advice import advised

    if isinstance(error, RequestError):
        return advised(error)
    return str(getattr(error, "strerror", None) or error)


@contextmanager
def failure_noted(problems: list[str]) -> Iterator[None]:
    """Add what fails for one of several things to `problems`, so that the others are done all the same."""
    from service.base.errors import FirnError, InvariantError

    try:
        yield
    except InvariantError:
        raise
    except (FirnError, OSError) as e:
        problems.append(words_of(e))
