"""Shell of the Raft machine: applies its effects in order, on the event loop and a `log-io` thread.

Owned by the event loop. One event is handled at a time, and all its effects are applied before the next:
where an effect waits for the disk (state, truncation, a snapshot), further events are queued. Only a flush
runs in the background, and batches appended meanwhile share the next flush. The shell knows bytes and
offsets; the publisher interprets the records.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from service.base.clock import Clock
from service.base.errors import CorruptionError, InvariantError, RequestError, StorageError
from service.base.rate_limited_log import RateLimitedLog
from service.metadata.batches import MAX_BATCH_BYTES, encode_control_batch
from service.metadata.raft import messages
from service.metadata.raft.control import VoterRecords, encode_records
from service.metadata.raft.core import endpoint_for
from service.metadata.raft.events import (
    AdvanceHighWatermark,
    AppendControl,
    Appended,
    AppendFetched,
    Cancelled,
    Effect,
    Event,
    Flushed,
    FlushLog,
    InboundRequest,
    InboundResponse,
    Initialize,
    Lead,
    NotAppended,
    OutboundResponse,
    Peer,
    Persist,
    RestartAt,
    Send,
    SnapshotReady,
    StepDown,
    Stop,
    StoreSnapshot,
    Tick,
    TruncateTo,
)
from service.metadata.raft.keys import SnapshotId
from service.metadata.raft.log import MetadataLog
from service.metadata.raft.machine import RaftMachine
from service.metadata.raft.peers import Peers
from service.metadata.raft.requests import (
    CallFailed,
    ConnectionRefused,
    FetchSnapshotResponse,
    NoResponse,
    RaftFetchResponse,
    RaftRequest,
    RaftResponse,
    ReadLog,
    ReadSnapshot,
    Refusal,
    ResponseWithLeader,
    VersionUnsupported,
)
from service.metadata.raft.roles import Role
from service.metadata.raft.state import QuorumState
from service.wire.errors import UnsupportedVersion

_BLOCKING_EFFECTS: Final = (Persist, TruncateTo, RestartAt, StoreSnapshot)
_END_EPOCH_TIMEOUT_S: Final = 1.0
"""Timeout for EndQuorumEpoch requests at shutdown."""

_logger = logging.getLogger(__name__)


class ValidatedSnapshot(NamedTuple):
    """Voters of a validated snapshot, and the publisher's decoded content."""

    voters: VoterRecords
    content: Any


class Hooks(NamedTuple):
    """Callbacks of the quorum, on the event loop. After `on_fatal` nothing is committed any more.

    `validate(snapshot)` reads a fetched snapshot on a `log-io` thread, and raises `CorruptionError` for an
    invalid one; `on_restart` is called when the log restarts at the snapshot's end.
    """

    on_commit: Callable[[int], None]
    on_fatal: Callable[[BaseException], None]
    on_lead: Callable[[int], None]
    on_step_down: Callable[[], None]
    on_truncate: Callable[[int], None]
    validate: Callable[[SnapshotId], ValidatedSnapshot]
    on_restart: Callable[[SnapshotId, Any], None]
    on_leader: Callable[[], None] = lambda: None
    """Called when another leader is known, or this one in another epoch."""


def not_leading() -> RequestError:
    """Build the error for a request that needs the leader."""
    return RequestError(ErrorCode.not_controller, "This node does not lead the metadata quorum.")


