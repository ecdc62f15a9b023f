"""Fetch loop for one leader: the shell of `FollowerMachine`, with a channel of its own.

One request at a time. The records of a response are appended unchanged, run by run of whole batches, in
slices of the loop's time; before each run the loop checks that the append is still wanted. Logs are truncated
concurrently, as one may wait for its disk, and no fetch is sent meanwhile. ListOffsets requests and builds
from the archive take long and run beside the fetches of other partitions. Owned by the event loop.

An exception that neither a peer nor a disk causes leaves `run`: it is a bug, and the caller ends the node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final, NamedTuple, Protocol
from uuid import UUID

from kio.schema.errors import ErrorCode

from service.base.clock import Clock
from service.base.errors import CorruptionError, RequestError, StorageError
from service.base.slices import Slice
from service.base.turn_queues import turn_queues
from service.base.types import TopicIdPartition
from service.records.kernel_status import Status
from service.records.scan import BatchScan, scan_batches
from service.replication.follower import FollowerMachine, FollowerSettings
from service.replication.follower_append_check import (
    AppendablePrefix,
    appendable_prefix_of_run,
    end_of_run,
    first_of,
)
from service.replication.follower_events import (
    AdvanceMarks,
    Append,
    AskOffsets,
    BuildLocalStart,
    CaughtUp,
    Done,
    Effect,
    Fetch,
    FlushAppended,
    FollowerFetchResponse,
    HoldPartition,
    LeaderOffsets,
    PartitionFetchResponse,
    Restart,
    Truncate,
    Warn,
)
from service.replication.metrics import ReplicationMetrics
from service.replication.partition_fetch_state import FollowerLog
from service.replication.throttle import ReplicationThrottle
from service.wire.api import ApiKey, api_versions_request, request_module
from service.wire.errors import UnsupportedVersion

FIRST_FETCH_VERSION: Final = 15
"""the first with a broker epoch (KIP-903) and topic ids"""
_LATEST: Final = -1
_EARLIEST: Final = -2
_RUN_BATCHES: Final = 500
"""approximate number of batches that are checked and written in one go"""
_APPENDED_AT_ONCE: Final = 4
"""logs that are appended to concurrently while catching up, so that checks of one overlap writes of another
"""
_SMALL_BYTES: Final = 2_048


class LeaderEndpoint(Protocol):
    """Connection to the leader; `client.node_channel.Channel` is one."""

    async def versions(self) -> Mapping[int, tuple[int, int]]: ...
    async def call(
        self, api_key: int, version: int | None, message: Any, *, timeout_ms: int | None = None
    ) -> Any: ...


class FollowerReplica(FollowerLog, Protocol):
    """Log of a follower, and its changes. All of these raise `StorageError` if the disk fails; a later
    attempt may succeed, unless the log is offline by then."""

    @property
    def is_offline(self) -> bool:
        """The log's files cannot be trusted any more."""

    @property
    def may_lack(self) -> bool:
        """Offsets may be missing, as the topic is or was compacted."""

    def append(self, data: memoryview, run: BatchScan) -> None:
        """Append consecutive batches unchanged: `run`, with positions in `data`. They were checked and follow
        on the log."""

    async def append_on_thread(self, data: memoryview, run: BatchScan) -> bool:
        """Append on a thread, so that the loop does not wait for the disk. Returns False, with nothing
        appended, if something else changed the log before that began."""

    @property
    def needs_flush(self) -> bool:
        """Records were appended that the topic's settings want synced, and that are not."""

    async def flush(self) -> None:
        """Wait until appended records are synced, if the topic's settings ask for that."""

    async def truncate(self, offset: int, is_wanted: Callable[[], bool]) -> bool:
        """Carry out `follower_events.Truncate`; returns False if that is impossible now. The log may end
        lower, where a batch reaches beyond `offset`. Calls `is_wanted` before it changes the log."""

    async def restart(self, offset: int, is_wanted: Callable[[], bool]) -> bool:
        """Carry out `follower_events.Restart`, as `truncate` does. A start beyond `offset` stays."""

    def follow(self, high_watermark: int, start_offset: int) -> None:
        """Carry out `follower_events.AdvanceMarks`."""


