"""One shard at work: its open batch, what waits for the high watermark, its timers and its long work.

Owned by the event loop. Decisions are made at once, when they are asked for. What follows from them later (a
flush, a mark that moved, timers that are due, outcomes for the shard) is done in `_turn`, which the loop
calls by itself: so nobody is re-entered, neither a handler, nor an append that moves the mark, nor the shard.

Offsets, from what is settled to what is not:

    committed <= next_offset (of the log) <= next_offset of the open batch
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from contextlib import suppress
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from kio.schema.errors import ErrorCode

from service.base.errors import InvariantError, RequestError, StorageError
from service.base.purgatory import Operation
from service.base.slices import Slice
from service.base.timers import Timers
from service.base.turn_queues import turn_queues
from service.coordinator.batching import Block, OpenBatch, portions, size_of
from service.coordinator.errors import of_client
from service.coordinator.metrics import RuntimeMetrics
from service.coordinator.ports import PartitionLog
from service.coordinator.shard import (
    LATER,
    Cancel,
    Decide,
    Decision,
    Effect,
    Outcome,
    Producer,
    Record,
    Reply,
    Schedule,
    Shard,
    Work,
)
from service.records.batch import HEADER_SIZE, Codec

_log = logging.getLogger(__name__)
S = TypeVar("S", bound=Shard)

AT_END_OF_TURN: Final = -1
"""A linger time: what is decided in one turn of the loop becomes one batch."""
AGAIN_MS: Final = 500
"""After a timer's write has failed."""
_EFFECT_US: Final = 10
"""To find what a group needs after a load, and to set its timer."""
_AT_ONCE: Final = 32
"""Timers and outcomes that are dealt with in one turn."""
_SETTLED_AT_ONCE: Final = 128
"""Decisions whose askers are told in one turn: some send their answer there and then."""


class RuntimeSettings(NamedTuple):
    """Of one coordinator, as they are now."""

    linger_ms: int = AT_END_OF_TURN
    commit_timeout_ms: int = 5000
    codec: Codec = Codec.NONE
    load_buffer_bytes: int = 5 << 20


class _Pending(NamedTuple):
    """A decision whose outcome is not known yet."""

    decision: Decision[Any]
    ticket: int | None
    """who asked"""
    timer: Hashable | None
    """what asked, if it was a timer"""
    end_offset: int
    since_ms: int
    """monotonic"""


class Asked(Protocol):
    """Who waits for an answer: a future, or what is told as one. Must not ask anything when it is told."""

    def done(self) -> bool: ...

    def set_result(self, result: Any, /) -> None: ...

    def set_exception(self, exception: RequestError, /) -> None: ...


class _Timer(Operation):
    """One of a shard's timers. It may go off before `due_ms`, when that was put off since it was set."""

    __slots__ = ("_due", "_name", "due_ms")

    def __init__(self, due: Callable[[Hashable, _Timer], None], name: Hashable, due_ms: int) -> None:
        super().__init__()
        self._due = due
        self._name = name
        self.due_ms = due_ms

    def happened(self, key: Hashable, amount: int) -> bool:
        return False

    def completed(self, *, expired: bool) -> None:
        self._due(self._name, self)


class Surroundings(NamedTuple):
    """What all shards of a coordinator on this node share."""

    now_ms: Callable[[], int]
    """the wall clock"""
    monotonic_ms: Callable[[], int]
    timers: Timers
    settings: Callable[[], RuntimeSettings]
    metrics: RuntimeMetrics
    work: Callable[[Context[Any], Hashable, Work], None]
    """does long work in slices, then calls `worked`"""


