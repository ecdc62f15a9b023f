"""Trace of events in order: a hash that shows whether two runs are the same, and lines for people."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import NamedTuple


class Line(NamedTuple):
    """One thing that happened. `at_s`: virtual seconds since the history began."""

    at_s: float
    actor: str
    text: str

    def __str__(self) -> str:
        return f"{self.at_s:12.6f}  {self.actor:<12} {self.text}"


class Trace:
    """Trace of a history: all events go into the hash; lines of `tell` are kept for the transcript."""

    def __init__(self, now_s: Callable[[], float], *, keep_all: bool = False) -> None:
        self._now_s = now_s
        self._hash = hashlib.blake2b(digest_size=16)
        self._keep_all = keep_all
        self.lines: list[Line] = []
        self.events = 0

    def note(self, actor: str, text: str) -> None:
        """Something small: a call, a chunk. Kept for people only where all is wanted."""
        self.events += 1
        self._hash.update(f"{self._now_s():.9f} {actor} {text}\n".encode(errors="backslashreplace"))
        if self._keep_all:
            self.lines.append(Line(self._now_s(), actor, text))

    def tell(self, actor: str, text: str) -> None:
        """Something that a person wants to read: an act, a fault, an answer, a log line."""
        self.events += 1
        self._hash.update(f"{self._now_s():.9f} {actor} {text}\n".encode(errors="backslashreplace"))
        self.lines.append(Line(self._now_s(), actor, text))

    @property
    def digest(self) -> str:
        """Equal for two runs in which the same things happened in the same order."""
        return self._hash.hexdigest()
