"""Members of a classic group during a rebalance: protocols, waiting requests, votes. [P]"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from service.groups.records import ClassicMemberValue

Protocols: TypeAlias = tuple[tuple[str, bytes], ...]
"""names and metadata, the most preferred first"""


def protocols_of(request: Any) -> Protocols:
    """Return the protocols of a JoinGroup. Of a repeated name the first counts (Kafka keeps them in a
    set)."""
    protocols: dict[str, bytes] = {}
    for protocol in request.protocols:
        protocols.setdefault(protocol.name, bytes(protocol.metadata))
    return tuple(protocols.items())


class ClassicGroupMember:
    """One member. `join` and `sync` are the tickets of requests that wait for their responses."""

    __slots__ = (
        "client_host",
        "client_id",
        "instance_id",
        "is_new",
        "join",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session_timeout_ms",
        "sync",
    )

    def __init__(
        self,
        member_id: str,
        instance_id: str | None,
        client_id: str,
        client_host: str,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        protocols: Protocols,
    ) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.session_timeout_ms = session_timeout_ms
        self.protocols = protocols
        self.join: int | None = None
        self.sync: int | None = None
        self.is_new = False
        """in its first rebalance: it has no session yet"""

    @classmethod
    def of_value(cls, value: ClassicMemberValue, protocols: Protocols) -> ClassicGroupMember:
        return cls(
            value.member_id,
            value.instance_id,
            value.client_id,
            value.client_host,
            value.rebalance_timeout_ms,
            value.session_timeout_ms,
            protocols,
        )

    @property
    def waits(self) -> bool:
        """The member waits for a response, so it cannot send heartbeats."""
        return not self.is_new and (self.join is not None or self.sync is not None)

    def metadata(self, protocol: str | None) -> bytes:
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    def value(self, protocol: str | None, assignment: bytes) -> ClassicMemberValue:
        """Return the member's part of the group's record."""
        return ClassicMemberValue(
            self.member_id,
            self.instance_id,
            self.client_id,
            self.client_host,
            self.rebalance_timeout_ms,
            self.session_timeout_ms,
            self.metadata(protocol),
            assignment,
        )


def common_protocols(all_protocols: Iterable[Protocols]) -> set[str]:
    """Return the protocols that all members support."""
    common: set[str] | None = None
    for protocols in all_protocols:
        names = {name for name, _ in protocols}
        common = names if common is None else common & names
    return common or set()


def select_protocol(members: Mapping[str, Protocols]) -> str:
    """Return the protocol with the most votes: each member votes for the first of its list that all support.

    Of equals, the first that was voted for. There is always one: a member must have a protocol in common with
    the others to join.
    """
    candidates = common_protocols(members.values())
    votes: dict[str, int] = {}
    for protocols in members.values():
        choice = next(name for name, _ in protocols if name in candidates)
        votes[choice] = votes.get(choice, 0) + 1
    return max(votes, key=votes.__getitem__)
