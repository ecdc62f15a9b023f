"""A fetch from its first read to its response: it waits for bytes, the bucket or the deadline.

It reads again from the start each time, keeps no records meanwhile, and waits as an operation of the
purgatory and as a future, without a task; of many partitions, it reads in slices, in a task. Which partitions
it reads, and how it remembers them, say its two kinds in `handlers/fetch.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Hashable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from kio.schema.errors import ErrorCode

from service.base.slices import Slice, free_in_slices
from service.base.steps import Steps, at_once
from service.network.request import RequestContext, Response
from service.network.request_meter import RequestMeter
from service.network.sender import Part
from service.partition.fetch_sessions import NO_SESSION
from service.partition.fetch_wait import FetchWait
from service.replication.leader import ReplicaSession
from service.serving.fetch_answers import (
    refusal,
    response_bytes,
    throttled_response,
)
from service.serving.fetch_read import FetchRead, PendingReads
from service.serving.request_host import Broker
from service.wire.fetch import FetchRequestView, Results, encode_fetch_response_in_steps
from service.wire.produce import TopicKey

if TYPE_CHECKING:
    from service.remote.reading.download_manager import ResponseHold

MOST_AT_ONCE: Final = 250
"""Most partitions that are read in one turn of the loop, without a task."""
FIRST_VERSION_WITH_STORAGE_ERRORS: Final = 6
LOOK_UP_MS: Final = 10_000
"""Most time for the look-up of many aborted transactions."""


def _release(holds: list[ResponseHold]) -> None:
    """Release the memory of a response's cold bytes."""
    for hold in holds:
        hold.release()


