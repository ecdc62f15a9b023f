"""A leader of one partition for the shards of a coordinator: log, mark, timers and long work, on a clock.

What the runtime does with a decision is done here in the plainest way, and everything that may happen to a
write can be asked for: it fails, it is not committed for a while, the leader is lost and the log read anew.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, Generic, NamedTuple, TypeVar

from kio.schema.errors import ErrorCode

from service.base.errors import RequestError
from service.base.steps import at_once
from service.coordinator.shard import (
    LATER,
    BackgroundWork,
    Cancel,
    CoordinatorRecord,
    CoordinatorResult,
    DeferredReply,
    Effect,
    Schedule,
    Shard,
)

S = TypeVar("S", bound=Shard)


class Written(NamedTuple):
    record: CoordinatorRecord
    producer_id: int


class Marker(NamedTuple):
    """The end of a transaction."""

    producer_id: int
    commit: bool


class Undecided(NamedTuple):
    decision: CoordinatorResult[Any]
    ticket: int | None
    end_offset: int


class ShardLeader(Generic[S]):
    """`answers` by ticket: a response, or a `RequestError`. A second answer to a ticket is an error."""

    def __init__(self, make: Callable[[], S], now_ms: int = 1_000_000_000) -> None:
        self._make = make
        self.shard = make()
        self.log: list[Written | Marker] = []
        self.sizes: list[int] = []
        """records of each decision that had some"""
        self.mark = 0
        self.now_ms = now_ms
        self.timers: dict[Hashable, int] = {}
        self.answers: dict[int, Any] = {}
        self.asked = 0
        self.failing: ErrorCode | None = None
        """writes fail, with this error"""
        self.lagging = False
        """writes are not committed"""
        self.long_work: list[BackgroundWork] | None = None
        """where there is a list, work waits there for `do_work`"""
        self._undecided: list[Undecided] = []
        self._inbox: list[Callable[[], CoordinatorResult[Any]]] = []
        self._began_at = 0
        self._effects(self.shard.loaded(now_ms))

    # Asking.

    def ask(self, decide: Callable[[S, int, int], CoordinatorResult[Any]]) -> int:
        """The ticket of the answer."""
        self.asked += 1
        ticket = self.asked
        try:
            decision = decide(self.shard, ticket, self.now_ms)
        except RequestError as e:
            self._answer(ticket, e)
            return ticket
        self._take(decision, ticket)
        return ticket

    def tell(self, decide: Callable[[S, int], CoordinatorResult[Any]]) -> None:
        self._take(decide(self.shard, self.now_ms), None)

    def waits(self, ticket: int) -> bool:
        return ticket not in self.answers

    # What happens.

    def do_work(self) -> None:
        """The work that waited is done, and none waits any more."""
        work, self.long_work = self.long_work or [], None
        for one in work:
            self._take(self._work(one), None)

    def end_transaction(self, producer_id: int, commit: bool) -> None:
        """Write the marker of a transaction."""
        self.shard.journal.at(len(self.log))
        self.shard.replay_marker(producer_id, 0, commit)
        self.log.append(Marker(producer_id, commit))
        if not self.lagging:
            self._advance()

    def advance(self, ms: int) -> None:
        """Time passes; timers go off at their time."""
        until = self.now_ms + ms
        while True:
            due = min(((at, n) for n, at in enumerate(self.timers.values())), default=None)
            if due is None or due[0] > until:
                break
            name = list(self.timers)[due[1]]
            del self.timers[name]
            self.now_ms = max(self.now_ms, due[0])
            self._take(self.shard.expired(name, self.now_ms), None)
        self.now_ms = until

    def commit(self) -> None:
        """The mark is where the log ends, and goes with it from now on."""
        self.lagging = False
        self._advance()

    def reload(self, log: list[Written | Marker] | None = None) -> None:
        """Another leader reads `log`; whoever waits is told NOT_COORDINATOR."""
        for ticket in range(self._began_at + 1, self.asked + 1):
            if ticket not in self.answers:
                self._answer(ticket, RequestError(ErrorCode.not_coordinator))
        self._began_at = self.asked
        self.log = list(self.log if log is None else log)
        self.timers, self._undecided, self._inbox = {}, [], []
        self.shard = load(self._make, self.log)
        self.mark, self.lagging, self.failing = len(self.log), False, None
        self._effects(self.shard.loaded(self.now_ms))
        self._settle()

    # As the runtime does it.

    def _take(self, decision: CoordinatorResult[Any], ticket: int | None) -> None:
        base = len(self.log)
        producer_id = -1 if decision.producer is None else decision.producer.producer_id
        for n, record in enumerate(decision.records):
            self.shard.journal.at(base + n)
            self.shard.replay(base + n, record.key, record.value, producer_id)
        self._effects(decision.effects)
        if decision.records and self.failing is not None:
            self.shard.journal.revert_to(base)
            self._refuse(decision, ticket, self.failing)
        else:
            self.sizes += [len(decision.records)] * bool(decision.records)
            self.log += (Written(record, producer_id) for record in decision.records)
            self._undecided.append(Undecided(decision, ticket, len(self.log)))
        if not self.lagging:
            self._advance()
        self._settle()

    def _advance(self) -> None:
        self.mark = len(self.log)
        self.shard.journal.commit(self.mark)
        while self._undecided and self._undecided[0].end_offset <= self.mark:
            decision, ticket, _ = self._undecided.pop(0)
            if ticket is not None and decision.response is not LATER:
                self._answer(ticket, decision.response)
            for effect in decision.effects:
                if isinstance(effect, DeferredReply):
                    self._answer(effect.ticket, effect.response)
            self._tell(decision, None)
        self._settle()

    def fail_uncommitted(self, error: ErrorCode) -> None:
        """All that is not committed is lost, as if it had never been written."""
        self.shard.journal.revert_to(self.mark)
        del self.log[self.mark :]
        undecided, self._undecided = self._undecided, []
        for decision, ticket, _ in undecided:
            self._refuse(decision, ticket, error)
        self._settle()

    def _refuse(self, decision: CoordinatorResult[Any], ticket: int | None, error: ErrorCode) -> None:
        if ticket is not None:
            self._answer(ticket, RequestError(error))
        for effect in decision.effects:
            if isinstance(effect, DeferredReply):
                self._answer(effect.ticket, RequestError(error))
        self._tell(decision, error)

    def _tell(self, decision: CoordinatorResult[Any], error: ErrorCode | None) -> None:
        if decision.event is not None:
            event = decision.event
            self._inbox.append(lambda: self.shard.written(event, error, self.now_ms))

    def _settle(self) -> None:
        while self._inbox:
            self._take(self._inbox.pop(0)(), None)

    def _effects(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Schedule):
                self.timers.pop(effect.name, None)
                self.timers[effect.name] = effect.due_ms
            elif isinstance(effect, Cancel):
                self.timers.pop(effect.name, None)
            elif isinstance(effect, BackgroundWork) and self.long_work is not None:
                self.long_work.append(effect)
            elif isinstance(effect, BackgroundWork):
                self._inbox.append(lambda work=effect: self._work(work))  # type: ignore[misc]

    def _work(self, work: BackgroundWork) -> CoordinatorResult[Any]:
        return self.shard.worked(work.name, at_once(work.steps), self.now_ms)

    def _answer(self, ticket: int, response: Any) -> None:
        if ticket > self._began_at:
            self.answers.setdefault(ticket, response)


def load(make: Callable[[], S], log: list[Written | Marker]) -> S:
    """The shard that this log makes."""
    shard = make()
    for offset, entry in enumerate(log):
        shard.journal.at(offset)
        if isinstance(entry, Marker):
            shard.replay_marker(entry.producer_id, 0, entry.commit)
        else:
            shard.replay(offset, entry.record.key, entry.record.value, entry.producer_id)
        shard.journal.commit(offset + 1)
    return shard
