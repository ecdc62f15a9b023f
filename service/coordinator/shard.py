"""What a log-backed shard is to its runtime: it decides, and it is changed by replaying records alone. [P]

Order of a write: ``decide`` looks at the newest state and changes nothing that survives. The runtime replays
the decision's records at once, at the offsets that they will have, carries out `Schedule`, `Cancel` and
`Work`, and gives the answer and each `Reply` when the high watermark passes the decision's last record;
without records: when all writes before it are committed. If the write fails, the timeline is reverted, the
answer and the replies of that decision become the error, and `Shard.written` is told.

What is volatile (who waits in a round, whose session ends when) is not in the timeline. It is changed by
events and never by `Shard.replay`, except that replay may forget what belonged to something it removes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from enum import Enum
from typing import Final, Generic, Literal, NamedTuple, Protocol, TypeAlias, TypeVar
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.steps import Steps
from service.base.timeline import Journal

R = TypeVar("R")


class Record(NamedTuple):
    """One record as it is written: key and value are bytes already. Without a value it is a tombstone."""

    key: bytes
    value: bytes | None


class Later(Enum):
    """The type of `LATER`."""

    LATER = "later"


LATER: Final = Later.LATER
"""Instead of a response: the answer comes by the `Reply` of a later decision."""


class Reply(NamedTuple):
    """Answers a request that was told `LATER`. A `RequestError` is raised to whoever asked.

    A ticket is answered once; a reply to one that has its answer, or whose asker is gone, does nothing.
    """

    ticket: int
    response: object


class Schedule(NamedTuple):
    """`Shard.expired` is called with `name` at `due_ms`; replaces the timer of that name."""

    name: Hashable
    due_ms: int


class Cancel(NamedTuple):
    """There is no timer of this name any more."""

    name: Hashable


class Work(NamedTuple):
    """Long work: `steps` are done in slices over the next turns, then `Shard.worked` is called with what they
    return. Replaces unfinished work of the same name. The steps must not change the shard; when the state
    that they read has moved on, `Shard.worked` drops the result. Where the steps, or the decision on their
    result, fail, `Shard.expired` is called with `name` some time later, so that the work can begin again.
    """

    name: Hashable
    steps: Steps[object]


Effect: TypeAlias = Reply | Schedule | Cancel | Work


class Producer(NamedTuple):
    """Whose transaction the records of a decision belong to."""

    producer_id: int
    producer_epoch: int


class Decision(NamedTuple, Generic[R]):
    """What comes of a request or an event.

    `event` comes back through `Shard.written` once the records are committed or have failed.
    `divisible`: the records may be cut into batches anywhere (expiry).
    `producer`: the records are part of its transaction; they go in a batch of their own.
    """

    response: R | Literal[Later.LATER]
    records: tuple[Record, ...] = ()
    effects: tuple[Effect, ...] = ()
    event: Hashable | None = None
    divisible: bool = False
    producer: Producer | None = None


Outcome: TypeAlias = Decision[None]
"""A decision nobody waits for."""

NOTHING: Final[Outcome] = Decision(None)


class Shard(Protocol):
    """The state of one partition of a coordinator's topic. Times are ms of the wall clock."""

    @property
    def journal(self) -> Journal: ...

    def replay(
        self, offset: int, key: bytes, value: bytes | None, producer_id: int = -1, producer_epoch: int = -1
    ) -> None:
        """Change the state as one record says; the journal is at `offset` already.

        Raises CorruptionError for a record that does not parse. A record of an unknown type changes nothing.
        """

    def replay_marker(self, producer_id: int, producer_epoch: int, commit: bool) -> None:
        """A transaction ended; the journal is at its marker's offset."""

    def loaded(self, now_ms: int) -> Iterable[Effect]:
        """All of the log was replayed: the timers of what it says. Called once, and gone through over many
        turns, in which nothing is replayed."""

    def expired(self, name: Hashable, now_ms: int) -> Outcome:
        """The timer of this name is due. One for something that is gone decides nothing."""

    def worked(self, name: Hashable, result: object, now_ms: int) -> Outcome:
        """The work of this name is done."""

    def written(self, event: Hashable, error: ErrorCode | None, now_ms: int) -> Outcome:
        """The records of a decision with this event are committed, or failed with this error."""

    def topics_changed(self, names: tuple[str, ...], deleted: tuple[UUID, ...], now_ms: int) -> Outcome:
        """Topics of these names were made, grew or went; those of the ids in `deleted` are gone for good."""

    def unloaded(self) -> None:
        """The partition is led elsewhere: nothing of this is asked for any more. Every ticket that waits is
        answered NOT_COORDINATOR by the runtime."""


S = TypeVar("S", bound=Shard)

Decide: TypeAlias = Callable[[S, int, int], Decision[R]]
"""``decide(shard, ticket, now_ms)``; the ticket is for a `Reply`, should the decision be `LATER`."""

Look: TypeAlias = Callable[[S, int], R]
"""``look(shard, now_ms)``: reads what is committed, and nothing newer (`Timeline.committed`)."""