class FetchOperation:
    """One fetch, until its response is sent."""

    __slots__ = (
        "_broker",
        "_context",
        "_deadline",
        "_early",
        "_fetch",
        "_future",
        "_is_reading",
        "_meter",
        "_pass",
        "_replica",
        "_task",
        "_wait",
        "_waiting_since",
    )

    def __init__(self, broker: Broker, context: RequestContext, fetch: FetchRequestView) -> None:
        self._broker = broker
        self._context = context
        self._fetch = fetch
        if fetch.replica_id >= 0:
            context.meter = None  # replicas are exempt
        self._meter = context.meter
        self._pass: FetchRead
        self._replica: ReplicaSession | None = None
        self._future: asyncio.Future[Response] | None = None
        self._task: asyncio.Task[None] | None = None
        self._wait: FetchWait | None = None
        self._early: FetchWait | None = None
        """during a pass of several turns: the wait that follows, which watches what is read already"""
        self._deadline = 0.0
        self._is_reading = False
        self._waiting_since: float | None = None

    def begin(self) -> Response | Awaitable[Response]:
        if self._partition_count() > MOST_AT_ONCE:
            self._future = self._new_future()
            self._start_task()
            return self._future
        for _ in self._read_partitions({}):
            pass
        if self._is_enough():
            return self._answer()
        self._future = self._new_future()
        self._wait_first()
        return self._future

    # differences of full and incremental fetches

    def _partition_count(self) -> int:
        """Return the number of partitions to read."""
        raise NotImplementedError

    def _read_partitions(self, started: PendingReads) -> Steps[None]:
        """Make one pass over the partitions. Each step yields its cost in µs before it works.

        `started`: pending reads of the pass before.
        """
        raise NotImplementedError

    def _create_session(self) -> Steps[None]:
        """Create the session that later fetches use, before the response. Steps yield their cost in µs."""
        yield from ()

    def _has_known_partition(self) -> bool:
        """Return whether there is a partition that may have records in time."""
        raise NotImplementedError

    def _watched_keys(self) -> Iterable[Hashable]:
        """Return the purgatory keys whose events may end the wait, after a pass of one turn."""
        raise NotImplementedError

    def _early_keys(self) -> Iterable[Hashable]:
        """Return the keys to watch from the start of a pass of several turns, which adds those of each
        partition as it is read."""
        return ()

    def _freeable(self) -> Iterable[list[Any]]:
        """Return the long lists of a fetch that has ended, to be freed in slices."""
        return [partitions for _, partitions in self._fetch.topics]

    def _drop_results(self) -> None:
        """Drop the results of the last pass."""
        raise NotImplementedError

    def _respond(self) -> Steps[Response]:
        """Return the response, in steps."""
        raise NotImplementedError

    def _answer(self) -> Response:
        if self._meter is not None and (throttle_ms := self._throttle_ms(self._meter)):
            _release(self._pass.holds)
            return self._throttled(throttle_ms)
        for _ in self._create_session():
            pass
        return at_once(self._respond())

    # quotas

    def _throttle_ms(self, meter: RequestMeter) -> int:
        """Count the response that the last pass would make; return how long its client is throttled."""
        found = self._pass
        if found.cold_throttle_ms and not found.size:
            return meter.refused_fetch(found.cold_throttle_ms)
        return meter.fetched(response_bytes(self._answered_partitions(), found.size))

    def _throttled(self, throttle_ms: int) -> Response:
        """Return the response without results. Session and records are as they were before the request."""
        if self._is_overtaken():
            return refusal(self._context, ErrorCode.invalid_fetch_session_epoch, self._session_number())
        return throttled_response(self._context, self._session_number(), throttle_ms)

    def _answered_partitions(self) -> int:
        """Return the number of partitions in the response."""
        return self._partition_count()

    def _session_number(self) -> int:
        """Return the id of the session that the fetch continues."""
        return NO_SESSION

    def _is_overtaken(self) -> bool:
        """Return whether the client has sent a further fetch of this session, over another connection."""
        return False

    # waiting

    def _is_enough(self) -> bool:
        fetch, found = self._fetch, self._pass
        least = min(fetch.min_bytes, found.room)
        if found.cold_throttle_ms and not found.size and not found.pending:
            return True
        if found.is_final or found.size >= max(least, 1):
            return True
        if found.needs_restore:
            return False  # waits even if `max_wait_ms` is 0: the client would fetch again at once
        return not found.pending and (
            fetch.max_wait_ms <= 0 or not self._has_known_partition() or found.size >= least
        )

    def _new_future(self) -> asyncio.Future[Response]:
        future: asyncio.Future[Response] = self._broker.loop.create_future()
        future.add_done_callback(self._ended)
        return future

    def _ended(self, future: asyncio.Future[Response]) -> None:
        """Clean up: the response is ready, or the peer has left."""
        self._end_wait()
        if self._wait is not None:
            self._broker.timers.purgatory.forget(self._wait)
        if self._task is not None:
            self._task.cancel()
        self._forget_wait()
        if self._partition_count() > MOST_AT_ONCE:
            free_in_slices(self._freeable())

    def _forget_wait(self) -> None:
        """Drop the references between the wait and its downloads. Otherwise downloads that were too late for
        this fetch would keep their memory until the garbage collector runs.
        """
        self._context.hurry = None
        if self._wait is not None:
            self._wait = None
            self._pass.drop_pending()

    def _new_pass(self, started: PendingReads) -> FetchRead:
        is_first = self._wait is None
        return FetchRead(self._broker, self._context, self._fetch, started, self._replica, is_first=is_first)

    def _new_wait(self) -> FetchWait:
        return FetchWait(self._broker.loop, self._broker.timers.purgatory, self._read_again)

    def _wait_first(self) -> None:
        fetch, is_read = self._fetch, bool(self._pass.pending) or self._pass.needs_restore
        wait_ms = self._broker.config.remote_fetch_max_wait_ms if is_read else fetch.max_wait_ms
        if is_read and self._pass.is_looking_up:
            wait_ms = max(wait_ms, LOOK_UP_MS)  # an empty response would begin it again
        self._deadline = self._broker.loop.time() + wait_ms / 1000
        self._context.cancel_on_disconnect = True
        self._context.hurry = self._hurry
        self._sleep(wait_ms / 1000)

    def _hurry(self) -> None:
        """Respond now, unless the fetch waits for a download or a seek, which ends soon by itself."""
        if not self._is_reading:
            self._deadline = self._broker.loop.time()
            if self._wait is not None:
                self._wait.end()

    def _sleep(self, timeout_s: float) -> None:
        broker, found = self._broker, self._pass
        least = max(min(self._fetch.min_bytes, found.room), 1)
        timers = broker.timers
        wait, self._early = self._early, None
        if wait is None:
            wait = self._new_wait()
            timers.purgatory.watch(wait, self._watched_keys())
        throttle = broker.leader_throttle
        if found.held_back and throttle is not None:
            # Read again when the quota allows more, and when the quota changes.
            now_ms = broker.clock.monotonic_ms()
            timers.purgatory.watch_also(wait, throttle)
            timeout_s = min(timeout_s, max(throttle.quota.free_ms(now_ms) - now_ms, 1) / 1000)
        timers.set_deadline(wait, timeout_s)
        for future in found.futures:
            future.add_done_callback(wait.end_threadsafe)
        self._wait, self._is_reading = wait, bool(found.pending)
        self._waiting_since = broker.loop.time()
        broker.metrics.waiting += 1
        # The results are read again later: a long wait keeps no memory.
        self._drop_results()
        _release(found.holds)
        found.holds.clear()
        wait.begin(max(least - found.size, 1))

    def _end_wait(self) -> None:
        """Add the wait that has ended to the metrics. Further calls do nothing."""
        since = self._waiting_since
        if since is None:
            return
        self._waiting_since = None
        metrics = self._broker.metrics
        metrics.waiting -= 1
        waits = metrics.wait
        if self._is_reading:
            waits = metrics.cold_wait if self._pass.is_remote else metrics.seek_wait
        waits.observe(self._broker.loop.time() - since)

    def _read_again(self) -> None:
        self._end_wait()
        future = self._future
        assert future is not None
        if future.done():
            return
        meter = self._meter
        if meter is not None:
            meter.resume()
        try:
            if self._partition_count() > MOST_AT_ONCE:
                self._start_task()
                return
            for _ in self._read_partitions(self._pass.pending):
                pass
            if self._is_time_to_answer():
                response = self._answer()
                future.remove_done_callback(self._ended)  # all is cleaned up already
                self._forget_wait()
                future.set_result(response)
        except Exception as e:
            future.set_exception(e)
        finally:
            if meter is not None:
                meter.pause()

    def _is_time_to_answer(self) -> bool:
        """Return whether to respond after a pass; otherwise begin to wait again."""
        wait = self._wait
        if self._is_enough() or (wait is not None and wait.was_changed):
            return True
        if wait is None:
            self._wait_first()
            return False
        left_s = self._deadline - self._broker.loop.time()
        if left_s <= 0 or (self._is_reading and self._pass.size):
            return True
        self._sleep(left_s)
        return False

    def _start_task(self) -> None:
        started = self._pass.pending if self._wait is not None else {}
        work = self._run(started) if self._meter is None else self._meter.follow(self._run(started))
        # The log of long turns shows the task's name.
        self._task = self._broker.loop.create_task(work, name=f"fetch of {self._context}")

    async def _run(self, started: PendingReads) -> None:
        future, piece = self._future, Slice()
        purgatory = self._broker.timers.purgatory
        assert future is not None
        try:
            self._early = self._new_wait()
            purgatory.watch(self._early, self._early_keys())
            await piece.go_on(self._read_partitions(started))
            # If the peer has left in this very turn, this task is not cancelled yet.
            if not future.done() and self._is_time_to_answer():
                if self._meter is not None and (throttle_ms := self._throttle_ms(self._meter)):
                    _release(self._pass.holds)
                    response = self._throttled(throttle_ms)
                else:
                    await piece.go_on(self._create_session())
                    response = await piece.go_on(self._respond())
                if not future.done():
                    future.set_result(response)
        except Exception as e:
            if future.done():
                raise
            future.set_exception(e)
        finally:
            self._task = None
            if self._early is not None:  # it has not become the wait
                purgatory.forget(self._early)
                self._early = None

    def _encode(self, topics: Sequence[tuple[TopicKey, Results]], session_id: int) -> Steps[Response]:
        broker, context, found = self._broker, self._context, self._pass
        holds = found.holds
        found.record_metrics()
        endpoints = broker.node_endpoints(context.listener, found.leaders) if found.leaders else ()
        parts = yield from encode_fetch_response_in_steps(
            context.api_version,
            context.correlation_id,
            topics,
            session_id=session_id,
            endpoints=endpoints,
        )
        on_done = partial(_release, holds) if holds else None
        return Response(cast("list[Part]", parts), on_done, broker.note_send_failure)