class Quorum:
    """Replica of the metadata quorum on this node. Without `peers` it sends no requests."""

    def __init__(
        self,
        machine: RaftMachine,
        log: MetadataLog,
        clock: Clock,
        log_io: Executor,
        hooks: Hooks,
        *,
        peers: Peers | None = None,
        request_timeout_ms: int = 2000,
    ) -> None:
        self._machine = machine
        self.log: Final = log
        """for others to read only"""
        self._clock = clock
        self._log_io = log_io
        self._hooks = hooks
        self._peers = peers
        self._request_timeout_s = request_timeout_ms / 1000
        self._events: deque[Event] = deque()
        self._effects: deque[Effect] = deque()
        self._is_draining = False
        self._waiting: asyncio.Task[None] | None = None
        self._flush: asyncio.Task[None] | None = None
        self._flush_turn = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._leading = -1
        self._logged_state = machine.role, machine.epoch, machine.leader_id
        self._leaderless = RateLimitedLog(_logger, interval_s=60.0, now=lambda: clock.monotonic_ms() / 1000)
        """Role, epoch and leader that were logged last."""
        self._last_request = 0
        self._requests: dict[int, asyncio.Future[RaftResponse]] = {}
        self._validated: dict[SnapshotId, ValidatedSnapshot] = {}
        self._has_ended = False

    @property
    def epoch(self) -> int:
        return self._machine.epoch

    @property
    def machine(self) -> RaftMachine:
        """Machine, for inspection only."""
        return self._machine

    @property
    def is_leader(self) -> bool:
        return self._leading == self._machine.epoch and self._machine.role is Role.LEADER

    @property
    def confirmed_age_ms(self) -> int | None:
        """Time since the leader answered, or since a majority fetched from this leader; None for a leader
        that needs nobody's word."""
        core = self._machine.core
        if self.is_leader and core.is_sole_voter:
            return None
        return max(self._now_ms() - core.confirmed_ms, 0)

    @property
    def next_offset(self) -> int:
        """Offset of the next record."""
        return self.log.end_offset

    async def start(self, state: QuorumState | None) -> None:
        """Start the replica with the content of ``quorum-state``. A sole voter leads when this returns."""
        self._submit(Initialize(state))
        while self._waiting is not None:
            await self._waiting

    def append(self, batch: bytearray) -> None:
        """Append a batch that was built for `next_offset` and `epoch`. It takes effect once committed.

        Raises `RequestError` NOT_CONTROLLER where this node does not lead, RECORD_LIST_TOO_LARGE beyond 8
        MiB: nothing is written then. After a `StorageError` the log accepts no more writes.
        """
        if not self.is_leader:
            raise not_leading()
        if len(batch) > MAX_BATCH_BYTES:
            raise RequestError(
                ErrorCode.record_list_too_large,
                f"The change takes {len(batch)} bytes of metadata, the limit is {MAX_BATCH_BYTES}.",
            )
        self.log.append(batch)
        self._submit(Appended(self.log.end_offset))

    async def ask(self, request: RaftRequest) -> RaftResponse:
        """Return the machine's response, with the records or snapshot bytes that it refers to.

        Raises `StorageError` where the quorum ends first.
        """
        if self._has_ended:
            raise StorageError("the metadata quorum has ended")
        self._last_request += 1
        number = self._last_request
        future: asyncio.Future[RaftResponse] = asyncio.get_running_loop().create_future()
        self._requests[number] = future
        self._submit(InboundRequest(number, request))
        try:
            answer = await future
        except asyncio.CancelledError:
            self._submit(Cancelled(number))
            raise
        finally:
            self._requests.pop(number, None)
        if isinstance(answer, FetchSnapshotResponse) and isinstance(answer.data, ReadSnapshot):
            with_data: RaftResponse = await self._run(self._read_snapshot, answer, answer.data)
            return with_data
        return answer

    async def handle(self, api_key: int, version: int, message: Any, listener: str = "") -> Any:
        """Answer a request of another node or an admin client: kio's messages in and out.

        `listener`: the one that the request came to, at whose like the peer is told to find the leader.
        """
        request = messages.of_request(api_key, version, message)
        if isinstance(request, Refusal):
            if not self._machine.core.identity.knows_cluster(getattr(message, "cluster_id", None)):
                request = Refusal(ErrorCode.inconsistent_cluster_id)
            return messages.to_refusal(api_key, version, message, request)
        answer = await self.ask(request)
        if listener and isinstance(answer, ResponseWithLeader):
            place = endpoint_for(self._machine.core, listener, answer.leader_id, answer.endpoint)
            answer = answer._replace(endpoint=place)
        return messages.to_response(api_key, version, answer, self._clock.now_ms() - self._now_ms())

    async def stop(self) -> None:
        """Await a running flush, resign, and notify the voters."""
        while (flush := self._flush) is not None:
            await flush
        if not self._has_ended and self._machine.role is not Role.RESIGNED:
            self._submit(Stop())
        if self._waiting is not None:
            await self._waiting
        calls = [task for task in self._tasks if not task.done()]
        if calls and self._machine.role is Role.RESIGNED:
            await asyncio.wait(calls, timeout=_END_EPOCH_TIMEOUT_S)
        self._end()
        rest = [task for task in (*self._tasks, self._waiting) if task is not None]
        await asyncio.gather(*rest, return_exceptions=True)
        if (flush := self._flush) is not None:
            await flush

    def _end(self) -> None:
        """Cancel all tasks, and fail all waiting requests."""
        self._has_ended = True
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        for future in self._requests.values():
            if not future.done():
                future.set_exception(StorageError("the metadata quorum has ended"))

    # -- events in, effects out

    def _now_ms(self) -> int:
        return self._clock.monotonic_ms()

    def _submit(self, event: Event) -> None:
        self._events.append(event)
        self._drain()

    def _drain(self) -> None:
        """Handle events and apply effects until none is left, or an effect waits for the disk."""
        if self._is_draining or self._waiting is not None:
            return
        self._is_draining = True
        try:
            while not self._has_ended:
                if self._effects:
                    effect = self._effects.popleft()
                    if isinstance(effect, _BLOCKING_EFFECTS):
                        self._waiting = self._task(self._run_blocking(effect), "metadata-effect")
                        return
                    self._apply(effect)
                elif self._events:
                    self._effects.extend(self._machine.handle(self._events.popleft(), self._now_ms()))
                    self._log_role_change()
                else:
                    break
            self._arm_timer()
        except Exception as e:
            self._fail(e)
        finally:
            self._is_draining = False

    def _log_role_change(self) -> None:
        machine = self._machine
        state = machine.role, machine.epoch, machine.leader_id
        if state != self._logged_state:
            self._logged_state = state
            words, role = "metadata quorum: %s in epoch %d%s", machine.role.value
            if machine.leader_id < 0:  # a voter without a majority tries again and again
                self._leaderless.log(logging.INFO, words, role, machine.epoch, "")
                return
            _logger.info(words, role, machine.epoch, f", led by node {machine.leader_id}")
            self._hooks.on_leader()

    def _fail(self, error: BaseException) -> None:
        self._leading = -1
        self._end()
        self._hooks.on_fatal(error)

    def _arm_timer(self) -> None:
        """Arm the timer for the machine's next deadline."""
        deadline_ms = self._machine.next_deadline_ms()
        if self._timer is not None:
            if deadline_ms is not None and self._timer_ms <= deadline_ms and not self._has_ended:
                return  # the earlier timer arms the next one
            self._timer.cancel()
            self._timer = None
        if deadline_ms is None or self._has_ended:
            return
        wait_s = max(deadline_ms - self._now_ms(), 0) / 1000
        self._timer_ms = deadline_ms
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._submit(Tick())

    def _task(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        if name != "metadata-effect":
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return task

    async def _run(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._log_io, work, *arguments)

    def _apply(self, effect: Effect) -> None:
        match effect:
            case Send(peer, call, request):
                self._task(self._call(peer, call, request), "metadata-call")
            case OutboundResponse(request_id, answer):
                self._reply(request_id, answer)
            case FlushLog(end_offset):
                self._flush = asyncio.get_running_loop().create_task(
                    self._run_flush(end_offset, self._flush_turn), name="metadata-flush"
                )
            case AdvanceHighWatermark(high_watermark):
                self._hooks.on_commit(high_watermark)
            case AppendControl():
                self._append_control(effect)
            case AppendFetched(epoch, records):
                self._events.appendleft(self._append_fetched(epoch, bytes(records)))
            case Lead(epoch):
                self._leading = epoch
                self._hooks.on_lead(epoch)
            case StepDown():
                self._leading = -1
                self._hooks.on_step_down()
            case _:
                pass  # Park and Follow need no action

    def _append_control(self, effect: AppendControl) -> None:
        batch = encode_control_batch(
            *encode_records(effect.records),
            base_offset=self.log.end_offset,
            epoch=effect.epoch,
            timestamp_ms=self._clock.now_ms(),
        )
        self.log.append(batch)
        self._events.appendleft(Appended(self.log.end_offset))

    def _append_fetched(self, epoch: int, records: bytes) -> Event:
        try:
            if self.log.append_fetched(records, epoch):
                return Appended(self.log.end_offset)
            reason = "no whole batch"
        except CorruptionError as e:
            reason = str(e)
        _logger.error(
            "the leader of epoch %d, node %d, sent invalid records: %s", epoch, self._leader_id, reason
        )
        return NotAppended()

    @property
    def _leader_id(self) -> int:
        return self._machine.leader_id

    # -- the disk

    async def _run_blocking(self, effect: Effect) -> None:
        try:
            await self._apply_blocking(effect)
        except Exception as e:
            self._waiting = None
            self._fail(e)
            return
        self._waiting = None
        self._drain()

    async def _apply_blocking(self, effect: Effect) -> None:
        match effect:
            case Persist(state):
                await self._run(self.log.write_state, state)
            case TruncateTo(end_offset):
                await self._drop_running_flush()
                self._hooks.on_truncate(end_offset)
                async with self.log.changing:
                    await self._run(self.log.truncate_to, end_offset)
            case RestartAt(snapshot):
                await self._drop_running_flush()
                validated = self._validated.get(snapshot)
                if validated is None:
                    raise InvariantError(f"raft: the snapshot {snapshot} was never proved")
                async with self.log.changing:
                    await self._run(self.log.restart_at, snapshot, validated.voters)
                    self._validated.clear()
                    self._hooks.on_restart(snapshot, validated.content)
            case StoreSnapshot(snapshot, position, data, is_last):
                await self._store(snapshot, position, bytes(data), is_last)

    async def _drop_running_flush(self) -> None:
        """Await the running flush and drop its result, before the log changes."""
        self._flush_turn += 1
        if self._flush is not None:
            await asyncio.wait([self._flush])

    async def _store(self, snapshot: SnapshotId, position: int, data: bytes, is_last: bool) -> None:
        try:
            await self._run(self.log.store_snapshot, snapshot, position, data)
        except StorageError as e:
            _logger.error("cannot write the snapshot %s, so its fetch fails: %s", snapshot.file_name, e)
            self._events.append(SnapshotReady(snapshot, is_good=False))
            return
        if is_last:
            self._task(self._validate(snapshot), "metadata-snapshot-proof")

    async def _validate(self, snapshot: SnapshotId) -> None:
        is_good = True
        try:
            await self._run(self.log.finish_snapshot, snapshot)
            self._validated = {snapshot: await self._run(self._hooks.validate, snapshot)}
        except (CorruptionError, StorageError) as e:
            is_good = False
            _logger.error("the fetched snapshot %s is invalid and discarded: %s", snapshot.file_name, e)
        except Exception as e:  # a bug; the node ends before it fetches more
            self._fail(e)
            return
        self._submit(SnapshotReady(snapshot, is_good))

    async def _run_flush(self, end_offset: int, turn: int) -> None:
        """Flush the log. An error is fatal: the kernel may have dropped the pages that it could not write."""
        try:
            await self._run(self.log.flush, end_offset)
            self._flush = None
            if turn == self._flush_turn:
                self._submit(Flushed(end_offset))
        except Exception as e:
            self._flush = None
            self._fail(e)

    def _reply(self, request_id: int, answer: RaftResponse) -> None:
        future = self._requests.get(request_id)
        if future is None or future.done():
            return
        if isinstance(answer, RaftFetchResponse) and isinstance(answer.records, ReadLog):
            # Read at once: the log may be truncated before the waiting task runs.
            answer = answer._replace(records=self.log.slice(*answer.records))
        future.set_result(answer)

    def _read_snapshot(self, answer: FetchSnapshotResponse, read: ReadSnapshot) -> FetchSnapshotResponse:
        found = self.log.read_snapshot(read.snapshot, read.position, read.max_bytes)
        if found is None:
            return answer._replace(error=ErrorCode.snapshot_not_found, snapshot=None, data=b"")
        size, data = found
        if read.position >= size:
            return answer._replace(error=ErrorCode.position_out_of_range, data=b"")
        return answer._replace(size=size, data=data)

    # -- the network

    async def _call(self, peer: Peer, call: int, request: RaftRequest) -> None:
        try:
            reply = await self._answer_of(peer, request)
        except Exception as e:  # a bug: here, or in `Peers`
            self._fail(e)
            return
        self._submit(InboundResponse(peer, call, reply))

    async def _answer_of(self, peer: Peer, request: RaftRequest) -> RaftResponse | NoResponse:
        if self._peers is None:
            return CallFailed()
        api_key, version, message = messages.to_request(request)
        try:
            async with asyncio.timeout(self._request_timeout_s):
                response = await self._peers.call(peer.endpoint, api_key, version, message)
            return messages.of_response(api_key, version, response)
        except ConnectionRefusedError:
            return ConnectionRefused()
        except UnsupportedVersion:
            return VersionUnsupported()
        except (OSError, TimeoutError):
            return CallFailed()
        except CorruptionError as e:
            _logger.error("malformed response from node %d (%s): %s", peer.node_id, peer.endpoint.host, e)
            return CallFailed()
