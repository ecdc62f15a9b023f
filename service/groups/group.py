"""Interfaces of a group of either kind, and of the modern groups to their shard. [P]

`Group` is a view of one group: of the newest state for decisions, of the committed one for reads.
`ModernGroups` is all that a shard needs of the KIP-848 groups, which `groups/consumer` implements.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Literal, Protocol, TypeAlias
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.coordinator.shard import CoordinatorRecord, CoordinatorResult, Effect, Outcome
from service.groups.requests import RequestOrigin

CheckPartition: TypeAlias = Callable[[str, UUID | None, int], None]
"""Raises `RequestError`, which fails the whole request, if a member may not commit for (topic, topic id,
partition).
"""


class Group(Protocol):
    """View of one group, valid until the next change."""

    @property
    def kind(self) -> Literal["classic", "consumer"]: ...

    @property
    def state(self) -> str:
        """Kafka's name of the state, for example ``PreparingRebalance``."""

    @property
    def protocol_type(self) -> str | None: ...

    @property
    def member_count(self) -> int: ...

    @property
    def is_empty(self) -> bool:
        """The group has no members and may be deleted."""

    def check_commit(
        self,
        member_id: str,
        instance_id: str | None,
        epoch: int,
        version: int,
        *,
        is_transactional: bool = False,
    ) -> CheckPartition | None:
        """Check a commit of this member and generation (or epoch). Returns None if all partitions are
        allowed.

        `is_transactional`: of a TxnOffsetCommit, which need not name a member. Raises `RequestError`.
        """

    def check_fetch(self, member_id: str | None, epoch: int) -> None:
        """Check that the member may read offsets; a classic group lets everybody. Raises `RequestError`
        UNKNOWN_MEMBER_ID, STALE_MEMBER_EPOCH, ILLEGAL_GENERATION."""

    def check_offset_delete(self) -> None:
        """Check that it is known which topics members read, so that offsets of others may be deleted. Raises
        `RequestError` NON_EMPTY_GROUP."""

    def check_delete(self) -> None:
        """Check that the group may be deleted: it is empty. Raises `RequestError` NON_EMPTY_GROUP."""

    def is_subscribed_to(self, topic: str) -> bool:
        """Return whether the group is, or may be, subscribed to the topic."""

    def expiry_base_ms(self, commit_ms: int) -> int | None:
        """Return when the retention of an offset that was committed at `commit_ms` begins; None: it does not
        expire."""

    def tombstones(self) -> tuple[CoordinatorRecord, ...]:
        """Return the records that delete the group, without its offsets."""


class ModernGroups(Protocol):
    """KIP-848 groups of a shard, and their classic members.

    Names of timers and work, and events, are tuples whose first item says whose they are; ``classic…`` and
    ``offsets…`` belong to others. `group` is always the value in the shard's timeline of groups.
    """

    def view(self, group_id: str, group: Any, committed: bool) -> Group: ...

    def replay(self, offset: int, kind: int, key: bytes, value: bytes | None) -> bool:
        """Replay a record of types 3 to 8 and 16; returns False for another type. Raises
        `CorruptionError`."""

    def join(
        self,
        group_id: str,
        group: Any,
        request: Any,
        client: RequestOrigin,
        ticket: int,
        fresh_id: str,
        now_ms: int,
    ) -> CoordinatorResult[Any]:
        """Handle a JoinGroup to a consumer group that is not empty."""

    def sync(
        self, group_id: str, group: Any, request: Any, client: RequestOrigin, ticket: int, now_ms: int
    ) -> CoordinatorResult[Any]: ...

    def classic_heartbeat(
        self, group_id: str, group: Any, request: Any, client: RequestOrigin, now_ms: int
    ) -> CoordinatorResult[Any]: ...

    def leave(
        self, group_id: str, group: Any, request: Any, client: RequestOrigin, ticket: int, now_ms: int
    ) -> CoordinatorResult[Any]: ...

    def loaded(self, group_id: str, group: Any, now_ms: int) -> tuple[Effect, ...]: ...

    def expired(self, name: Hashable, now_ms: int) -> Outcome: ...

    def worked(self, name: Hashable, result: object, now_ms: int) -> Outcome: ...

    def written(self, event: Hashable, error: ErrorCode | None, now_ms: int) -> Outcome: ...

    def topics_changed(self, names: tuple[str, ...], deleted: tuple[UUID, ...], now_ms: int) -> Outcome:
        """Handle changed topics, except for tombstones of deleted topics' offsets."""
