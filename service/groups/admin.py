"""ListGroups and DescribeGroups: which groups are named, and how one that is not there is told. [P]"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from service.groups.group import Group
from service.groups.requests import DescribedGroup

DEAD: Final = "Dead"


class Filter(NamedTuple):
    """States and kinds in small letters; an empty set takes all of them, an unknown name none."""

    states: frozenset[str]
    kinds: frozenset[str]

    @classmethod
    def of(cls, states: Iterable[str], kinds: Iterable[str]) -> Filter:
        """As a client wrote them: of a state blanks do not count."""
        return cls(
            frozenset(state.lower().strip() for state in states), frozenset(kind.lower() for kind in kinds)
        )

    def takes(self, group: Group) -> bool:
        return (not self.states or group.state.lower() in self.states) and (
            not self.kinds or group.kind in self.kinds
        )


def not_described(group_id: str, is_of_another_kind: bool, version: int) -> DescribedGroup:
    """A group that is not there, or not classic: dead, and from version 6 on (KIP-1043) an error, too."""
    if version < 6:
        return DescribedGroup(group_id, DEAD)
    message = (
        f"Group {group_id} is not a classic group." if is_of_another_kind else f"Group {group_id} not found."
    )
    return DescribedGroup(group_id, DEAD, error_code=ErrorCode.group_id_not_found, error_message=message)
