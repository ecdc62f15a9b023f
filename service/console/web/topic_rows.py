"""Rows about topics and partitions, from `kafka_desk` to the pages. [P]"""

from __future__ import annotations

from typing import NamedTuple


class TopicSummary(NamedTuple):
    """A topic in the list of all. `replication`: the most replicas that a partition has."""

    name: str
    topic_id: str
    partitions: int
    leaderless: int
    short_isr: int
    replication: int = 0


class TopicFigures(NamedTuple):
    """Bytes on disk of one copy of a topic, and records per second that it grows by; None: not known."""

    size: int | None
    rate: float | None


class TopicList(NamedTuple):
    """All topics at `at_ms` of the monotonic clock; the query took `took_ms`."""

    rows: tuple[TopicSummary, ...]
    at_ms: int
    took_ms: int = 0


class TierOffsets(NamedTuple):
    """Borders of the tiers of one partition; None, with a `problem`, if its leader did not answer.

    `newest_ms` is the greatest timestamp in it, None if there is none.
    """

    start: int | None
    local_start: int | None
    bucket_end: int | None
    end: int | None
    newest_ms: int | None
    problem: str | None
