"""Topics that a group is subscribed to after a change, and the hash that detects changed topics. [P]

The hash is only compared with itself: the sum of a 64-bit hash per existing topic, of its name, id and number
of partitions, so that order does not matter; 0 for no topics. Kafka's hash differs: a group that is read from
Kafka's log looks changed once.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b

from service.coordinator.ports import CoordinatorTopic, TopicsView
from service.groups.consumer.group import ConsumerGroup, ConsumerGroupMember, Subscribers


def names_after(
    group: ConsumerGroup,
    changes: Iterable[tuple[ConsumerGroupMember | None, ConsumerGroupMember | None]],
) -> list[str]:
    """Return the names of topics that the group is subscribed to after each (old, new) member has changed.

    A regular expression without subscribers does not count.
    """
    changed: dict[str, int] = {}
    left: dict[str, int] = {}
    for old, new in changes:
        for name in old.topics if old else ():
            changed[name] = changed.get(name, 0) - 1
        for name in new.topics if new else ():
            changed[name] = changed.get(name, 0) + 1
        if old is not None and old.regex:
            left[old.regex] = left.get(old.regex, 0) + 1
        if new is not None and new.regex:
            left[new.regex] = left.get(new.regex, 0) - 1
    for regex, count in left.items():
        resolved = group.regexes.get(regex) if count > 0 and group.regex_members.get(regex) == count else None
        for name in resolved.topics if resolved else ():
            changed[name] = changed.get(name, 0) - 1
    if not changed:
        return list(group.subscribed)
    names = [
        name
        for name, (by_name, by_regex) in group.subscribed.items()
        if by_name + by_regex + changed.pop(name, 0) > 0
    ]
    return names + [name for name, more in changed.items() if more > 0]


def names_resolved(group: ConsumerGroup, resolved: dict[str, frozenset[str]]) -> list[str]:
    """Return the names of topics after these regular expressions have been resolved to these topics."""
    counts = dict(group.subscribed)
    for regex, topics in resolved.items():
        old = group.regexes.get(regex)
        for name in old.topics if old else ():
            counts[name] = Subscribers(counts[name].by_name, counts[name].by_regex - 1)
        for name in topics:
            count = counts.get(name, Subscribers(0, 0))
            counts[name] = Subscribers(count.by_name, count.by_regex + 1)
    return [name for name, count in counts.items() if count.by_name + count.by_regex > 0]


def metadata_hash(names: Iterable[str], topics: TopicsView) -> int:
    """Return the hash of the existing topics with these names."""
    total = 0
    for name in names:
        topic = topics.by_name(name)
        if topic is not None:
            total += _topic_hash(topic)
    return (total + (1 << 63)) % (1 << 64) - (1 << 63)


@lru_cache(maxsize=1 << 16)
def _topic_hash(topic: CoordinatorTopic) -> int:
    digest = blake2b(topic.topic_id.bytes, digest_size=8)
    digest.update(topic.partitions.to_bytes(4, "big"))
    digest.update(topic.name.encode())
    return int.from_bytes(digest.digest(), "big")
