"""Refusals of partitions, told line by line, and errors in the words of commands."""

from __future__ import annotations

import sys
from collections.abc import Mapping
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

    return advised(error) if isinstance(error, RequestError) else str(error)
