"""Descriptions of groups for commands and the console, in plain values. [P]"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

CLASSIC: Final = "classic"
CONSUMER: Final = "consumer"


Partitions = tuple[tuple[str, tuple[int, ...]], ...]
"""(topic, partitions) pairs"""


class GroupRow(NamedTuple):
    """A group in the list of all. `node` is its coordinator; `kind` is `CLASSIC`, `CONSUMER` or another."""

    group_id: str
    node: int
    state: str
    kind: str
    protocol_type: str


class Listing(NamedTuple):
    """Groups of all nodes that answered, sorted by id; `problems` has the errors of the other nodes."""

    rows: tuple[GroupRow, ...]
    problems: tuple[str, ...] = ()


class MemberInfo(NamedTuple):
    """A member. `epoch` and `target` exist in KIP-848 groups; `is_classic`: it uses the classic protocol.

    `problem`: why its assignment is not known.
    """

    member_id: str
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    is_classic: bool
    epoch: int | None
    topics: tuple[str, ...]
    regex: str | None
    assigned: Partitions
    target: Partitions | None = None
    problem: str | None = None


class PartitionProgress(NamedTuple):
    """Progress of a group in a partition. None: nothing committed, no such partition, or no member has it."""

    topic: str
    partition: int
    committed: int | None
    end: int | None
    member_id: str | None

    @property
    def lag(self) -> int | None:
        return None if self.committed is None or self.end is None else self.end - self.committed


class GroupInfo(NamedTuple):
    """One group. `protocol` is the assignor; epochs exist in KIP-848 groups.

    `positions` are sorted; `cut` is the number of positions that were left out.
    """

    row: GroupRow
    protocol: str
    epoch: int | None
    assignment_epoch: int | None
    members: tuple[MemberInfo, ...]
    positions: tuple[PartitionProgress, ...] = ()
    cut: int = 0

    @property
    def lag(self) -> int | None:
        """Total lag of the partitions whose lag is known."""
        known = [one.lag for one in self.positions if one.lag is not None]
        return sum(known) if known else None


class TopicLag(NamedTuple):
    """Partitions of a topic that a group has or has committed in, and their lag; None: not known."""

    topic: str
    partitions: int
    lag: int | None


class GroupSummary(NamedTuple):
    """A group in a list. `members` and `lag` are None where they are not known; `cut` is the number of
    partitions that were left out; `problem`: the group's error."""

    row: GroupRow
    members: int | None
    lag: int | None
    topics: tuple[TopicLag, ...] = ()
    cut: int = 0
    problem: str | None = None


def as_json(info: GroupInfo) -> Mapping[str, object]:
    """Return the group as commands print it in JSON."""
    return {
        **info.row._asdict(),
        "protocol": info.protocol,
        "epoch": info.epoch,
        "assignment_epoch": info.assignment_epoch,
        "lag": info.lag,
        "members": [
            {
                **member._asdict(),
                "assigned": dict(member.assigned),
                "target": None if member.target is None else dict(member.target),
            }
            for member in info.members
        ],
        "positions": [{**one._asdict(), "lag": one.lag} for one in info.positions],
    }
