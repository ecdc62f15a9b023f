"""What the desk of the cluster hands to pages. [P]"""

from __future__ import annotations

from typing import NamedTuple


class TopicRow(NamedTuple):
    """A topic in the list of all."""

    name: str
    topic_id: str
    partitions: int
    leaderless: int
    short_isr: int


class TopicList(NamedTuple):
    """All topics, as they were at `at_ms` of the monotonic clock; `took_ms` is how long asking took."""

    rows: tuple[TopicRow, ...]
    at_ms: int
    took_ms: int = 0


class Offsets(NamedTuple):
    """The borders of one partition; None where its leader did not say, and why.

    `newest_ms` is the greatest timestamp in it, None where there is none.
    """

    start: int | None
    local_start: int | None
    bucket_end: int | None
    end: int | None
    newest_ms: int | None
    problem: str | None
