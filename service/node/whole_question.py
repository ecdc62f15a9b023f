"""Question of the process that runs a node, and the answer, as lines on the node's stdin and stdout. [P]

The other process asks ``whole? N``, and the node answers ``whole: N``, followed by what the cluster lacks.
The pipes are the two processes' own, so this needs no listener and no login.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

ANSWER: Final = "whole: "
_QUESTION: Final = re.compile(rb"whole\? ([0-9]{1,18})")
_MOST_WORDS: Final = 1000

Asks = Callable[[Callable[[int], None]], None]
"""Takes a function, which is called with the number of each question, on any thread."""


def question(number: int) -> bytes:
    """Return the line that asks what the cluster lacks.

    >>> question(3), number_of(b"whole? 3"), number_of(b"else")
    (b'whole? 3\\n', 3, None)
    """
    return b"whole? %d\n" % number


def number_of(line: bytes) -> int | None:
    """Return the number of a question; None for any other line."""
    found = _QUESTION.fullmatch(line)
    return None if found is None else int(found[1])


def answer(number: int, lacks: list[str]) -> str:
    """Return the line that answers a question.

    >>> answer(3, []), answer(4, ["2 partitions are under-replicated"])
    ('whole: 3 ', 'whole: 4 2 partitions are under-replicated')
    """
    words = "; ".join(lacks)[:_MOST_WORDS].replace("\n", " ")
    return f"{ANSWER}{number} {words}"
