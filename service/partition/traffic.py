"""Counters of what clients write to each topic and read from it: plain integers that scrapers read. [P]"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

MOST_TOPICS: Final = 500
"""Default of `firn.metrics.topics.max`."""
OTHERS: Final = "(others)"
"""Stands for topics without counters of their own; no topic can have this name."""


class TopicTraffic:
    """Counters of one topic's partitions on this node, or of all topics that have none of their own."""

    __slots__ = ("fetched_bytes", "fetched_records", "produced_bytes", "produced_records")

    def __init__(self) -> None:
        self.produced_bytes = 0
        self.produced_records = 0
        self.fetched_bytes = 0
        """sent to consumers, from both tiers"""
        self.fetched_records = 0
        """offsets that those bytes cover"""

    @property
    def is_idle(self) -> bool:
        """Return whether nothing was written or read yet."""
        return not (self.produced_bytes or self.fetched_bytes)


class TrafficByTopic:
    """The counters of a node's topics: of the first `most` that it opens, and of all others as one.

    A topic keeps its counters until its last partition leaves the node; another may have their place then.
    """

    def __init__(self, most: int = MOST_TOPICS) -> None:
        self.most = most
        self._topics: dict[str, TopicTraffic] = {}
        self._partitions: dict[str, int] = {}
        """number of open partitions of each topic that has counters"""
        self._others = TopicTraffic()

    def opened(self, topic: str) -> TopicTraffic:
        """Return the counters for one more partition of the topic."""
        found = self._topics.get(topic)
        if found is None:
            if len(self._topics) >= self.most:
                return self._others
            found = self._topics[topic] = TopicTraffic()
        self._partitions[topic] = self._partitions.get(topic, 0) + 1
        return found

    def closed(self, topic: str, traffic: TopicTraffic) -> None:
        """Take back the counters of a partition that is gone."""
        if self._topics.get(topic) is not traffic:
            return
        self._partitions[topic] -= 1
        if not self._partitions[topic]:
            del self._topics[topic], self._partitions[topic]

    def counters(self) -> Mapping[str, TopicTraffic]:
        """Return the counters of topics with traffic, with `OTHERS` last."""
        found = {topic: one for topic, one in tuple(self._topics.items()) if not one.is_idle}
        if not self._others.is_idle:
            found[OTHERS] = self._others
        return found
