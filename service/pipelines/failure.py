"""Extraction of a job's error and its cause from the text of Spark's exceptions. [P]"""

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


class JobFailure(NamedTuple):
    """The error and its cause, one line each; `cause` is empty where it would add nothing."""

    error: str
    cause: str


def failure_of(text: str) -> JobFailure:
    """Extract the error and the cause from the text of an exception of Spark's.

    The error is the last of Python's exceptions, which is the outermost of the task that failed for the last
    time; the cause is the first in its chain. Where Python did not fail, they are the first line of Spark's
    text and the last of Java's causes.
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


def _distinct(error: str, cause: str) -> JobFailure:
    """Build the result, without a cause that the error contains already."""
    words = cause.partition(": ")[2]
    return JobFailure(error[:MAX_CHARS], "" if not words or words in error else cause[:MAX_CHARS])