class LocalStartBuilder(Protocol):
    async def build(
        self, tip: TopicIdPartition, leader_epoch: int, start_offset: int, is_wanted: Callable[[], bool]
    ) -> bool:
        """Carry out `follower_events.BuildLocalStart`; returns False if that is impossible now. Calls
        `is_wanted` before it changes the log. Raises `StorageError` as a `FollowerReplica` does."""


class FetcherSettings(NamedTuple):
    max_wait_ms: int = 500
    """``replica.fetch.wait.max.ms``"""
    min_bytes: int = 1
    """``replica.fetch.min.bytes``"""
    max_bytes: int = 1 << 20
    """``replica.fetch.max.bytes``, of one partition"""
    response_max_bytes: int = 10 << 20
    """``replica.fetch.response.max.bytes``"""
    backoff_ms: int = 1_000
    """``replica.fetch.backoff.ms``"""
    timeout_ms: int = 30_000
    """``replica.socket.timeout.ms``"""


class Fetcher:
    """All partitions that this node fetches from one leader in one session."""

    def __init__(
        self,
        leader: LeaderEndpoint,
        broker_id: int,
        broker_epoch: Callable[[], int],
        settings: FetcherSettings,
        clock: Clock,
        archive: LocalStartBuilder,
        warn: Callable[[str], None],
        throttle: ReplicationThrottle | None = None,
        metrics: ReplicationMetrics | None = None,
        *,
        on_caught_up: Callable[[TopicIdPartition, int], None] | None = None,
    ) -> None:
        """`warn` logs a message, at a limited rate. `throttle` is shared by all fetchers. `on_caught_up`:
        this fetcher serves partitions that are behind, separately from those in sync; it is called, in a
        later step of the loop, with a partition that has caught up and the leader's epoch."""
        self._leader = leader
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._settings = settings
        self._clock = clock
        self._archive = archive
        self._warn = warn
        self._on_caught_up = on_caught_up
        self._catches_up = on_caught_up is not None
        self._machine = FollowerMachine(FollowerSettings(settings.backoff_ms), throttle)
        self._replicas: dict[TopicIdPartition, FollowerReplica] = {}
        self._tips: dict[tuple[UUID, int], TopicIdPartition] = {}
        """partitions that a response may name, including removed ones that an earlier request named"""
        self._wakeup = asyncio.Event()
        self._tasks: asyncio.TaskGroup | None = None
        self.metrics = metrics or ReplicationMetrics()
        self._early: list[Effect] = []
        """effects of assignments made before `run`"""
        self._may_wait = False
        """a fetch is in flight that the leader may delay"""

    def __len__(self) -> int:
        return len(self._machine)

    # -- partitions

    def assign(
        self,
        tip: TopicIdPartition,
        replica: FollowerReplica,
        leader_epoch: int,
        *,
        is_clean: bool,
        builds_first: bool = False,
        is_in_sync: bool = False,
    ) -> None:
        """Follow a leader with `replica`; see `FollowerMachine.assign`."""
        self._replicas[tip] = replica
        self._tips[tip.topic_id, tip.partition] = tip
        effects = self._machine.assign(
            tip,
            replica,
            leader_epoch,
            self._now_ms(),
            is_clean=is_clean,
            builds_first=builds_first,
            flushes_first=replica.needs_flush,
            is_in_sync=is_in_sync,
        )
        if self._tasks is None:
            self._early += effects
        else:
            self._carry_out_now(effects)
        self._wake()

    def remove(self, tip: TopicIdPartition) -> None:
        """Stop following `tip`. Its log is not changed any more, except by a thread of the archive that has
        begun."""
        self._machine.remove(tip)
        self._replicas.pop(tip, None)
        self._wakeup.set()

    def start_moved(self, tip: TopicIdPartition) -> None:
        self._machine.start_moved(tip)

    def throttled(self, tips: Iterable[TopicIdPartition] = ()) -> None:
        """Apply a changed limit of the throttle, or that `tips` are throttled or no longer are."""
        for tip in tips:
            self._machine.throttled(tip)
        self._wakeup.set()

    def _now_ms(self) -> int:
        return self._clock.monotonic_ms()

    # -- the loop

    async def run(self) -> None:
        """Fetch until cancelled."""
        try:
            async with asyncio.TaskGroup() as self._tasks:
                self._carry_out_now(self._early)
                self._early.clear()
                while True:
                    self._wakeup.clear()
                    fetch = self._machine.next_fetch(self._now_ms())
                    if fetch is None:
                        await self._wait()
                    else:
                        await self._fetch(fetch)
        finally:
            self._tasks = None

    def _wake(self) -> None:
        """Wake the loop, and interrupt a fetch that the leader delays.

        A leader of ours answers a delayed fetch when another request arrives behind it. Without that, a newly
        elected leader would wait for its followers, and commit nothing, for as long as a fetch of idle
        partitions lasts.
        """
        self._wakeup.set()
        if self._may_wait and self._tasks is not None and self._machine.has_changes:
            self._may_wait = False
            self._tasks.create_task(self._interrupt(), name="interrupt of a delayed fetch")

    async def _interrupt(self) -> None:
        """Send an ApiVersions request behind the fetch; its response is not used."""
        message, timeout_ms = api_versions_request(), self._settings.timeout_ms
        with suppress(OSError, UnsupportedVersion):  # the fetch fails, too
            await self._leader.call(ApiKey.API_VERSIONS, None, message, timeout_ms=timeout_ms)

    async def _wait(self) -> None:
        due_ms = self._machine.next_deadline_ms()
        timeout = None if due_ms is None else max(due_ms - self._now_ms(), 0) / 1000
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._wakeup.wait()

    async def _fetch(self, fetch: Fetch) -> None:
        try:
            _, newest = (await self._leader.versions()).get(ApiKey.FETCH, (0, -1))
            if newest < FIRST_FETCH_VERSION:
                raise UnsupportedVersion(f"the leader serves Fetch up to version {newest} to replicas")
            self._may_wait = True
            response = await self._leader.call(
                ApiKey.FETCH, None, self._request(fetch), timeout_ms=self._settings.timeout_ms
            )
        except (OSError, UnsupportedVersion) as e:
            if isinstance(e, UnsupportedVersion):
                self._warn(str(e))
            self._machine.failed(fetch.number, self._now_ms())
            return
        finally:
            self._may_wait = False
        piece = Slice()
        parsed, records = await self._read(response, piece)
        self._forget(tuple(self._tips.values()) if fetch.begins_session else fetch.forgotten)
        effects = self._machine.answered(fetch.number, parsed, self._now_ms())
        await self._carry_out(effects, records, piece)

    def _forget(self, tips: Iterable[TopicIdPartition]) -> None:
        """Drop partitions that the leader, having responded, no longer has in the session."""
        for tip in tips:
            if tip not in self._replicas:
                self._tips.pop((tip.topic_id, tip.partition), None)

    def _request(self, fetch: Fetch) -> Any:
        module, settings = request_module(ApiKey.FETCH), self._settings
        topics: dict[UUID, list[Any]] = {}
        for tip, asked in fetch.partitions:
            topics.setdefault(tip.topic_id, []).append(
                module.FetchPartition(
                    partition=tip.partition,
                    current_leader_epoch=asked.leader_epoch,
                    fetch_offset=asked.offset,
                    last_fetched_epoch=asked.last_epoch,
                    log_start_offset=asked.start_offset,
                    partition_max_bytes=settings.max_bytes,
                    replica_directory_id=None,
                )
            )
        wait_ms = settings.max_wait_ms if fetch.is_whole else 0
        if fetch.most_wait_ms is not None:
            wait_ms = min(wait_ms, fetch.most_wait_ms)
        forgotten: dict[UUID, list[int]] = {}
        for tip in fetch.forgotten:
            forgotten.setdefault(tip.topic_id, []).append(tip.partition)
        return module.FetchRequest(
            replica_state=module.ReplicaState(replica_id=self._broker_id, replica_epoch=self._broker_epoch()),
            max_wait=timedelta(milliseconds=wait_ms),
            min_bytes=settings.min_bytes,
            max_bytes=settings.response_max_bytes,
            session_id=fetch.session_id,
            session_epoch=fetch.session_epoch,
            topics=tuple(
                module.FetchTopic(topic_id=topic_id, partitions=tuple(partitions))
                for topic_id, partitions in topics.items()
            ),
            forgotten_topics_data=tuple(
                module.ForgottenTopic(topic_id=topic_id, partitions=tuple(partitions))
                for topic_id, partitions in forgotten.items()
            ),
        )

    async def _read(self, response: Any, piece: Slice) -> tuple[FollowerFetchResponse, list[Any]]:
        """Return the response in the machine's terms, and the records of each partition."""
        partitions: list[PartitionFetchResponse] = []
        records: list[Any] = []
        for topic in response.responses:
            for partition in topic.partitions:
                if piece.is_over():
                    await piece.next_turn()
                key = topic.topic_id or UUID(int=0), int(partition.partition_index)
                diverging = partition.diverging_epoch
                partitions.append(
                    PartitionFetchResponse(
                        self._tips.get(key) or TopicIdPartition(key[0], str(key[0]), key[1]),
                        partition.error_code,
                        int(partition.high_watermark),
                        int(partition.log_start_offset),
                        len(partition.records or b""),
                        None
                        if diverging.epoch == diverging.end_offset == -1
                        else (diverging.epoch, diverging.end_offset),
                    )
                )
                records.append(partition.records)
        return FollowerFetchResponse(response.error_code, int(response.session_id), partitions), records

    # -- effects

    async def _carry_out(self, effects: Sequence[Effect], records: Sequence[Any], piece: Slice) -> None:
        """Carry out effects in order; a fetcher that catches up appends to several logs concurrently."""
        left = iter(effects)

        async def work(piece: Slice) -> None:
            for effect in left:
                if isinstance(effect, Append):
                    done = await self._append(effect, records[effect.at], piece)
                    self._carry_out_now(self._machine.done(effect.number, done, self._now_ms()))
                else:
                    if piece.is_over():
                        await piece.next_turn()
                    self._carry_out_now((effect,))

        if not self._catches_up or len(effects) <= 1:
            await work(piece)
            return
        async with asyncio.TaskGroup() as workers:
            for _ in range(min(_APPENDED_AT_ONCE, len(effects))):
                workers.create_task(work(Slice()), name="append to lagging replicas")

    def _carry_out_now(self, effects: Sequence[Effect]) -> None:
        """Carry out effects that take little of the loop's time, and start tasks for the others."""
        for effect in effects:
            if isinstance(effect, Warn):
                self._warn(effect.why)
            elif isinstance(effect, HoldPartition):
                self._warn(f"{effect.tip}: replication stopped: {effect.why}")
            elif isinstance(effect, AdvanceMarks):
                self._advance_marks(effect)
            elif isinstance(effect, CaughtUp):
                if self._on_caught_up is not None:
                    turn_queues(asyncio.get_running_loop()).calls.add(self._on_caught_up, *effect)
            elif isinstance(effect, Truncate | Restart):
                self._start_task(effect, self._truncate(effect))
            elif isinstance(effect, AskOffsets):
                self._start_task(effect, self._ask(effect))
            elif isinstance(effect, BuildLocalStart):
                self._start_task(effect, self._build(effect))
            elif isinstance(effect, FlushAppended):
                self._start_task(effect, self._flush(effect))

    def _start_task(
        self,
        effect: Truncate | Restart | AskOffsets | BuildLocalStart | FlushAppended,
        work: Coroutine[Any, Any, None],
    ) -> None:
        assert self._tasks is not None, "effects need the running loop"
        self._tasks.create_task(work, name=f"replica of {effect.tip}")

    def _done(self, number: int, done: Done) -> None:
        self._carry_out_now(self._machine.done(number, done, self._now_ms()))
        self._wake()

    def _advance_marks(self, effect: AdvanceMarks) -> None:
        replica = self._replicas.get(effect.tip)
        if replica is None:
            return
        try:
            replica.follow(effect.high_watermark, effect.start_offset)
        except StorageError as e:
            self._warn(f"{effect.tip}: {e}")  # its next append handles the failure

    async def _truncate(self, effect: Truncate | Restart) -> None:
        number = effect.number
        done = Done.NOT_NOW
        try:
            if self._machine.is_wanted(number):
                is_cut = await self._change_end(effect, lambda: self._machine.is_wanted(number))
                done = Done.DONE if is_cut else Done.NOT_NOW
        except StorageError as e:
            done = self._storage_failed(effect.tip, e)
        self._done(number, done)

    def _storage_failed(
        self, tip: TopicIdPartition, error: StorageError, otherwise: Done = Done.NOT_NOW
    ) -> Done:
        """Log a `StorageError` and return the outcome to report. A full disk may have room later, so the
        fetcher retries."""
        self._warn(f"{tip}: {error}")
        replica = self._replicas.get(tip)
        return Done.OFFLINE if replica is None or replica.is_offline else otherwise

    async def _flush(self, effect: FlushAppended) -> None:
        number, done = effect.number, Done.DONE
        await asyncio.sleep(effect.after_ms / 1000)
        try:
            if self._machine.is_wanted(number):
                await self._replicas[effect.tip].flush()
        except StorageError as e:
            done = self._storage_failed(effect.tip, e, Done.UNFLUSHED)
        self._done(number, done)

    async def _change_end(self, effect: Truncate | Restart, is_wanted: Callable[[], bool]) -> bool:
        replica, tip, offset = self._replicas[effect.tip], effect.tip, effect.offset
        if isinstance(effect, Restart):
            self._warn(f"{tip}: log restarts at {offset}, the start of its leader's log")
            return await replica.restart(offset, is_wanted)
        if effect.is_below_high_watermark:
            self.metrics.cuts_below_high_watermark += 1
            self._warn(f"{tip}: truncating to {offset}, below the high watermark {replica.high_watermark}")
        return await replica.truncate(offset, is_wanted)

    async def _append(self, effect: Append, records: Any, piece: Slice) -> Done:
        """Append the valid prefix of `records`, in runs; ends early if the append is no longer wanted."""
        if not self._machine.is_wanted(effect.number):
            return Done.NOT_NOW
        replica, view = self._replicas[effect.tip], memoryview(records)
        taken, position, is_flushed = 0, 0, True
        try:
            while (end := end_of_run(view, position, _RUN_BATCHES)) > position:
                if piece.is_over():
                    await piece.next_turn()
                    if not self._machine.is_wanted(effect.number):
                        return Done.NOT_NOW
                run = scan_batches(view, position, end, small_bytes=_SMALL_BYTES)
                if run.batches > 2 * _RUN_BATCHES:  # the first was a large one
                    run = first_of(run, _RUN_BATCHES)
                if run.batches:
                    found = await self._append_run(effect, replica, view, run)
                    if found is None:
                        return Done.NOT_NOW
                    taken += found.accepted
                    if found.accepted:
                        is_flushed = False
                        await replica.flush()
                        is_flushed = True
                        if not self._machine.is_wanted(effect.number):
                            return Done.NOT_NOW
                    if found.accepted < run.batches:
                        self._warn(
                            f"{effect.tip}: leader sent batches that do not follow on the log: {found.why}"
                        )
                        return Done.DONE if taken else Done.CORRUPT
                if run.status not in (Status.OK, Status.TRUNCATED) or not run.batches:
                    why = f"batch at position {run.end}: {run.status.reason}"
                    self._warn(f"{effect.tip}: leader sent corrupt records: {why}")
                    return Done.CORRUPT
                position = run.end
        except (CorruptionError, RequestError) as e:
            self._warn(f"{effect.tip}: {e}")
            return Done.CORRUPT
        except StorageError as e:
            return self._storage_failed(effect.tip, e, Done.NOT_NOW if is_flushed else Done.UNFLUSHED)
        return Done.DONE if taken else Done.CORRUPT

    async def _append_run(
        self, effect: Append, replica: FollowerReplica, view: memoryview, run: BatchScan
    ) -> AppendablePrefix | None:
        """Append the valid prefix of a run; returns None if that is impossible now."""
        found = appendable_prefix_of_run(
            run,
            start_offset=max(replica.log_start_offset, effect.start_offset),
            end_offset=replica.log_end_offset,
            latest_epoch=replica.latest_epoch,
            leader_epoch=effect.leader_epoch,
            may_lack=replica.may_lack,
        )
        if found.accepted:
            if found.begins_at >= 0 and not await replica.restart(
                found.begins_at, lambda: self._machine.is_wanted(effect.number)
            ):
                return None
            taken = run if found.accepted == run.batches else first_of(run, found.accepted)
            if not self._catches_up:
                replica.append(view, taken)
            elif not await replica.append_on_thread(view, taken):
                return None
            self.metrics.received_bytes += sum(taken.sizes)
        return found

    async def _ask(self, effect: AskOffsets) -> None:
        try:
            end = await self._offset(effect, _LATEST)
            offsets: LeaderOffsets | ErrorCode = LeaderOffsets(await self._offset(effect, _EARLIEST), end)
        except RequestError as e:
            offsets = e.code
        except (OSError, UnsupportedVersion):
            offsets = ErrorCode.network_exception
        self._carry_out_now(self._machine.offsets(effect.number, offsets, self._now_ms()))
        self._wake()

    async def _offset(self, effect: AskOffsets, timestamp: int) -> int:
        """Return an offset of the leader's log. Raises `RequestError` with the leader's error code."""
        module, tip = request_module(ApiKey.LIST_OFFSETS), effect.tip
        wanted = module.ListOffsetsPartition(
            partition_index=tip.partition, current_leader_epoch=effect.leader_epoch, timestamp=timestamp
        )
        message = module.ListOffsetsRequest(
            replica_id=self._broker_id,
            isolation_level=0,
            topics=(module.ListOffsetsTopic(name=tip.topic, partitions=(wanted,)),),
            timeout=timedelta(milliseconds=self._settings.timeout_ms),
        )
        response = await self._leader.call(
            ApiKey.LIST_OFFSETS, None, message, timeout_ms=self._settings.timeout_ms
        )
        for topic in response.topics:
            for partition in topic.partitions:
                if (topic.name, partition.partition_index) == (tip.topic, tip.partition):
                    if partition.error_code is not ErrorCode.none or partition.offset < 0:
                        raise RequestError(partition.error_code or ErrorCode.unknown_server_error, str(tip))
                    return int(partition.offset)
        raise RequestError(ErrorCode.unknown_server_error, f"the leader's response lacks {tip}")

    async def _build(self, effect: BuildLocalStart) -> None:
        number = effect.number
        done = Done.NOT_NOW
        try:
            if self._machine.is_wanted(number):
                is_built = await self._archive.build(
                    effect.tip,
                    effect.leader_epoch,
                    effect.start_offset,
                    lambda: self._machine.is_wanted(number),
                )
                done = Done.DONE if is_built else Done.NOT_NOW
        except StorageError as e:
            done = self._storage_failed(effect.tip, e)
        self._done(number, done)
