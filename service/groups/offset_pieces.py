"""Pieces of requests about very many offsets, each of which fits into a slice, and their answers. [P]"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any


def pieces(request: Any, at_once: int, partitions: str = "partitions") -> Iterator[Any]:
    """Yield requests of no more than `at_once` positions, in the order asked; a topic counts as one, too.

    `partitions`: the field of a topic that lists them.
    """
    topics, room = [], at_once
    for topic in request.topics:
        asked, at = getattr(topic, partitions), 0
        while True:
            taken = asked[at : at + max(room - 1, 1)]
            topics.append(_with(topic, **{partitions: taken}))
            at += len(taken)
            room -= len(taken) + 1
            if room <= 1:
                yield _with(request, topics=tuple(topics))
                topics, room = [], at_once
            if at >= len(asked):
                break
    if topics:
        yield _with(request, topics=tuple(topics))


def _with(message: Any, **fields: Any) -> Any:
    """Return a changed copy: a message that was read by hand is a tuple."""
    change = getattr(message, "_replace", None)
    return replace(message, **fields) if change is None else change(**fields)


def add_topics(topics: dict[Any, Any], more: Iterable[Any]) -> None:
    """Add answered topics to `topics`, by all their fields but the last, which are their partitions."""
    for topic in more:
        before = topics.get(topic[:-1])
        if before is not None:
            topic = topic._replace(partitions=before.partitions + topic.partitions)
        topics[topic[:-1]] = topic
