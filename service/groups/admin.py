"""ListGroups and DescribeGroups: filters, and responses for groups that are not described. [P]"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from service.base.steps import Steps
from service.groups.group import Group
from service.groups.requests import DescribedGroup

DEAD: Final = "Dead"


_STATES: Final = frozenset(
    state.lower()
    for state in (
        "Empty",
        "PreparingRebalance",
        "CompletingRebalance",
        "Stable",
        DEAD,
        "Assigning",
        "Reconciling",
    )
)
_KINDS: Final = frozenset({"classic", "consumer"})


class GroupFilter(NamedTuple):
    """States and kinds in lower case; None matches all. Names that no group can have are dropped."""

    states: frozenset[str] | None
    kinds: frozenset[str] | None

    @classmethod
    def of(cls, states: Sequence[str], kinds: Sequence[str]) -> Steps[GroupFilter]:
        """Read a client's filter, which may be very long; whitespace around a state is ignored."""
        found: tuple[set[str], set[str]] = (set(), set())
        for state in states:
            yield
            found[0].update(_STATES & {state.strip().lower()})
        for kind in kinds:
            yield
            found[1].update(_KINDS & {kind.lower()})
        return cls(frozenset(found[0]) if states else None, frozenset(found[1]) if kinds else None)

    def matches(self, group: Group) -> bool:
        return (self.states is None or group.state.lower() in self.states) and (
            self.kinds is None or group.kind in self.kinds
        )


def not_described(group_id: str, is_of_another_kind: bool, version: int) -> DescribedGroup:
    """Return the response for a group that is missing or not classic: Dead, and an error from version 6 on
    (KIP-1043)."""
    if version < 6:
        return DescribedGroup(group_id, DEAD)
    message = (
        f"Group {group_id} is not a classic group." if is_of_another_kind else f"Group {group_id} not found."
    )
    return DescribedGroup(group_id, DEAD, error_code=ErrorCode.group_id_not_found, error_message=message)
