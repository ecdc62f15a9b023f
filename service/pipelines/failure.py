"""What made a job fail, out of the pages that Spark says: the error, and under it its cause. [P]"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_PYTHON: Final = re.compile(
    r"^(?:[\w.]*\.)?(\w*(?:Error|NotFound|Unavailable|Refused|Truncated|Exception|Timeout)): (.+)$",
    re.MULTILINE,
)
_LINKS: Final = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
_JAVA: Final = re.compile(r"^Caused by: (?:[\w$]+\.)*([\w$]+): (.+)$", re.MULTILINE)
MAX_CHARS: Final = 2000


class Failure(NamedTuple):
    """One line each; `cause` is empty where there is none, or none that says more."""

    error: str
    cause: str


def failure_of(text: str) -> Failure:
    """From the text of an exception of Spark's.

    The error is the last of Python's exceptions, which is the outermost of the task that failed for the last
    time; the cause is the first of those it came from. Where Python did not fail, they are the first line of
    Spark's words and the last of Java's causes.
    """
    found = list(_PYTHON.finditer(text))
    if not found:
        first = next((line for line in text.splitlines() if line.strip()), "")
        java = _JAVA.findall(text)
        cause = f"{java[-1][0]}: {java[-1][1]}" if java else ""
        return _distinct(first, cause)
    at = len(found) - 1
    while at and any(link in text[found[at - 1].end() : found[at].start()] for link in _LINKS):
        at -= 1
    root = found[at]
    return _distinct(found[-1][2], "" if root is found[-1] else f"{root[1]}: {root[2]}")


def _distinct(error: str, cause: str) -> Failure:
    """Without a cause that the error has told already."""
    words = cause.partition(": ")[2]
    return Failure(error[:MAX_CHARS], "" if not words or words in error else cause[:MAX_CHARS])