class Context(Generic[S]):
    """An active shard; `reload` is called when the log is not what it should be."""

    def __init__(
        self,
        name: str,
        shard: S,
        log: PartitionLog,
        leader_epoch: int,
        around: Surroundings,
        reload: Callable[[], None],
    ) -> None:
        self.name = name
        self.shard = shard
        self._log = log
        self._leader_epoch = leader_epoch
        self._around = around
        self._reload = reload
        self._loop = asyncio.get_running_loop()
        self._next_offset = log.end_offset
        self._open: OpenBatch | None = None
        self._mark = log.high_watermark
        self._pending: deque[_Pending] = deque()
        self._unseen: deque[tuple[int, Block]] = deque()
        """blocks that are not replayed yet, and the offsets of their first records; see `write_block`"""
        self._asked: dict[int, Asked] = {}
        self._last_ticket = 0
        self._inbox: deque[tuple[Callable[[], Outcome], Hashable | None]] = deque()
        """what is to be decided in a later turn, each with the timer that it is of"""
        self._timers: dict[Hashable, _Timer] = {}
        self._works: dict[Hashable, Work] = {}
        self._patience: _Timer | None = None
        self._flush_at: asyncio.TimerHandle | None = None
        self._is_due = False
        self._wants_turn = False
        self._is_turning = False
        self._was_refused = False
        self.is_closed = False

    async def begin(self) -> None:
        """The shard holds all of the log: it is asked once this has returned. May be cancelled."""
        self._log.listen(self._marked)
        self._wants_turn = True  # none before all timers are there
        piece = Slice()
        for effect in self.shard.loaded(self._around.now_ms()):
            if piece.charge(_EFFECT_US):
                await piece.next_turn()
            self._carry_out((effect,))
        self._wants_turn = False
        self._marked(self._log.high_watermark)

    # -- what comes from outside

    @property
    def max_batch_bytes(self) -> int:
        """No batch of the log may be larger."""
        return self._log.max_batch_bytes

    def ask(self, decide: Decide[S, Any], asked: Asked) -> None:
        """Decide; `asked` gets the answer, or a `RequestError`."""
        self._last_ticket += 1
        ticket = self._last_ticket
        self._asked[ticket] = asked
        self._decide(lambda: decide(self.shard, ticket, self._around.now_ms()), ticket, None)

    def now_ms(self) -> int:
        """The time of what is decided now."""
        return self._around.now_ms()

    def write_block(
        self, block: Block, response: object, effects: tuple[Effect, ...], asked: Asked, now_ms: int
    ) -> bool:
        """What is decided already, as a decision that is asked for now would be; `asked` gets `response`.

        The block is replayed when it is committed, and so without a way back; or as soon as anybody decides
        something who might look at it. False: it does not go into this batch, and nothing was done.
        """
        batch, around = self._open, self._around
        since_ms = around.monotonic_ms()
        if batch is None:
            batch = OpenBatch(self._next_offset, since_ms)
        if not batch.has_room(block.size, self._log.max_batch_bytes) or not batch.takes_encoded(now_ms):
            return False
        offset = batch.next_offset
        batch.add_block(block, now_ms)
        self._unseen.append((offset, block))
        self._open = batch
        if effects:
            self._carry_out(effects)
        self._last_ticket += 1
        self._asked[self._last_ticket] = asked
        decision = Decision(response)
        self._pending.append(_Pending(decision, self._last_ticket, None, batch.next_offset, since_ms))
        around.metrics.waiting += 1
        self._flush_soon()
        return True

    def later(self, decide: Callable[[], Outcome]) -> None:
        """Decide in one of the next turns; nobody waits for it."""
        self._inbox.append((decide, None))
        self._wake()

    def worked(self, name: Hashable, work: Work, result: object) -> None:
        """Long work is done; what was replaced meanwhile is forgotten.

        Where the shard cannot decide on the result, its timer of that name goes off after `AGAIN_MS`.
        """
        if self.is_wanted(name, work):
            del self._works[name]
            self._decide(lambda: self.shard.worked(name, result, self._around.now_ms()), None, name)

    def work_failed(self, name: Hashable, work: Work) -> None:
        """Set the shard's timer of that name to `AGAIN_MS`: the steps of its long work raised an error."""
        if self.is_wanted(name, work):
            del self._works[name]
            if name not in self._timers:
                self._schedule(name, AGAIN_MS)

    def is_wanted(self, name: Hashable, work: Work) -> bool:
        """Whether anybody still waits for this work."""
        return not self.is_closed and self._works.get(name) is work

    def close(self) -> None:
        """The partition is led elsewhere, or its log has to be read anew: whoever waits is told so."""
        self.is_closed = True
        self._log.listen(None)
        for timer in (*self._timers.values(), *((self._patience,) if self._patience else ())):
            self._around.timers.purgatory.forget(timer)
        self._timers.clear()
        self._works.clear()
        self._inbox.clear()
        if self._flush_at is not None:
            self._flush_at.cancel()
        self._around.metrics.waiting -= len(self._pending)
        self._pending.clear()
        self._unseen.clear()
        self._open = None
        for ticket in tuple(self._asked):
            self._answer(ticket, RequestError(ErrorCode.not_coordinator, f"{self.name} is not led here"))
        self.shard.unloaded()

    # -- deciding

    def _decide(
        self, decide: Callable[[], Decision[Any]], ticket: int | None, timer: Hashable | None
    ) -> None:
        try:
            if self._unseen:
                self._see()
            decision = decide()
        except InvariantError:
            raise
        except RequestError as e:
            self._refused(Decision(None), ticket, timer, e)
        except Exception as e:
            _log.exception("a decision of %s failed; nothing is changed", self.name)
            self._refused(Decision(None), ticket, timer, of_client(e))
        else:
            self._take(decision, ticket, timer)

    def _see(self) -> None:
        """Replay the blocks that are not yet: whoever decides looks at the newest state."""
        while self._unseen:
            offset, block = self._unseen.popleft()
            self.shard.journal.at(offset)
            block.replay(offset, is_committed=False)

    def _see_committed(self, committed: int) -> None:
        """Replay those blocks that are committed, be it a part of the last one."""
        unseen, at = self._unseen, self.shard.journal.at
        while unseen and unseen[0][0] < committed:
            offset, block = unseen.popleft()
            last = offset + block.count - 1
            at(last if last < committed else offset)
            block.replay(offset, is_committed=last < committed)

    def _take(self, decision: Decision[Any], ticket: int | None, timer: Hashable | None) -> None:
        """Write what was decided; what comes of it is told when it is committed."""
        try:
            if decision.records:
                self._write(decision)
        except RequestError as e:
            self._refused(decision, ticket, timer, e)
            return
        if self.is_closed:
            return
        self._carry_out(decision.effects)
        end_offset = self._open.next_offset if self._open is not None else self._next_offset
        pending = _Pending(decision, ticket, timer, end_offset, self._around.monotonic_ms())
        if end_offset <= self.shard.journal.committed_offset:
            self._settle(pending)
            return
        self._pending.append(pending)
        self._around.metrics.waiting += 1
        self._flush_soon()

    def _write(self, decision: Decision[Any]) -> None:
        """Replay the records, each at the offset that it will have. `RequestError`: nothing is changed."""
        records, producer = decision.records, decision.producer
        if producer is not None:
            self._flush()
            self._add(records, producer)
            self._flush(producer)
        elif decision.divisible:
            for portion in portions(records, self._log.max_batch_bytes):
                self._add(portion)
        else:
            self._add(records)

    def _add(self, records: tuple[Record, ...], producer: Producer | None = None) -> None:
        most = self._log.max_batch_bytes
        now_ms, size = self._around.now_ms(), size_of(records)
        if self._open is not None and not self._open.has_room(size, most):
            self._flush()
        batch = self._open or OpenBatch(self._next_offset, self._around.monotonic_ms())
        if not batch.has_room(size, most):
            raise of_client(
                RequestError(
                    ErrorCode.record_list_too_large,
                    f"{len(records)} records of {self.name} exceed {most - HEADER_SIZE} bytes",
                )
            )
        offset = batch.next_offset
        replay, at = self.shard.replay, self.shard.journal.at
        producer_id, producer_epoch = producer or (-1, -1)
        try:
            for key, value in records:
                at(offset)
                replay(offset, key, value, producer_id, producer_epoch)
                offset += 1
        except InvariantError:
            raise
        except Exception as e:
            self.shard.journal.revert_to(batch.next_offset)
            _log.exception("%s cannot replay what it decided; nothing is changed", self.name)
            raise of_client(e) from e
        batch.add(records, size, now_ms)
        self._open = batch

    def _carry_out(self, effects: Iterable[Effect]) -> None:
        """What does not wait for the records; replies do."""
        for effect in effects:
            if isinstance(effect, Schedule):
                self._schedule(effect.name, effect.due_ms - self._around.now_ms())
            elif isinstance(effect, Cancel):
                timer = self._timers.pop(effect.name, None)
                if timer is not None:
                    self._around.timers.purgatory.forget(timer)
            elif isinstance(effect, Work):
                self._works[effect.name] = effect
                self._around.work(self, effect.name, effect)

    # -- writing

    def _flush_soon(self) -> None:
        if self._open is None:
            self._wake()
            return
        linger_ms = self._around.settings().linger_ms
        if linger_ms == 0:
            self._flush_or_tell()
        elif linger_ms < 0:
            self._is_due = True
            self._wake()
        elif self._flush_at is None:
            self._flush_at = self._loop.call_later(linger_ms / 1000, self._lingered)

    def _lingered(self) -> None:
        self._flush_at = None
        self._is_due = True
        self._turn()

    def _flush_or_tell(self) -> None:
        """Those whose decisions are in the batch are told if it fails; nobody else needs to be."""
        with suppress(RequestError):
            self._flush()

    def _flush(self, producer: Producer | None = None) -> None:
        """Append the open batch. `RequestError` where that fails: all of it is as if it had never been, and
        whoever waits for it has been told."""
        batch, self._open = self._open, None
        self._is_due = False
        if batch is None:
            return
        metrics, began_ms = self._around.metrics, self._around.monotonic_ms()
        try:
            data = batch.build(self._around.settings().codec, producer)
            base_offset = self._log.append(data, self._leader_epoch)
        except InvariantError:
            raise
        except Exception as e:
            error = of_client(e)
            metrics.failed_batches += 1
            self._complain(e)
            while self._unseen and self._unseen[-1][0] >= batch.base_offset:
                self._unseen.pop()
            self.shard.journal.revert_to(batch.base_offset)
            self._fail_from(batch.base_offset, error)
            raise error from e
        if base_offset != batch.base_offset:
            _log.error(
                "records of %s are at offset %d, not at %d: it is read anew",
                self.name, base_offset, batch.base_offset,
            )  # fmt: skip
            self._reload()
            raise RequestError(ErrorCode.not_coordinator, f"{self.name} is being read anew")
        self._was_refused = False
        self._next_offset = batch.next_offset
        metrics.batches += 1
        metrics.records += len(batch)
        metrics.linger.observe((began_ms - batch.since_ms) / 1000)
        metrics.flush.observe((self._around.monotonic_ms() - began_ms) / 1000)
        self._wake()

    def _complain(self, error: Exception) -> None:
        """Once, until a write works again: clients try again and again."""
        if not self._was_refused:
            is_bug = not isinstance(error, RequestError | StorageError)
            _log.error("%s cannot be written: %s", self.name, error, exc_info=error if is_bug else None)
        self._was_refused = True

    # -- what comes of it

    def _marked(self, high_watermark: int) -> None:
        """The mark moved, perhaps within our own append."""
        self._mark = max(self._mark, high_watermark)
        self._wake()

    def _wake(self) -> None:
        if not self._wants_turn and not self._is_turning and not self.is_closed:
            self._wants_turn = True
            turn_queues(self._loop).calls.add(self._turn)

    def _turn(self) -> None:
        self._wants_turn = False
        if self._is_due and not self.is_closed:
            self._is_turning = True  # what it would wake us for is done below
            try:
                self._flush_or_tell()
            finally:
                self._is_turning = False
        if self.is_closed:
            return
        self._advance()
        count = _AT_ONCE
        while self._inbox and count:
            count -= 1
            decide, timer = self._inbox.popleft()
            self._decide(decide, None, timer)
        if self._inbox or (
            self._pending and self._pending[0].end_offset <= self.shard.journal.committed_offset
        ):
            self._wake()

    def _advance(self) -> None:
        """Settle what the mark has passed."""
        committed = min(self._mark, self._next_offset)
        self.shard.journal.commit(committed)
        if self._unseen:
            self._see_committed(committed)
        pending, metrics = self._pending, self._around.metrics
        now_ms = self._around.monotonic_ms()
        count = _SETTLED_AT_ONCE
        while count and pending and pending[0].end_offset <= committed:
            count -= 1
            one = pending.popleft()
            metrics.waiting -= 1
            metrics.purgatory.observe((now_ms - one.since_ms) / 1000)
            self._settle(one)
        if pending and committed < pending[0].end_offset <= self._next_offset and self._patience is None:
            self._be_patient(pending[0])

    def _settle(self, pending: _Pending) -> None:
        """It is committed: tell everybody."""
        decision = pending.decision
        if pending.ticket is not None and decision.response is not LATER:
            self._answer(pending.ticket, decision.response)
        for effect in decision.effects:
            if isinstance(effect, Reply):
                self._answer(effect.ticket, effect.response)
        if decision.event is not None:
            self._tell(decision.event, None)

    def _fail_from(self, offset: int, error: RequestError) -> None:
        """What waits for records at `offset` and later will never be committed."""
        failed = []
        while self._pending and self._pending[-1].end_offset > offset:
            failed.append(self._pending.pop())
        self._around.metrics.waiting -= len(failed)
        for one in reversed(failed):
            self._refused(one.decision, one.ticket, one.timer, error)

    def _refused(
        self, decision: Decision[Any], ticket: int | None, timer: Hashable | None, error: RequestError
    ) -> None:
        if ticket is not None:
            self._answer(ticket, error)
        for effect in decision.effects:
            if isinstance(effect, Reply):
                self._answer(effect.ticket, error)
        if decision.event is not None:
            self._tell(decision.event, error.code)
        if timer is not None and timer not in self._timers and not self.is_closed:
            self._schedule(timer, AGAIN_MS)

    def _answer(self, ticket: int, response: object) -> None:
        """Once; whoever has gone away, or has an answer, needs none."""
        asked = self._asked.pop(ticket, None)
        if asked is None or asked.done():
            return
        if isinstance(response, RequestError):
            asked.set_exception(response)
        else:
            asked.set_result(response)

    def _tell(self, event: Hashable, error: ErrorCode | None) -> None:
        self.later(lambda: self.shard.written(event, error, self._around.now_ms()))

    # -- time

    def _be_patient(self, oldest: _Pending) -> None:
        """So long and no longer is the mark waited for."""
        due_ms = oldest.since_ms + self._around.settings().commit_timeout_ms
        patience = _Timer(self._ran_out, None, due_ms)
        self._patience = patience
        left_ms = due_ms - self._around.monotonic_ms()
        self._around.timers.watch(patience, (), max(left_ms, 0) / 1000)

    def _ran_out(self, name: Hashable, timer: _Timer) -> None:
        """What has waited for too long fails; its records stay, and may be committed yet."""
        self._patience = None
        self._advance()
        now_ms, timeout_ms = self._around.monotonic_ms(), self._around.settings().commit_timeout_ms
        error = of_client(RequestError(ErrorCode.request_timed_out, f"{self.name} was not committed in time"))
        committed = self.shard.journal.committed_offset
        while (
            self._pending
            and self._pending[0].end_offset > committed
            and now_ms - self._pending[0].since_ms >= timeout_ms
        ):
            one = self._pending.popleft()
            self._around.metrics.waiting -= 1
            self._around.metrics.timeouts += 1
            self._refused(one.decision, one.ticket, one.timer, error)
        self._wake()

    def _schedule(self, name: Hashable, after_ms: int) -> None:
        """Sessions are put off again and again: that moves no timer, which looks again when it goes off."""
        due_ms = self._around.monotonic_ms() + max(after_ms, 0)
        before = self._timers.get(name)
        if before is not None:
            if before.is_waiting and before.due_ms <= due_ms:
                before.due_ms = due_ms
                return
            self._around.timers.purgatory.forget(before)
        timer = self._timers[name] = _Timer(self._due, name, due_ms)
        self._around.timers.watch(timer, (), max(after_ms, 0) / 1000)

    def _due(self, name: Hashable, timer: _Timer) -> None:
        left_ms = timer.due_ms - self._around.monotonic_ms()
        if left_ms > 0:
            self._around.timers.watch(timer, (), left_ms / 1000)
            return
        self._inbox.append((lambda: self._expired(name, timer), name))
        self._wake()

    def _expired(self, name: Hashable, timer: _Timer) -> Outcome:
        """Unless it was replaced or cancelled while it waited for its turn."""
        if self._timers.get(name) is not timer:
            return Decision(None)
        del self._timers[name]
        return self.shard.expired(name, self._around.now_ms())
