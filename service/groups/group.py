"""What is asked of a group of whichever kind, and what a shard asks of the modern groups. [P]

`Group` is a look at one group: at the newest state for whoever decides, at the committed one for whoever
reads. `ModernGroups` is all that a shard must know of the groups of KIP-848, which live in `groups/consumer`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Literal, Protocol, TypeAlias
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.coordinator.shard import CoordinatorRecord, CoordinatorResult, Effect, Outcome
from service.groups.requests import Client

CheckPartition: TypeAlias = Callable[[str, UUID | None, int], None]
"""Raises `RequestError` where a member may not commit for (topic, topic id, partition): the whole request
fails.
"""


class Group(Protocol):
    """One group, as it is when it is asked for: not to be kept."""

    @property
    def kind(self) -> Literal["classic", "consumer"]: ...

    @property
    def state(self) -> str:
        """Kafka's name of it, for example ``PreparingRebalance``."""

    @property
    def protocol_type(self) -> str | None: ...

    @property
    def is_empty(self) -> bool:
        """Nobody is a member: the group may go."""

    def check_commit(
        self, member_id: str, instance_id: str | None, epoch: int, version: int
    ) -> CheckPartition | None:
        """Whether a commit of this member and generation (or epoch) is taken. None: for every partition.

        Raises `RequestError`.
        """

    def check_fetch(self, member_id: str | None, epoch: int) -> None:
        """Whether this member may read offsets. Raises `RequestError`."""

    def check_offset_delete(self) -> None:
        """Whether single offsets may be deleted. Raises `RequestError`."""

    def check_delete(self) -> None:
        """Whether the group may be deleted. Raises `RequestError`."""

    def is_subscribed_to(self, topic: str) -> bool:
        """Also where nobody can know."""

    def expiry_base_ms(self, commit_ms: int) -> int | None:
        """From when on the retention of an offset runs that was committed at `commit_ms`; None: it
        does not.
        """

    def tombstones(self) -> tuple[CoordinatorRecord, ...]:
        """The records that end the group, without its offsets."""


class ModernGroups(Protocol):
    """The consumer groups of a shard (KIP-848), classic members among them.

    Names of timers and work, and events, are tuples that begin with a word; those that begin with ``classic``
    or ``offsets`` are not theirs. `group` is always the value that the shard's timeline of groups holds.
    """

    def look(self, group_id: str, group: Any, committed: bool) -> Group: ...

    def replay(self, offset: int, kind: int, key: bytes, value: bytes | None) -> bool:
        """Replays a record of types 3 to 8 and 16; False for any other. Raises `CorruptionError`."""

    def join(
        self, group_id: str, group: Any, request: Any, client: Client, ticket: int, fresh_id: str, now_ms: int
    ) -> CoordinatorResult[Any]:
        """A JoinGroup to a consumer group that is not empty."""

    def sync(
        self, group_id: str, group: Any, request: Any, client: Client, ticket: int, now_ms: int
    ) -> CoordinatorResult[Any]: ...

    def classic_heartbeat(
        self, group_id: str, group: Any, request: Any, client: Client, now_ms: int
    ) -> CoordinatorResult[Any]: ...

    def leave(
        self, group_id: str, group: Any, request: Any, client: Client, ticket: int, now_ms: int
    ) -> CoordinatorResult[Any]: ...

    def loaded(self, group_id: str, group: Any, now_ms: int) -> tuple[Effect, ...]: ...

    def expired(self, name: Hashable, now_ms: int) -> Outcome: ...

    def worked(self, name: Hashable, result: object, now_ms: int) -> Outcome: ...

    def written(self, event: Hashable, error: ErrorCode | None, now_ms: int) -> Outcome: ...

    def topics_changed(self, names: tuple[str, ...], deleted: tuple[UUID, ...], now_ms: int) -> Outcome:
        """The tombstones of deleted topics' offsets are not theirs."""
