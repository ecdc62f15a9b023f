"""One active shard: its open batch, the decisions that wait for the high watermark, its timers and long work.

Owned by the event loop. Requests are decided when they arrive. Later steps (flushes, high watermarks, due
timers, outcomes for the shard) run in `_turn`, which the loop calls by itself: so neither a handler, nor an
append that moves the high watermark, nor the shard is re-entered.

Offsets, from settled to open:

    committed <= next_offset (of the log) <= next_offset of the open batch
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar

from kio.schema.errors import ErrorCode

from service.base.errors import InvariantError, RequestError
from service.base.slices import Slice
from service.base.turn_queues import turn_queues
from service.coordinator.answers import refuse
from service.coordinator.batching import OpenBatch, RecordBlock, WholeBatch, size_of, split_records
from service.coordinator.environment import ShardEnvironment
from service.coordinator.errors import client_error
from service.coordinator.failed_appends import FailedAppends
from service.coordinator.pending_decisions import NEVER, OverdueDecisions, PendingAnswer, PendingDecision
from service.coordinator.ports import PartitionLog, ResponseSink
from service.coordinator.shard import (
    LATER,
    BackgroundWork,
    Cancel,
    CoordinatorRecord,
    CoordinatorResult,
    Decide,
    DeferredReply,
    Effect,
    Outcome,
    Producer,
    Schedule,
    Shard,
)
from service.coordinator.shard_timers import ShardTimer, ShardTimers
from service.coordinator.tickets import Tickets
from service.coordinator.unreplayed_blocks import UnreplayedBlocks
from service.hot.markers import Marker
from service.records.batch import HEADER_SIZE

_log = logging.getLogger(__name__)
S = TypeVar("S", bound=Shard)

_AT_ONCE: Final = 32
"""Timers and outcomes handled in one turn."""
_SETTLED_AT_ONCE: Final = 128
"""Decisions answered in one turn: some sinks send their response at once."""


class ShardContext(Generic[S]):
    """An active shard; it calls `reload` when the log's offsets differ from the shard's."""

    def __init__(
        self,
        name: str,
        shard: S,
        log: PartitionLog,
        leader_epoch: int,
        env: ShardEnvironment,
        reload: Callable[[], None],
    ) -> None:
        self.name = name
        self.shard = shard
        self._log = log
        self._leader_epoch = leader_epoch
        self._env = env
        self.now_ms: Final = env.now_ms
        """returns the wall-clock time of a decision made now"""
        self._reload = reload
        self._loop = asyncio.get_running_loop()
        self._calls = turn_queues(self._loop).calls
        self._next_offset = self.loaded_end = log.end_offset
        self._open: OpenBatch | None = None
        self._mark = log.high_watermark
        self._pending: deque[PendingDecision | PendingAnswer] = deque()
        self._overdue = OverdueDecisions()
        """all of them before those of `_pending`"""
        self._unreplayed = UnreplayedBlocks(shard.journal)
        self._tickets = Tickets()
        self._inbox: deque[tuple[Callable[[], Outcome], Hashable | None]] = deque()
        """decisions for a later turn, each with its timer"""
        self._timers = ShardTimers(env.timers, env.monotonic_ms, self._timer_due)
        self._works: dict[Hashable, BackgroundWork] = {}
        self._commit_timer: ShardTimer | None = None
        self._flush_at: asyncio.TimerHandle | None = None
        self._is_due = self._wants_turn = self._is_turning = False
        self._alone_ms = -1
        self._failures = FailedAppends(name, env.metrics)
        self.is_closed = False

    async def begin(self) -> None:
        """Start a loaded shard; it takes requests once this has returned. May be cancelled."""
        self._log.listen(self._mark_moved)
        self._wants_turn = True  # no turn before all timers are set
        piece = Slice()
        for effect in self.shard.loaded(self._env.now_ms()):
            if piece.is_over():
                await piece.next_turn()
            self._carry_out((effect,))
        self._wants_turn = False
        self._mark_moved(self._log.high_watermark)

    # -- requests

    @property
    def max_batch_bytes(self) -> int:
        """Size limit of a batch of the log."""
        return self._log.max_batch_bytes

    @property
    def commits_alone(self) -> bool:
        """Return whether an append commits what it writes, so that `append_alone` may."""
        return self._log.commits_at_once(1, 0)

    def submit(self, decide: Decide[S, Any], sink: ResponseSink) -> None:
        """Decide; `sink` gets the response, or a `RequestError`."""
        ticket = self._tickets.add(sink)
        self._decide(lambda: decide(self.shard, ticket, self._env.now_ms()), ticket, None)

    def write_block(
        self,
        block: RecordBlock,
        response: object,
        effects: tuple[Effect, ...],
        sink: ResponseSink,
        now_ms: int,
    ) -> bool:
        """Append a block of records as a decision made now; `sink` gets `response`.

        The block is replayed when it is committed, without undo; or before the next decision that may read
        its state. Returns False, with nothing done, if the block does not fit into this batch.
        """
        since_ms = self._env.monotonic_ms()
        batch = self._open or OpenBatch(self._next_offset, since_ms)
        if not batch.has_room(block.size, self._log.max_batch_bytes) or not batch.takes_encoded(now_ms):
            return False
        offset = batch.next_offset
        batch.add_block(block, now_ms)
        self._unreplayed.blocks.append((offset, block))
        self._open = batch
        if effects:
            self._carry_out(effects)
        self._pending.append(PendingAnswer(response, sink, batch.next_offset, since_ms))
        self._env.metrics.waiting += 1
        self._flush_soon()
        return True

    def append_alone(self, block: WholeBatch, effects: tuple[Effect, ...], now_ms: int) -> bool:
        """Append a block as a batch of its own, which commits it, and replay it. Returns False, with nothing
        done, if decisions are open, if the append would not commit it, or if the last such batch is of this
        millisecond: commits that come close together share one. Raises `RequestError`."""
        env, log, count = self._env, self._log, block.count
        began_ms, settings, offset = env.monotonic_ms(), env.settings(), self._next_offset
        if self._open is not None or self._pending or self._overdue.queue or self._unreplayed.blocks:
            return False
        shares = began_ms == self._alone_ms or settings.linger_ms > 0 or settings.codec
        if shares or not log.commits_at_once(count, block.size):
            return False
        self._alone_ms = began_ms
        if effects:
            self._carry_out(effects)
        data = block.build(offset, self._leader_epoch, now_ms)
        self._is_turning = True  # nobody waits for the high watermark that this append moves
        try:
            base_offset = log.append_built(data, count, now_ms, self._leader_epoch)
        except InvariantError:
            raise
        except Exception as e:
            raise self._failures.note(e) from e
        finally:
            self._is_turning = False
        if base_offset != offset:
            raise self._reload_from(offset, base_offset)
        self._failures.has_failed = False
        self._next_offset = end = offset + count
        if self._mark < end:
            raise InvariantError(f"{self.name} is committed to {self._mark}, not {end}, after an append")
        journal = self.shard.journal
        journal.commit(end)
        journal.at(end - 1)
        block.replay(offset)
        env.metrics.appended_alone(count, env.monotonic_ms() - began_ms)
        return True

    def write_marker(self, marker: Marker, sink: ResponseSink) -> None:
        """Append the end of a transaction behind all that is decided, and apply it; `sink` gets None when it
        is committed, or a `RequestError`.

        The order of offsets is the order of the log: what was written before the marker is replayed before it
        (invariant X10).
        """
        try:
            self._flush()
            offset = self._log.append_marker(marker, self._leader_epoch)
        except InvariantError:
            raise
        except Exception as e:
            if not isinstance(e, RequestError):
                self._failures.log(e)
            refuse(sink, client_error(e))
            return
        if offset != self._next_offset:
            refuse(sink, self._reload_from(self._next_offset, offset))
            return
        self._unreplayed.replay_all()
        self.shard.journal.at(offset)
        self.shard.replay_marker(marker.producer_id, marker.producer_epoch, marker.is_commit)
        self._next_offset = offset + 1
        self._pending.append(PendingAnswer(None, sink, self._next_offset, self._env.monotonic_ms()))
        self._env.metrics.waiting += 1
        self._wake()

    def later(self, decide: Callable[[], Outcome]) -> None:
        """Decide in one of the next turns, without a response."""
        self._inbox.append((decide, None))
        self._wake()

    def worked(self, name: Hashable, work: BackgroundWork, result: object) -> None:
        """Pass the result of long work to the shard, unless the work was replaced meanwhile.

        If the shard fails to decide on the result, its timer of that name fires after `AGAIN_MS`.
        """
        if self.is_wanted(name, work):
            del self._works[name]
            self._decide(lambda: self.shard.worked(name, result, self._env.now_ms()), None, name)

    def work_failed(self, name: Hashable, work: BackgroundWork) -> None:
        """Set the shard's timer of that name to `AGAIN_MS`: the steps of its long work raised an error."""
        if self.is_wanted(name, work):
            del self._works[name]
            self._timers.set_again(name)

    def is_wanted(self, name: Hashable, work: BackgroundWork) -> bool:
        """Return whether this work has been neither replaced nor dropped."""
        return not self.is_closed and self._works.get(name) is work

    def close(self) -> None:
        """Drop the shard: another node leads it, or its log is loaded again. Waiting requests fail."""
        self.is_closed = True
        self._log.listen(None)
        if self._commit_timer is not None:
            self._env.timers.purgatory.forget(self._commit_timer)
        self._timers.close()
        self._works.clear()
        self._inbox.clear()
        if self._flush_at is not None:
            self._flush_at.cancel()
        self._env.metrics.waiting -= len(self._pending) + len(self._overdue.queue)
        pending = tuple(self._pending)
        self._pending.clear()
        self._overdue.clear()
        self._unreplayed.blocks.clear()
        self._open = None
        error = RequestError(ErrorCode.not_coordinator, f"this node does not lead {self.name}")
        for one in pending:
            if isinstance(one, PendingAnswer):
                one.fail(error)
        self._tickets.refuse_all(error)
        self.shard.unloaded()

    # -- decisions

    def _decide(
        self, decide: Callable[[], CoordinatorResult[Any]], ticket: int | None, timer: Hashable | None
    ) -> None:
        try:
            if self._unreplayed.blocks:
                self._unreplayed.replay_all()
            decision = decide()
        except InvariantError:
            raise
        except RequestError as e:
            self._fail(CoordinatorResult(None), ticket, timer, e)
        except Exception as e:
            _log.exception("a decision of %s failed, nothing is changed", self.name)
            self._fail(CoordinatorResult(None), ticket, timer, client_error(e))
        else:
            self._append_records(decision, ticket, timer)

    def _append_records(
        self, decision: CoordinatorResult[Any], ticket: int | None, timer: Hashable | None
    ) -> None:
        """Append the decision's records; its outcome is reported when they are committed."""
        try:
            if decision.records:
                self._write(decision)
        except RequestError as e:
            self._fail(decision, ticket, timer, e)
            return
        if self.is_closed:
            return
        self._carry_out(decision.effects)
        end_offset = self._open.next_offset if self._open is not None else self._next_offset
        if end_offset <= self.shard.journal.committed_offset:
            self._settle(decision, ticket)
            return
        pending = PendingDecision(decision, ticket, timer, end_offset, self._env.monotonic_ms())
        self._pending.append(pending)
        self._env.metrics.waiting += 1
        self._flush_soon()

    def _write(self, decision: CoordinatorResult[Any]) -> None:
        """Replay the records, each at its future offset. `RequestError`: nothing is changed."""
        records, producer = decision.records, decision.producer
        if producer is not None:
            self._flush()
            self._add(records, producer)
            self._flush(producer)
        elif decision.divisible:
            for portion in split_records(records, self._log.max_batch_bytes):
                self._add(portion)
        else:
            self._add(records, spare_bytes=decision.spare_bytes)

    def _add(
        self, records: tuple[CoordinatorRecord, ...], producer: Producer | None = None, spare_bytes: int = 0
    ) -> None:
        most = self._log.max_batch_bytes - spare_bytes
        now_ms, size = self._env.now_ms(), size_of(records)
        if self._open is not None and not self._open.has_room(size, most):
            self._flush()
        batch = self._open or OpenBatch(self._next_offset, self._env.monotonic_ms())
        if not batch.has_room(size, most):
            raise client_error(
                RequestError(
                    ErrorCode.record_list_too_large,
                    f"{len(records)} records of {self.name} exceed {most - HEADER_SIZE} bytes",
                )
            )
        offset = batch.next_offset
        replay, at = self.shard.replay, self.shard.journal.at
        producer_id, producer_epoch = (-1, -1) if producer is None else producer[:2]
        try:
            for key, value in records:
                at(offset)
                replay(offset, key, value, producer_id, producer_epoch)
                offset += 1
        except InvariantError:
            raise
        except Exception as e:
            self.shard.journal.revert_to(batch.next_offset)
            _log.exception("%s failed to replay its decision, nothing is changed", self.name)
            raise client_error(e) from e
        batch.add(records, size, now_ms)
        self._open = batch

    def _carry_out(self, effects: Iterable[Effect]) -> None:
        """Carry out effects that do not wait for the commit; replies do."""
        for effect in effects:
            if isinstance(effect, Schedule):
                self._timers.set(effect.name, effect.due_ms - self._env.now_ms())
            elif isinstance(effect, Cancel):
                self._timers.cancel(effect.name)
            elif isinstance(effect, BackgroundWork):
                self._works[effect.name] = effect
                self._env.work(self, effect.name, effect)

    # -- appends

    def _flush_soon(self) -> None:
        if self._open is None:
            self._wake()
            return
        if self._is_due:
            return  # a turn is to come
        linger_ms = self._env.settings().linger_ms
        if linger_ms == 0:
            self._try_flush()
        elif linger_ms < 0:
            self._is_due = True
            self._wake()
        elif self._flush_at is None:
            self._flush_at = self._loop.call_later(linger_ms / 1000, self._lingered)

    def _lingered(self) -> None:
        self._flush_at = None
        self._is_due = True
        self._turn()

    def _try_flush(self) -> None:
        """Flush; if that fails, `_flush` has answered the decisions of the batch."""
        with suppress(RequestError):
            self._flush()

    def _flush(self, producer: Producer | None = None) -> None:
        """Append the open batch. `RequestError`: it is reverted, and its decisions are answered."""
        batch, self._open = self._open, None
        self._is_due = False
        if batch is None:
            return
        metrics, began_ms = self._env.metrics, self._env.monotonic_ms()
        try:
            data = batch.build(self._env.settings().codec, producer)
            base_offset = self._log.append(
                data, self._leader_epoch, None if producer is None else producer.guard
            )
        except InvariantError:
            raise
        except Exception as e:
            error = self._failures.note(e)
            self._unreplayed.revert_to(batch.base_offset)
            self.shard.journal.revert_to(batch.base_offset)
            self._fail_from(batch.base_offset, error)
            raise RequestError(error.code, error.message or "") from e  # the other one is theirs (`refuse`)
        if base_offset != batch.base_offset:
            raise self._reload_from(batch.base_offset, base_offset)
        self._failures.has_failed = False
        self._next_offset = batch.next_offset
        metrics.batches += 1
        metrics.records += len(batch)
        metrics.linger.observe((began_ms - batch.since_ms) / 1000)
        metrics.flush.observe((self._env.monotonic_ms() - began_ms) / 1000)
        self._wake()

    def _reload_from(self, expected: int, offset: int) -> RequestError:
        """Load the shard again: somebody else has appended to its log. Returns the error for who asked."""
        _log.error(
            "records of %s were appended at offset %d instead of %d, reloading the shard",
            self.name, offset, expected,
        )  # fmt: skip
        self._reload()
        return RequestError(ErrorCode.not_coordinator, f"{self.name} is reloading")

    # -- outcomes

    def _mark_moved(self, high_watermark: int) -> None:
        self._mark = max(self._mark, high_watermark)
        self._wake()

    def _wake(self) -> None:
        if not self._wants_turn and not self._is_turning and not self.is_closed:
            self._wants_turn = True
            self._calls.add(self._turn)

    def _turn(self) -> None:
        self._wants_turn = False
        if self._is_due and not self.is_closed:
            self._is_turning = True  # this turn does below what a wake-up would ask for
            try:
                self._try_flush()
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
        waiting = self._overdue.queue or self._pending
        if self._inbox or (waiting and waiting[0].end_offset <= self.shard.journal.committed_offset):
            self._wake()

    def _advance(self) -> None:
        """Answer the decisions that the high watermark has passed."""
        committed = min(self._mark, self._next_offset)
        self.shard.journal.commit(committed)
        if self._unreplayed.blocks:
            self._unreplayed.replay_committed(committed)
        pending, metrics = self._pending, self._env.metrics
        now_ms = self._env.monotonic_ms()
        count = _SETTLED_AT_ONCE
        if self._overdue.queue:
            late = self._overdue.committed(committed, count)
            count -= len(late)
            metrics.waiting -= len(late)
            for overdue in late:
                self._settle(overdue.decision, overdue.ticket)
        while count and pending and pending[0].end_offset <= committed:
            count -= 1
            one = pending.popleft()
            metrics.waiting -= 1
            metrics.purgatory.observe((now_ms - one.since_ms) / 1000)
            if isinstance(one, PendingAnswer):
                one.send()
            else:
                self._settle(one.decision, one.ticket)
        if self._commit_timer is None and (
            self._overdue.queue or (pending and committed < pending[0].end_offset <= self._next_offset)
        ):
            self._arm_commit_timeout()

    def _settle(self, decision: CoordinatorResult[Any], ticket: int | None) -> None:
        """Answer a committed decision."""
        if ticket is not None and decision.response is not LATER:
            self._tickets.respond(ticket, decision.response)
        for effect in decision.effects:
            if isinstance(effect, DeferredReply):
                self._tickets.respond(effect.ticket, effect.response)
        if decision.event is not None:
            self._notify_written(decision.event, None)

    def _fail_from(self, offset: int, error: RequestError) -> None:
        """Fail the decisions with records at `offset` or later, which will never be committed."""
        failed: list[PendingDecision | PendingAnswer] = []
        while self._pending and self._pending[-1].end_offset > offset:
            failed.append(self._pending.pop())
        while (late := self._overdue.reverted(offset)) is not None:
            failed.append(late)
        self._env.metrics.waiting -= len(failed)
        for one in reversed(failed):
            if isinstance(one, PendingAnswer):
                one.fail(error)
            else:
                self._fail(one.decision, one.ticket, one.timer, error)

    def _fail(
        self,
        decision: CoordinatorResult[Any],
        ticket: int | None,
        timer: Hashable | None,
        error: RequestError,
    ) -> None:
        """Report that the decision's records will never be committed."""
        self._tickets.fail(decision, ticket, error)
        if decision.event is not None:
            self._notify_written(decision.event, error.code)
        if timer is not None:
            self._timers.set_again(timer)

    def _notify_written(self, event: Hashable, error: ErrorCode | None) -> None:
        self.later(lambda: self.shard.written(event, error, self._env.now_ms()))

    # -- time

    def _arm_commit_timeout(self) -> None:
        """Set the timer that limits the wait for the high watermark."""
        due_ms = self._overdue.next_due_ms
        if self._pending:
            due_ms = min(due_ms, self._pending[0].since_ms + self._env.settings().commit_timeout_ms)
        if due_ms == NEVER:
            return
        timer = ShardTimer(self._commit_timed_out, None, due_ms)
        self._commit_timer = timer
        left_ms = due_ms - self._env.monotonic_ms()
        self._env.timers.watch(timer, (), max(left_ms, 0) / 1000)

    def _commit_timed_out(self, name: Hashable, timer: ShardTimer) -> None:
        """Answer those who have waited too long; the records stay, and may still be committed.

        So the shard is not told of anything: an event gets the true outcome.
        """
        self._advance()
        now_ms, timeout_ms = self._env.monotonic_ms(), self._env.settings().commit_timeout_ms
        committed = self.shard.journal.committed_offset
        ran_out: list[PendingDecision | PendingAnswer] = []
        while (
            self._pending
            and self._pending[0].end_offset > committed
            and now_ms - self._pending[0].since_ms >= timeout_ms
        ):
            one = self._pending.popleft()
            if isinstance(one, PendingAnswer):
                self._env.metrics.waiting -= 1
                ran_out.append(one)
                continue
            if one.is_remembered:
                self._overdue.add(one)
            else:
                self._env.metrics.waiting -= 1
                if one.timer is not None:
                    self._timers.set_again(one.timer)
            if one.decision.patience_ms is None:
                ran_out.append(one)
        while (late := self._overdue.out_of_patience(now_ms)) is not None:
            if late.end_offset > committed:
                ran_out.append(late)
        error = client_error(RequestError(ErrorCode.request_timed_out, f"{self.name}: commit timed out"))
        for one in ran_out:
            self._env.metrics.timeouts += 1
            if isinstance(one, PendingAnswer):
                one.fail(error)
            else:
                self._tickets.fail(one.decision, one.ticket, error)
        self._commit_timer = None
        self._wake()

    def _timer_due(self, name: Hashable, timer: ShardTimer) -> None:
        self._inbox.append((lambda: self._expired(name, timer), name))
        self._wake()

    def _expired(self, name: Hashable, timer: ShardTimer) -> Outcome:
        """Handle a due timer, unless it was replaced or cancelled while it waited for its turn."""
        if not self._timers.take(name, timer):
            return CoordinatorResult(None)
        return self.shard.expired(name, self._env.now_ms())
