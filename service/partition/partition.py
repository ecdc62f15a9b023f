"""One replica: its log, its leadership, its high watermark; a key of the purgatory in which fetches wait.

While this node leads and there are other replicas, `leading` decides what is committed. A leader without
followers commits what it appends: its high watermark is the log's end. A follower has the one that its leader
sent. Owned by the event loop.

`archive` has what follows from the bucket: held appends, retention. There are three keys of the purgatory:
the partition, for what consumers may see; `stable`, for what those may that read committed transactions only;
`growth`, for what replicas may.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from kio.schema.errors import ErrorCode

from service.base.errors import InvariantError, RequestError, StorageError
from service.base.purgatory import Purgatory
from service.base.types import NO_LEADER_EPOCH, Buffer, TopicIdPartition
from service.base.weak import weakly
from service.config.settings import LogConfig
from service.hot.log import LocalLog
from service.hot.state import AppendInfo
from service.partition.archive import PartitionArchive
from service.partition.gate import CutGate, PartitionEnd
from service.partition.refused_sequences import RefusedSequences
from service.partition.traffic import TopicTraffic
from service.partition.unified_log import LogRead, UnifiedLog
from service.records.batch import read_header
from service.records.produced_run import ProducedRun
from service.records.validation import AppendOrigin, ValidatedBatch, rules_of
from service.replication.ack_queue import Waiter
from service.replication.leader import MOVED, PROPOSES, LeaderState, ReplicaSession
from service.replication.replica_fetch import ReplicaFetch

if TYPE_CHECKING:
    from service.hot.markers import Marker
    from service.hot.verification import VerificationGuard
    from service.remote.reading.reader import RemoteReader

_log = logging.getLogger(__name__)

_SOME_BYTES: Final = 1 << 40
"""More than any fetch waits for: a woken fetch reads how many there are."""
_MOST_UNCOMMITTED: Final = 256
"""Appends that are tracked separately while they wait for the high watermark."""


class Partition:
    """Replica of one partition on this node; it serves clients while it leads."""

    def __init__(
        self,
        tip: TopicIdPartition,
        local: LocalLog,
        reader: RemoteReader | None,
        leader_epoch: int,
        isr_size: int,
        max_inflated_bytes: int,
        purgatory: Purgatory,
        *,
        is_leader: bool = True,
        high_watermark: int | None = None,
    ) -> None:
        """`high_watermark`: what is known to be committed; None if there is no other replica."""
        self.tip = tip
        self._purgatory = purgatory
        self.unified = UnifiedLog(local, reader)
        self.archive = PartitionArchive(self)
        self.traffic = TopicTraffic()
        """counters of its topic; those of the node once it is registered"""
        self.leading: LeaderState | None = None
        """state of the followers; None while this node does not lead, or has the only replica"""
        self.growth = object()
        """key of the purgatory for appended bytes, committed or not"""
        self.stable = object()
        """key of the purgatory for rises of `last_stable_offset`"""
        self.on_stable: Callable[[], None] | None = None
        """called at such a rise, where somebody waits for it who takes note and acts in a later turn"""
        self.is_leader = is_leader
        """this node leads it, as the committed metadata says; otherwise it serves no clients"""
        self._leader_epoch = leader_epoch
        if is_leader:
            self.leader_epoch = leader_epoch  # noted in the log at once
        self.isr_size = isr_size
        self.replica_count = isr_size
        """used with `isr_size` while `leading` is None"""
        self.on_proposal: Callable[[TopicIdPartition], None] | None = None
        """called when `leading` has a new proposal"""
        self.gate = CutGate()
        """holds the high watermark back for a cut; that of the node once it is registered"""
        self.lows = object()
        """key of the purgatory for rises of `low_watermark`"""
        self.marks: dict[Partition, None] | None = None
        """set of partitions whose high watermark has moved"""
        self._refused_sequences = RefusedSequences(local)
        self._uncommitted: list[tuple[int, int]] = []
        """uncommitted appends: base offset and bytes; the last may cover several"""
        self._state = local.state
        self._producers = local.producers
        self._clock = local.state.world.clock
        self.is_shared = high_watermark is not None
        """other replicas exist, so what is known to be committed may be read from any of them"""
        self.high_watermark = local.log_end_offset
        if high_watermark is not None:
            self.high_watermark = _within(high_watermark, self.unified)
        local.high_watermark_moved(self.high_watermark)  # which need not move again
        local.on_start_moved = weakly(self.changed)
        self._mark_listener: Callable[[int], None] | None = None
        self._max_inflated_bytes = max_inflated_bytes
        self.rules = rules_of(local.config, max_inflated_bytes, str(tip))

    @property
    def leader_epoch(self) -> int:
        """Epoch of the present leader. On our election the log notes its start before any client learns of
        it, so that its end can be reported later, with or without records (KIP-101).

        A log that fails to note it retries before it reports epochs or takes a batch. One that loads the
        tails of a restore has batches of earlier epochs to come: it notes the epoch behind them.
        """
        return self._leader_epoch

    @leader_epoch.setter
    def leader_epoch(self, leader_epoch: int) -> None:
        try:
            if self.archive.loads_to is None:
                self.log.appender.note_leader_epoch(leader_epoch)
        except StorageError as e:
            _log.warning("noting leader epoch %d of %s failed, retrying later: %s", leader_epoch, self.tip, e)
        self._leader_epoch = leader_epoch
        self.changed()

    def lead(self, leader_epoch: int, leading: LeaderState | None) -> None:
        """Lead in this epoch; `leading` if there are other replicas.

        The caller had the log note the epoch before it made `leading`. A `leading` that has applied the new
        epoch's image stays, and its waiting requests continue.
        """
        if leader_epoch != self._leader_epoch or not self.is_leader:
            self._purgatory.happened(self.growth)
            self._refused_sequences.forget()
        before, self.leading = self.leading, leading
        self.is_shared = leading is not None
        self.is_leader = True
        self.leader_epoch = leader_epoch
        if leading is None:
            self._show(self.unified.end_offset, 0)
        elif leading is not before:
            self.gate.doubt(self)
            self._uncommitted.clear()
            self._show(leading.high_watermark, 0)
            if leading.high_watermark < leading.end_offset:
                self._uncommitted.append((leading.high_watermark, _SOME_BYTES))
            self.happened(leading.reevaluate(self._clock.monotonic_ms()))
        self._purgatory.happened(self.lows)
        if before is not None and before is not leading:
            if leading is not None:
                _dismiss(before, ErrorCode.not_leader_or_follower)
            elif self.gate.is_open:
                _dismiss(before, ErrorCode.none)
            else:
                self.gate.when_open(partial(_dismiss, before, ErrorCode.none))

    def follow(self, leader_epoch: int) -> None:
        """Follow from this epoch on, with or without a known leader; waiting requests are answered."""
        if not self.is_leader and leader_epoch == self._leader_epoch:
            return
        self._leader_epoch = leader_epoch
        self.is_leader = False
        self.archive.loaded = None  # the log may be truncated from now on
        self.gate.forget(self)
        self._step_down(ErrorCode.not_leader_or_follower)

    def _step_down(self, error: ErrorCode) -> None:
        leading, self.leading = self.leading, None
        self._mark_listener = None  # the next leader may commit other records at the same offsets
        self._uncommitted.clear()
        if leading is not None:
            _dismiss(leading, error)
        for key in self, self.stable, self.growth, self.lows:
            self._purgatory.happened(key)

    def happened(self, what: int) -> None:
        """Apply the flags that a method of `leading` returned; each caller of one passes them here."""
        leading = self.leading
        if leading is None:
            return
        if what & MOVED:
            self._show(leading.high_watermark, 0)
        if what & PROPOSES and self.on_proposal is not None:
            self.on_proposal(self.tip)

    def _show(self, high_watermark: int, size: int) -> None:
        """Take a high watermark as leader, as soon as the gate lets it be seen; `size` bytes become visible
        by it, 0 where that is not known. While a tail is loading nobody sees any of it."""
        if self.archive.loads_to is not None:
            self.archive.replicated(high_watermark)
            return
        if self.gate.is_open:
            self.raise_mark(high_watermark, size)
        else:
            self.gate.moved(self, high_watermark, size)

    def note_end(self) -> PartitionEnd | None:
        """Return what everybody may see now; None where this node does not lead the partition, may not know
        yet what the leader before has shown, or loads its tail."""
        leading = self.leading
        if not self.is_leader or self.archive.loads_to is not None:
            return None
        if leading is not None and self.high_watermark < leading.epoch_start:
            return None
        return PartitionEnd(
            self._leader_epoch, self.start_offset, self.high_watermark, self.last_stable_offset
        )

    def raise_mark(self, high_watermark: int, size: int) -> None:
        """Show what is committed, and answer who waits for it (`Gated.raise_mark`)."""
        leading = self.leading
        if leading is None and size:
            self._take_mark(high_watermark, size)
            return
        self._set_high_watermark(high_watermark)
        if leading is not None:
            waiters, error = leading.passed()
            for waiter in waiters:
                _answer(waiter, error)

    def reevaluate(self) -> None:
        """Re-evaluate after other brokers of the partition changed: were fenced, for example, or registered
        again."""
        if self.leading is not None:
            self.happened(self.leading.reevaluate(self._clock.monotonic_ms()))
            self._purgatory.happened(self.lows)

    @property
    def low_watermark(self) -> int:
        """Least start offset of the live replicas."""
        return self.start_offset if self.leading is None else self.leading.low_watermark()

    def _set_high_watermark(self, high_watermark: int) -> None:
        """Set the high watermark: consumers see records below it, followers get it with the next response."""
        if high_watermark == self.high_watermark:
            return
        if self.marks is not None:
            self.marks[self] = None
        size = passed = 0
        for base_offset, appended in self._uncommitted:
            if base_offset >= high_watermark:
                break
            passed += 1
            size += appended
        del self._uncommitted[:passed]
        self._take_mark(high_watermark, size or _SOME_BYTES)
        self._purgatory.happened(self.growth, 0)

    def _take_mark(self, high_watermark: int, size: int) -> None:
        """Take a new high watermark, by which `size` bytes became visible; nothing else takes one.

        Nothing else raises the last stable offset either, so this is where its waiters learn of that. Raises
        `InvariantError` if the offset falls while this node leads (invariant X5).
        """
        producers = self._producers
        if producers.transactions is None or producers.first_unstable_offset is None:
            self.high_watermark, stable_size = high_watermark, size
        else:
            before = self.last_stable_offset
            self.unified.local.high_watermark_moved(high_watermark)
            self.high_watermark = high_watermark
            stable = self.last_stable_offset
            if stable < before and self.is_leader:
                raise InvariantError(f"last stable offset of {self.tip} fell from {before} to {stable}")
            stable_size = _SOME_BYTES if stable > before else 0
        watched = self._purgatory.watched
        if self in watched:
            self._purgatory.happened(self, size)
        if stable_size:
            if self.stable in watched:
                self._purgatory.happened(self.stable, stable_size)
            if self.on_stable is not None:
                self.on_stable()
        if self._mark_listener is not None:
            self._mark_listener(high_watermark)

    def set_follower_high_watermark(self, high_watermark: int) -> None:
        """Set a follower's high watermark to its leader's, at most to the log's end."""
        if not self.is_leader:
            self.is_shared = True
            self._set_high_watermark(_within(high_watermark, self.unified))

    def check_leads(self) -> None:
        """Raise `RequestError` NOT_LEADER_OR_FOLLOWER if this node does not lead the partition."""
        if not self.is_leader:
            raise RequestError(
                ErrorCode.not_leader_or_follower,
                f"this node does not lead {self.tip} in epoch {self._leader_epoch}",
            )

    @property
    def start_offset(self) -> int:
        """First offset that a client can read."""
        return self.unified.start_offset

    @property
    def is_offline(self) -> bool:
        """The log's files cannot be trusted any more."""
        return self.unified.local.failure is not None

    @property
    def log(self) -> LocalLog:
        """Local tier, for work on segments (offload, retention)."""
        return self.unified.local

    @property
    def config(self) -> LogConfig:
        return self._state.config

    @property
    def last_stable_offset(self) -> int:
        """Offset below which each transaction has ended: the high watermark, or the first offset of a
        transaction whose marker is not committed (Kafka `UnifiedLog.lastStableOffset`)."""
        mark = self.high_watermark
        if self._producers.transactions is None:
            return mark  # as of most logs, at each fetch
        first = self._producers.first_unstable_offset
        if first is None or first >= mark:
            return mark
        return min(max(first, self.unified.start_offset), mark)

    def configure(self, config: LogConfig) -> None:
        """Apply new topic settings, from the next append on."""
        self.unified.local.config = config
        if self.leading is not None:
            self.happened(self.leading.configure(config.min_insync_replicas, self._clock.monotonic_ms()))
        self.rules = rules_of(config, self._max_inflated_bytes, str(self.tip))
        self.archive.configure(config)
        self.changed()

    def delete_records(self, offset: int) -> int:
        """Have the log delete its records below `offset`, as the leader; return its start.

        Makes nothing durable; `SegmentDeletion.delete_below_start` deletes the segments. Raises
        `RequestError` NOT_LEADER_OR_FOLLOWER, KAFKA_STORAGE_ERROR while the bucket's part of the log is not
        known, and what `UnifiedLog.delete_records` raises (Kafka `Partition.deleteRecordsOnLeader`).
        """
        self.log.check()
        self.check_leads()
        self.archive.check_held("does not delete records")
        if self.unified.delete_records(offset, self.high_watermark):
            self.changed()
        return self.start_offset

    @property
    def end_offset(self) -> int:
        """End of the log, committed or not: what replicas can read."""
        return self.unified.end_offset

    def check_epoch(self, current_leader_epoch: int, *, needs_leader: bool = True) -> None:
        """Compare the client's leader epoch with ours (KIP-320); check that we lead, or follow if any replica
        will do.

        Raises `RequestError` FENCED_LEADER_EPOCH if the client's is older, UNKNOWN_LEADER_EPOCH if it is
        newer, NOT_LEADER_OR_FOLLOWER if neither and another leads; `StorageError` if the replica is offline.
        """
        self.log.check()
        epoch = self._leader_epoch
        if current_leader_epoch in (NO_LEADER_EPOCH, epoch):
            if not self.is_leader and (needs_leader or not self.is_shared):
                self.check_leads()
            return
        behind = current_leader_epoch < epoch
        code = ErrorCode.fenced_leader_epoch if behind else ErrorCode.unknown_leader_epoch
        raise RequestError(code, f"leader epoch of {self.tip} is {epoch}, not {current_leader_epoch}")

    def check_replicas(self, records: Buffer | None = None) -> bool:
        """Check that a batch with acks=all may be appended; called before the batch is parsed, as in Kafka.

        `records`: of a producer. A duplicate of a batch in the log is allowed, and a batch after a rejected
        one is not (`RefusedSequences`). Returns whether any batch may be appended, whatever its sequence.

        Raises `RequestError` NOT_ENOUGH_REPLICAS if fewer replicas are in sync than ``min.insync.replicas``,
        or than there are replicas if that is less (Kafka `Partition.effectiveMinIsr`).
        """
        leading = self.leading
        if leading is None:
            in_sync = self.isr_size
            least = min(self._state.config.min_insync_replicas, self.replica_count)
            are_enough = in_sync >= least
        else:
            in_sync, least = len(leading.in_sync), leading.min_isr
            are_enough = leading.check_replicas() is ErrorCode.none
        if are_enough and not self._refused_sequences:
            return True
        is_allowed = are_enough
        if records is not None:
            is_allowed = self._refused_sequences.allows(records, are_enough=are_enough)
        if not is_allowed:
            before = ", and an earlier batch was rejected" if are_enough else ""
            raise RequestError(
                ErrorCode.not_enough_replicas,
                f"{in_sync} in-sync replicas of {self.tip}, there must be {least}{before}",
            )
        return False

    def append(
        self, batch: ValidatedBatch, now_ms: int, guard: VerificationGuard | None = None
    ) -> AppendInfo:
        """Append one validated batch as leader and wake waiting fetches. `guard`: of `begin_verification`,
        for a transactional batch that was verified.

        Raises, with nothing written, `RequestError` KAFKA_STORAGE_ERROR while appends are held,
        NOT_ENOUGH_REPLICAS for a verified batch behind one that was not appended (`RefusedSequences`), and
        the errors of the log's own checks (sequence numbers, verification).
        """
        if self.archive.held is not None:
            self.archive.check_held("does not take records")
        if guard is not None:
            self._refused_sequences.check_verified(batch.header, guard)
        info = self.unified.local.append(batch, self._leader_epoch, now_ms, guard)
        if info.duplicate:
            return info
        if self.leading is None:
            if self.gate.is_open:
                self._take_mark(self._state.end_offset, len(batch.data))
            else:
                self.gate.moved(self, self._state.end_offset, len(batch.data))
        else:
            self.grown(self.leading, info.first_offset, len(batch.data))
        return info

    def append_markers(self, markers: Sequence[Marker], now_ms: int) -> list[AppendInfo | RequestError]:
        """Append transaction markers as leader, in one write; return the result of each.

        Raises, with nothing written, `RequestError` NOT_LEADER_OR_FOLLOWER, NOT_ENOUGH_REPLICAS and
        KAFKA_STORAGE_ERROR while appends are held, `StorageError` if this replica is offline.
        """
        log = self.log
        log.check()
        self.check_leads()
        self.check_replicas()
        self.archive.check_held("does not take markers")
        before, size = log.log_end_offset, log.size
        results = log.append_markers(markers, self._leader_epoch, now_ms)
        if log.log_end_offset > before:
            if self.leading is None:
                self._show(self.unified.end_offset, log.size - size)
            else:
                self.grown(self.leading, before, log.size - size)
        return results

    def grown(self, leading: LeaderState, first_offset: int, size: int) -> None:
        """Account for `size` bytes that were appended as the leader of other replicas."""
        uncommitted = self._uncommitted
        if len(uncommitted) < _MOST_UNCOMMITTED:
            uncommitted.append((first_offset, size))
        else:
            uncommitted[-1] = uncommitted[-1][0], uncommitted[-1][1] + size
        what = leading.appended(self._clock.monotonic_ms())
        self._purgatory.happened(self.growth, size)
        self.happened(what)

    def append_records(
        self,
        batch: bytearray,
        leader_epoch: int,
        now_ms: int,
        guard: VerificationGuard | None = None,
        records: int = 0,
    ) -> int:
        """Append a batch that this node built itself, as a coordinator does; returns its base offset.

        `guard`: see `append`. `records`: their number in a batch of no producer whose times are all `now_ms`,
        where this node has the only replica; its header is not read then. Raises, with nothing written,
        `RequestError` NOT_LEADER_OR_FOLLOWER in another epoch than `leader_epoch`, NOT_ENOUGH_REPLICAS,
        MESSAGE_TOO_LARGE, and the errors of `append`.
        """
        state = self._state
        if state.failure is not None:
            state.check()
        if not self.is_leader:
            self.check_leads()
        if leader_epoch != self._leader_epoch:
            raise RequestError(
                ErrorCode.not_leader_or_follower,
                f"leader epoch of {self.tip} is {self._leader_epoch}, not {leader_epoch}",
            )
        self.check_replicas()
        if len(batch) > state.config.max_message_bytes:
            raise RequestError(
                ErrorCode.message_too_large,
                f"batch of {len(batch)} bytes, {self.tip} takes {state.config.max_message_bytes}",
            )
        if not records:
            header = read_header(batch)
            count, time, origin = header.record_count, header.max_timestamp, AppendOrigin.COORDINATOR
            validated = ValidatedBatch(memoryview(batch), header, time, 0, count, origin)
            return self.append(validated, now_ms, guard).first_offset
        base_offset = state.end_offset
        if self.archive.held is not None:
            self.archive.check_held("does not take records")
        self.unified.local.appender.append_built(batch, records, now_ms, leader_epoch)
        if self.gate.is_open:
            self._take_mark(state.end_offset, len(batch))
        else:
            self.gate.moved(self, state.end_offset, len(batch))
        return base_offset

    def listen(self, listener: Callable[[int], None] | None) -> None:
        """Call `listener` with each new high watermark while this node leads, instead of the previous
        listener. It is called within the append that moves the high watermark: it takes note and acts in a
        later turn."""
        self._mark_listener = listener

    def read_to_end(self, offset: int, max_bytes: int) -> LogRead:
        """Read committed and uncommitted records, for a coordinator that loads its state; see
        `UnifiedLog.read`."""
        return self.unified.read(offset, max_bytes, self.unified.end_offset, min_one=True)

    def judge_replica(
        self, asked: ReplicaFetch, session: ReplicaSession | None, *, is_first: bool, is_named: bool = True
    ) -> tuple[int, int] | None:
        """Check a replica's fetch, and note its offset if it `is_first`: not a fetch that has waited.
        `is_named`: the fetch names the partition, otherwise this is the session's last request.

        Returns the epoch and end offset at which its log diverges from ours; None if it may have the records
        at its offset. Raises `RequestError` in Kafka's order (`replication/replica_fetch.py`), `StorageError`
        if this replica is offline. `session` confirms the offset from now on, unless the fetch is rejected.
        """
        self.log.check()
        leading = self.leading
        if leading is None:
            self.check_epoch(asked.leader_epoch)
            is_current = asked.leader_epoch == self._leader_epoch
            raise RequestError(
                ErrorCode.unknown_leader_epoch if is_current else ErrorCode.not_leader_or_follower,
                f"broker {asked.replica_id} has no replica of {self.tip}",
            )
        if is_first and leading.counts(asked, session, is_named=is_named):
            verdict, what = leading.fetched(asked, session, self._clock.monotonic_ms())
            self.happened(what)
            self._purgatory.happened(self.lows)
        else:
            verdict = leading.judge(asked)
        is_granted = verdict.error is ErrorCode.none and verdict.diverging is None
        if session is not None and not is_granted:
            leading.detach(asked.replica_id, session)
        if verdict.error is not ErrorCode.none:
            raise RequestError(verdict.error, verdict.why)
        return verdict.diverging

    def close(self) -> None:
        """Stop serving a removed replica: answer waiting requests, and note no more high watermarks."""
        self.marks = None
        self.is_leader = False
        self.gate.forget(self)
        self._step_down(
            ErrorCode.kafka_storage_error if self.is_offline else ErrorCode.not_leader_or_follower
        )

    def changed(self) -> None:
        """Notify fetches that responses may differ, without more bytes."""
        self._purgatory.happened(self, 0)
        self._purgatory.happened(self.stable, 0)
        if self.leading is not None:
            self._purgatory.happened(self.growth, 0)


def append_produced(partition: Partition, run: ProducedRun, now_ms: int) -> bool:
    """Append a run as `Partition.append` does each batch; False, with nothing written, if it cannot."""
    if partition.archive.held is not None:
        return False
    if not partition.unified.local.appender.append_produced(run, partition.leader_epoch, now_ms):
        return False
    end, size = run.last_offset + 1, len(run.data)
    if partition.leading is not None:
        partition.grown(partition.leading, run.base_offset, size)
    elif partition.gate.is_open:
        partition._take_mark(end, size)
    else:
        partition.gate.moved(partition, end, size)
    return True


def _within(offset: int, log: UnifiedLog) -> int:
    """Return the offset of the log that is nearest to `offset`."""
    return min(max(offset, log.start_offset), log.end_offset)


def _dismiss(leading: LeaderState, error: ErrorCode) -> None:
    """Answer the requests that wait for a leader that was deposed."""
    for waiter in leading.deposed():
        _answer(waiter, error)


def _answer(waiter: Waiter, error: ErrorCode) -> None:
    """Call a waiter's key, which is the callback that was passed to `LeaderState.wait`."""
    cast("Callable[[ErrorCode], None]", waiter.key)(error)
