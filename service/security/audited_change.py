"""Set of changes that is one line of the audit log. [P]"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

MOST_NAMED: Final = 20
MOST_NAMES_CHARACTERS: Final = 1_400
"""Room for the names in a line. A log cuts a message, and who has done it stands behind the names."""


class AuditedChange(NamedTuple):
    """Changes of one kind. `event`: its name for programs; `items`: words for each thing that has changed, or
    for the first ones of `number`."""

    event: str
    words: str
    items: Iterable[str]
    number: int


def line_of_names(named: Sequence[str], number: int) -> str:
    """Return the first names of `number`, as many as have room, and how many are left out.

    >>> line_of_names(["a", "b"], 5)
    'a, b and 3 more'
    """
    room, shown = MOST_NAMES_CHARACTERS, list[str]()
    for name in named:
        if len(name) > room:
            if not shown:
                shown.append(f"{name[:room]}…")
            break
        shown.append(name)
        room -= len(name) + 2
    left = number - len(shown)
    return ", ".join(shown) + (f" and {left} more" if left > 0 else "")
