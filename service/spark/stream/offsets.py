"""A stream's offsets as Spark's checkpoint has them, and the shares of the next micro-batch. [P]

``{"flights": {"0": 123, "1": 456}}``, as Spark's Kafka source writes it: the offset of the next record. A
topic has the user's name of it, which may be its id. The identity of what was read is beside the topics,
under a key that no topic can have, so that another topic of the same name is not mistaken for it:
``"@firn": {"cluster": "…", "topics": {"flights": "<its id>"}}``, and ``"names"`` of topics that the user
names by id. Spark compares offsets as text, so their order is fixed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from uuid import UUID

from service.base.errors import ConfigError, CorruptionError
from service.remote.format.keys import MAX_OFFSET, MAX_PARTITION

Spot = tuple[str, int]
"""Topic, as the user wrote it, and partition."""
Offsets = Mapping[Spot, int]
OWN_KEY: Final = "@firn"
"""Key of the source's own fields; names of topics cannot contain its ``@``."""
_OWN_FIELDS: Final = frozenset({"cluster", "topics", "names"})


class TopicIdentity(NamedTuple):
    """The identity of a topic, whatever the user calls it."""

    topic_id: UUID
    name: str


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """Offsets that a stream has reached, and their cluster and topics, by the user's names.

    Checkpoints of older versions have neither cluster nor topics.
    """

    offsets: Offsets
    cluster_id: str | None = None
    topics: Mapping[str, TopicIdentity] = field(default_factory=dict)

    def name_of(self, asked: str) -> str:
        """Return the topic's name, as far as it is known."""
        topic = self.topics.get(asked)
        return asked if topic is None else topic.name


def encode_position(position: StreamPosition) -> dict[str, Any]:
    """Return the document for Spark, which writes it as JSON."""
    document: dict[str, Any] = dict(encode_offsets(position.offsets))
    own: dict[str, Any] = {}
    if position.cluster_id is not None:
        own["cluster"] = position.cluster_id
    topics = sorted(position.topics.items())
    if topics:
        own["topics"] = {asked: str(topic.topic_id) for asked, topic in topics}
    names = {asked: topic.name for asked, topic in topics if topic.name != asked}
    if names:
        own["names"] = names
    return with_own(document, own)


def with_own(document: dict[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Add the source's own fields to the offsets; `CorruptionError` for a topic of that name."""
    if OWN_KEY in document:
        raise CorruptionError(f"the archive has a topic {OWN_KEY!r}, as no cluster can have")
    return {**document, OWN_KEY: dict(own)} if own else document


def decode_position(document: Any) -> StreamPosition:
    """Parse a position from Spark's checkpoint; `ConfigError` if this source has not written it."""
    if not isinstance(document, dict):
        raise _foreign(document)
    own = document.get(OWN_KEY, {})
    offsets = decode_offsets({topic: row for topic, row in document.items() if topic != OWN_KEY})
    if not isinstance(own, dict) or own.keys() - _OWN_FIELDS:
        raise _foreign(own)
    cluster, ids, names = own.get("cluster"), own.get("topics", {}), own.get("names", {})
    if not (isinstance(cluster, str | None) and _is_texts(ids) and _is_texts(names)):
        raise _foreign(own)
    try:
        topics = {asked: TopicIdentity(UUID(text), names.get(asked, asked)) for asked, text in ids.items()}
    except ValueError as e:
        raise _foreign(own) from e
    return StreamPosition(offsets, cluster, topics)


def _is_texts(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())


def _foreign(found: object) -> ConfigError:
    return ConfigError(f"the checkpoint is not one of this source, or of a newer one: {str(found)[:200]}")


def encode_offsets(offsets: Offsets) -> dict[str, dict[str, int]]:
    """Return the offsets as Spark's Kafka source writes them, for ``startingOffsets`` as well.

    >>> encode_offsets({("b", 10): 7, ("b", 9): 8, ("a", 0): 0})
    {'a': {'0': 0}, 'b': {'9': 8, '10': 7}}
    """
    document: dict[str, dict[str, int]] = {}
    for topic, partition in sorted(offsets):
        document.setdefault(topic, {})[str(partition)] = offsets[topic, partition]
    return document


def decode_offsets(document: Any) -> dict[Spot, int]:
    """Parse the offsets of topics; `ConfigError` if they are none."""
    offsets: dict[Spot, int] = {}
    rows = document.items() if isinstance(document, dict) else [("", None)]
    for topic, row in rows:
        if not isinstance(row, dict):
            raise _foreign(document)
        for partition, offset in row.items():
            if not (
                str(partition).isascii()
                and str(partition).isdecimal()
                and int(partition) <= MAX_PARTITION
                and isinstance(offset, int)
                and not isinstance(offset, bool)
                and 0 <= offset <= MAX_OFFSET
            ):
                raise ConfigError(f"the checkpoint has {offset!r} for partition {partition!r} of {topic!r}")
            offsets[topic, int(partition)] = offset
    return offsets


class Backlog(NamedTuple):
    """The offsets that a partition has to read: from `begin_offset` to before `end_offset`."""

    spot: Spot
    begin_offset: int
    end_offset: int

    @property
    def size(self) -> int:
        return self.end_offset - self.begin_offset


class Taken(NamedTuple):
    """The end of a partition's share, and its cost."""

    end_offset: int
    cost: int


def share_out(
    backlogs: Sequence[Backlog],
    sizes: Sequence[int],
    limit: int,
    take: Callable[[Backlog, int], Taken],
) -> dict[Spot, int]:
    """Return where each partition ends when all may cost `limit`, in proportion to their backlogs.

    `sizes` are the costs of the whole backlogs. `take` says how far a partition gets with its share and what
    that costs; it always advances. A share is rounded up, so small partitions advance while big ones lag.
    Once the limit is used up the rest is left out, so the caller has to begin elsewhere the next time.
    """
    total = sum(sizes)
    left = limit
    ends: dict[Spot, int] = {}
    for backlog, size in zip(backlogs, sizes, strict=True):
        if left <= 0:
            break
        share = -(-limit * size // total) if total else limit
        taken = take(backlog, max(1, min(share, left)))
        ends[backlog.spot] = taken.end_offset
        left -= taken.cost
    return ends


def by_count(backlogs: Sequence[Backlog], limit: int) -> dict[Spot, int]:
    """Share out `limit` offsets, never more.

    >>> by_count([Backlog(("t", 0), 0, 900), Backlog(("t", 1), 50, 150)], 100)
    {('t', 0): 90, ('t', 1): 60}
    """

    def take(backlog: Backlog, share: int) -> Taken:
        count = min(share, backlog.size)
        return Taken(backlog.begin_offset + count, count)

    return share_out(backlogs, [backlog.size for backlog in backlogs], limit, take)


def rotated(backlogs: Iterable[Backlog], after: Spot | None) -> list[Backlog]:
    """Return the backlogs in order, beginning behind `after`, so that each is first in its turn."""
    ordered = sorted(backlogs)
    if after is None:
        return ordered
    cut = sum(backlog.spot <= after for backlog in ordered)
    return ordered[cut:] + ordered[:cut]
