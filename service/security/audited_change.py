"""Set of changes that is one line of the audit log. [P]"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

MOST_NAMED: Final = 20


class AuditedChange(NamedTuple):
    """Changes of one kind. `event`: its name for programs; `items`: words for each thing that has changed, or
    for the first ones of `number`."""

    event: str
    words: str
    items: Iterable[str]
    number: int
