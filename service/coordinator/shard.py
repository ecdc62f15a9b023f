"""Interface between a log-backed shard and its runtime: the shard decides, replayed records change it. [P]

Order of a write: ``decide`` reads the newest state and changes nothing durable. The runtime replays the
decision's records at once, at the offsets that they will have, and carries out `Schedule`, `Cancel` and
`BackgroundWork`. It sends the response and each `DeferredReply` when the high watermark passes the decision's
last record; without records, when all writes before it are committed. If the write fails, the runtime reverts
the timeline, sends the error instead of the response and replies, and calls `Shard.written`.

A commit that takes too long has no outcome: who asked gets an error, while the state stays as it is, and
`Shard.written` is called once the log has decided (ADR 45).

So what the log says is changed by replay alone (invariant G1), and nobody is told what is not committed
(invariant G2).

Volatile state (members that wait in a rebalance, ends of sessions) is not in the timeline. Events change it;
`Shard.replay` never does, except that it may drop the volatile state of what it removes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from enum import Enum
from typing import Final, Generic, Literal, NamedTuple, Protocol, TypeAlias, TypeVar
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.steps import Steps
from service.base.timeline import Journal
from service.hot.verification import VerificationGuard

R = TypeVar("R")


class CoordinatorRecord(NamedTuple):
    """One record with encoded key and value. Without a value it is a tombstone."""

    key: bytes
    value: bytes | None


class Later(Enum):
    """The type of `LATER`."""

    LATER = "later"


LATER: Final = Later.LATER
"""Stands for a response that a later decision's `DeferredReply` gives."""


class DeferredReply(NamedTuple):
    """Response to a request whose decision was `LATER`. A `RequestError` is raised to the caller.

    A ticket gets one response; a reply to a ticket that has one, or whose caller is gone, does nothing.
    """

    ticket: int
    response: object


class Schedule(NamedTuple):
    """Call `Shard.expired` with `name` at `due_ms`; replaces the timer of that name."""

    name: Hashable
    due_ms: int


class Cancel(NamedTuple):
    """Remove the timer of this name."""

    name: Hashable


class BackgroundWork(NamedTuple):
    """Run `steps` in slices over the next turns, then call `Shard.worked` with their result.

    Replaces unfinished work of the same name. The steps must not change the shard; when the state that they
    read has changed, `Shard.worked` drops the result. If the steps, or the decision on their result, fail,
    `Shard.expired` is called with `name` some time later, so that the work can restart.
    """

    name: Hashable
    steps: Steps[object]


Effect: TypeAlias = DeferredReply | Schedule | Cancel | BackgroundWork


class Producer(NamedTuple):
    """Transactional producer of a decision's records. `guard`: of its verification, where its transaction is
    not open in the log (`hot/verification`)."""

    producer_id: int
    producer_epoch: int
    guard: VerificationGuard | None = None


class CoordinatorResult(NamedTuple, Generic[R]):
    """Result of a request or an event.

    `event` is passed to `Shard.written` once the records are committed or have failed, however late that is.
    `divisible`: the records may be split into batches anywhere (expiry). `producer`: the records are part of
    its transaction; they go in a batch of their own. `patience_ms`: how long who asked waits for the commit;
    None or less than the coordinator's own setting: as long as that says. `spare_bytes`: the records are
    refused unless a batch has room for so many bytes more, since what must follow them is larger.
    """

    response: R | Literal[Later.LATER]
    records: tuple[CoordinatorRecord, ...] = ()
    effects: tuple[Effect, ...] = ()
    event: Hashable | None = None
    divisible: bool = False
    producer: Producer | None = None
    patience_ms: int | None = None
    spare_bytes: int = 0


Outcome: TypeAlias = CoordinatorResult[None]
"""A decision without a response."""

NOTHING: Final[Outcome] = CoordinatorResult(None)


class Shard(Protocol):
    """State of one partition of a coordinator's topic. Times are wall-clock ms."""

    @property
    def journal(self) -> Journal: ...

    def replay(
        self, offset: int, key: bytes, value: bytes | None, producer_id: int = -1, producer_epoch: int = -1
    ) -> None:
        """Apply one record to the state; the journal is at `offset` already.

        Raises CorruptionError for a record that does not parse. A record of an unknown type changes nothing.
        """

    def replay_marker(self, producer_id: int, producer_epoch: int, commit: bool) -> None:
        """Apply the end of a transaction; the journal is at its marker's offset."""

    def loaded(self, now_ms: int) -> Iterable[Effect]:
        """Return the timers of the state, once all of the log is replayed. Called once; its result is
        iterated over many turns, in which nothing is replayed.

        What was replayed may not be committed. A timer that is due at once can decide nothing but an
        `event`: `written` gets it when all that was loaded is committed."""

    def expired(self, name: Hashable, now_ms: int) -> Outcome:
        """Handle a due timer. One for something that is gone decides nothing."""

    def worked(self, name: Hashable, result: object, now_ms: int) -> Outcome:
        """Handle the result of the work of this name."""

    def written(self, event: Hashable, error: ErrorCode | None, now_ms: int) -> Outcome:
        """Handle the commit (`error` is None) or the failure of a decision's records; `event` is the
        decision's. Called once, unless the shard is dropped before (`unloaded`)."""

    def topics_changed(self, names: tuple[str, ...], deleted: tuple[UUID, ...], now_ms: int) -> Outcome:
        """Handle topics that were created, grew or were deleted; `deleted` has the ids of deleted ones."""

    def unloaded(self) -> None:
        """Drop the shard: this node no longer leads the partition. The runtime answers each waiting ticket
        with NOT_COORDINATOR."""


S = TypeVar("S", bound=Shard)

Decide: TypeAlias = Callable[[S, int, int], CoordinatorResult[R]]
"""``decide(shard, ticket, now_ms)``; the ticket is for a `DeferredReply` if the decision is `LATER`."""

Query: TypeAlias = Callable[[S, int], R]
"""``query(shard, now_ms)``: reads the committed state only (`Timeline.committed`)."""
