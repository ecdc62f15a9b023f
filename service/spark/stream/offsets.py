"""How far a stream has come: its offsets as Spark's checkpoint has them, and the next step from there. [P]

``{"flights": {"0": 123, "1": 456}}``, as Spark's Kafka source writes it: the offset of the next record. A
topic is called what the user called it, name or id. Spark compares offsets as text, so the order is always
the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from service.base.errors import ConfigError
from service.remote.keys import MAX_OFFSET, MAX_PARTITION

Spot = tuple[str, int]
"""Topic, as the user wrote it, and partition."""
Offsets = Mapping[Spot, int]


def encode_offsets(offsets: Offsets) -> dict[str, dict[str, int]]:
    """What Spark gets, which it writes as JSON.

    >>> encode_offsets({("b", 10): 7, ("b", 9): 8, ("a", 0): 0})
    {'a': {'0': 0}, 'b': {'9': 8, '10': 7}}
    """
    document: dict[str, dict[str, int]] = {}
    for topic, partition in sorted(offsets):
        document.setdefault(topic, {})[str(partition)] = offsets[topic, partition]
    return document


def decode_offsets(document: Any) -> dict[Spot, int]:
    """What Spark read back from its checkpoint; `ConfigError` if this source has not written it."""
    offsets: dict[Spot, int] = {}
    rows = document.items() if isinstance(document, dict) else [("", None)]
    for topic, row in rows:
        if not isinstance(row, dict):
            raise ConfigError(f"the checkpoint is not one of this source: {str(document)[:200]}")
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
    """What a partition has to read: from `begin_offset` to before `end_offset`."""

    spot: Spot
    begin_offset: int
    end_offset: int

    @property
    def size(self) -> int:
        return self.end_offset - self.begin_offset


class Taken(NamedTuple):
    """How far a partition goes, and what of the budget that costs."""

    end_offset: int
    cost: int


def share_out(
    backlogs: Sequence[Backlog],
    sizes: Sequence[int],
    limit: int,
    take: Callable[[Backlog, int], Taken],
) -> dict[Spot, int]:
    """Where each partition ends when all together may cost `limit`: in proportion to what they have to read.

    `sizes` are what the backlogs would cost. `take` says how far a partition gets with its share and what
    that costs; it always gets on. A share is rounded up, so small partitions get on too while big ones lag;
    once the limit is used up the rest waits, so whoever calls begins elsewhere the next time.
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
    """`share_out` of so many offsets, never more.

    >>> by_count([Backlog(("t", 0), 0, 900), Backlog(("t", 1), 50, 150)], 100)
    {('t', 0): 90, ('t', 1): 60}
    """

    def take(backlog: Backlog, share: int) -> Taken:
        count = min(share, backlog.size)
        return Taken(backlog.begin_offset + count, count)

    return share_out(backlogs, [backlog.size for backlog in backlogs], limit, take)


def rotated(backlogs: Iterable[Backlog], after: Spot | None) -> list[Backlog]:
    """In order, but beginning behind `after`, so that each is first in its turn."""
    ordered = sorted(backlogs)
    if after is None:
        return ordered
    cut = sum(backlog.spot <= after for backlog in ordered)
    return ordered[cut:] + ordered[:cut]
