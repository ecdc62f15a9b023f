"""Refusals of partitions, told line by line, and errors in the words of commands."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from service.client.places import place_name

if TYPE_CHECKING:
    from service.client.admin_models import Place


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
    from service.client.advice import advised

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
