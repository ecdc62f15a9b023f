"""Fetches of one tail split, by a thread ahead of their use.

While the last response is decoded, the next fetch is in flight. Bytes in flight or not yet taken stay within
a budget; only a single response may exceed it. A leader that moves, dies or returns is looked up again with
fresh metadata, until `timeout_ms` pass without progress.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Final

from kio.schema.errors import ErrorCode

from service.base.errors import CorruptionError
from service.spark.errors import BrokerError, DataLossError
from service.spark.options import ReadOptions
from service.spark.tail.broker_connections import BrokerConnections
from service.spark.tail.fetched import FetchedBatches, PartitionFetch, error_of, fetch_request, read_fetched
from service.spark.tail.options import TailOptions
from service.spark.tail.plan import TailSplit
from service.spark.tail.retry_timer import RetryTimer
from service.spark.tail.topic_lookup import (
    EARLIEST,
    LATEST,
    PartitionLeader,
    TopicMatch,
    check_cluster,
    find_topic,
    is_transient,
    named,
    offsets_found,
    offsets_request,
)
from service.wire.api import ApiKey
from service.wire.errors import WireError

log = logging.getLogger(__name__)

_ABSENT_LOOKUPS: Final = 5
"""A topic that is unknown in so many consecutive look-ups is gone: a broker that just started may lack it."""
_SMALLEST_FETCH_BYTES: Final = 64 << 10


class Fetches:
    """The split's batches in the order of offsets: ``for part in fetches``. Use it in a ``with``."""

    def __init__(self, split: TailSplit, tail: TailOptions, options: ReadOptions) -> None:
        self._brokers = BrokerConnections(tail)
        self._fetcher = _Fetcher(split, tail, options, self._brokers)
        self._budget_bytes = options.read_ahead_bytes
        self._changed = threading.Condition()
        self._parts: deque[FetchedBatches] = deque()
        self._ahead_bytes = 0
        self._is_over = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="firn-tail", daemon=True)

    def __enter__(self) -> Fetches:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give up what is in flight; the thread ends by itself."""
        with self._changed:
            self._is_over = True
            self._parts.clear()
            self._changed.notify_all()
        self._fetcher.give_up.set()
        self._brokers.abort()

    def __iter__(self) -> Iterator[FetchedBatches]:
        while (part := self._next_part()) is not None:
            yield part

    def _next_part(self) -> FetchedBatches | None:
        with self._changed:
            self._changed.wait_for(lambda: self._parts or self._is_over)
            if self._parts:
                part = self._parts.popleft()
                self._ahead_bytes -= len(part.data)
                self._changed.notify_all()
                return part
        if self._failure is not None:
            raise self._failure
        return None

    def _run(self) -> None:
        try:
            for part in self._fetcher.parts():
                if not self._put(part):
                    break
                del part  # the reader owns it
        except BaseException as e:  # raised again in the reader
            self._failure = e
        finally:
            self._brokers.close()
            with self._changed:
                self._is_over = True
                self._changed.notify_all()

    def _put(self, part: FetchedBatches) -> bool:
        """Queue a part and wait for room for another like it; return whether more is wanted."""
        with self._changed:
            if self._is_over:
                return False
            self._parts.append(part)
            self._ahead_bytes += len(part.data)
            self._changed.notify_all()
            self._changed.wait_for(self._may_go_on)
            return not self._is_over

    def _may_go_on(self) -> bool:
        has_room = self._ahead_bytes + self._fetcher.next_bytes <= self._budget_bytes
        return has_room or not self._parts or self._is_over


class _Fetcher:
    """The fetches of one split, one after the other. Owned by the fetching thread, except `give_up`."""

    def __init__(
        self, split: TailSplit, tail: TailOptions, options: ReadOptions, brokers: BrokerConnections
    ) -> None:
        self._split = split
        self._name = f"{split.topic}-{split.partition}"
        self._tail = tail
        self._brokers = brokers
        self._committed = options.read_committed
        self._fails = options.fail_on_data_loss
        self._fetch_bytes = options.fetch_bytes
        self._at = split.begin_offset
        self._bytes_per_offset = split.size_bytes / max(1, split.end_offset - split.begin_offset)
        self._leader: PartitionLeader | None = None
        self._absent = 0
        self.give_up = threading.Event()

    @property
    def next_bytes(self) -> int:
        """Size of the next fetch: no more than about what is left of the split."""
        left = int((self._split.end_offset - self._at) * self._bytes_per_offset * 1.25)
        return min(self._fetch_bytes, max(left, 0) + _SMALLEST_FETCH_BYTES)

    def parts(self) -> Iterator[FetchedBatches]:
        """Yield what there is of the split. Errors name the partition."""
        retry = RetryTimer(self._tail, self._missing(), time.monotonic, random.random)
        while self._at < self._split.end_offset and not self.give_up.is_set():
            try:
                part = self._next(retry)
            except OSError as e:
                self._leader = None
                self._pause(retry.failed(e))
                continue
            except WireError as e:
                raise BrokerError(f"{self._name}: {e}") from e
            except CorruptionError as e:
                raise CorruptionError(f"{self._name}: {e}") from e
            if part is not None and part.next_offset > self._at:
                begun, self._at = self._at, part.next_offset
                self._bytes_per_offset = len(part.data) / (part.next_offset - begun)
                yield part
                del part  # the reader owns it
                # The reader's time does not count against the brokers.
                retry.progress(self._missing())

    def _missing(self) -> str:
        return f"{self._name}: nothing of offsets {self._at} to {self._split.end_offset - 1}"

    def _next(self, retry: RetryTimer) -> FetchedBatches | None:
        """Fetch once; return the batches, or None after an error."""
        if self._leader is None and not self._find_leader(retry):
            return None
        assert self._leader is not None
        wanted = PartitionFetch(
            self._split.topic_id,
            self._split.partition,
            self._at,
            self.next_bytes,
            self._leader.leader_epoch,
            self._committed,
            self._tail.client.wait_max_ms,
        )
        sent_s = time.monotonic()
        response = self._brokers.ask(
            self._leader.address,
            ApiKey.FETCH,
            fetch_request(wanted),
            timeout_s=retry.left_s + wanted.wait_max_ms / 1000,
            expected_bytes=wanted.max_bytes,
        )
        code = error_of(response, wanted)
        if code != ErrorCode.none:
            self._failed(code, retry)
            return None
        found = read_fetched(response, wanted)
        if not found.data:
            retry.check("the log ends before them")
            if time.monotonic() - sent_s < wanted.wait_max_ms / 2000:
                self.give_up.wait(self._tail.client.backoff_ms / 1000)
        return found

    def _find_leader(self, retry: RetryTimer) -> bool:
        """Look up the leader of the archive's topic in the archive's cluster; return whether there is one."""
        split = self._split
        response = self._brokers.metadata([split.topic], retry.left_s)
        check_cluster(response.cluster_id, split.cluster_id)
        found = find_topic(response, split.topic, split.topic_id)
        self._absent = self._absent + 1 if found.match is TopicMatch.ABSENT else 0
        if found.match is TopicMatch.OTHER or self._absent >= _ABSENT_LOOKUPS:
            self._lost(
                f"{self._name}: offsets {self._at} to {split.end_offset - 1} are lost: {found.reason}",
                split.end_offset,
            )
            return False
        self._leader = found.leaders.get(split.partition)
        if self._leader is None:
            self._pause(retry.failed(found.reason or "the partition has no leader"))
        return self._leader is not None

    def _failed(self, code: int, retry: RetryTimer) -> None:
        """Handle an error: look up the leader again, raise, or continue at the log's new start."""
        if code == ErrorCode.offset_out_of_range:
            self._out_of_range(retry)
        elif is_transient(code):
            self._leader = None
            self._pause(retry.failed(named(code)))
        else:
            raise BrokerError(f"{self._name}: brokers answer {named(code)}")

    def _out_of_range(self, retry: RetryTimer) -> None:
        split, at = self._split, self._at
        start, end = self._log_end(EARLIEST, retry), self._log_end(LATEST, retry)
        if start is None or end is None or start <= at <= end:
            # The log's bounds, or its leader, have changed since the fetch.
            self._leader = None
            self._pause(retry.failed(named(ErrorCode.offset_out_of_range)))
            return
        self._lost(
            f"{self._name}: of offsets {split.begin_offset} to {split.end_offset - 1} those from {at} on are "
            f"not there, the brokers have {start} to {end - 1}",
            start if at < start < split.end_offset else split.end_offset,
        )

    def _log_end(self, which: int, retry: RetryTimer) -> int | None:
        """Return the start or the end of the leader's log; None if the leader answers with an error."""
        assert self._leader is not None
        key = (self._split.topic, self._split.partition)
        request = offsets_request({key: which}, timeout_ms=self._tail.client.request_timeout_ms)
        response = self._brokers.ask(
            self._leader.address, ApiKey.LIST_OFFSETS, request, timeout_s=retry.left_s
        )
        row = offsets_found(response).get(key)
        return row.offset if row is not None and row.error_code == ErrorCode.none else None

    def _lost(self, message: str, next_offset: int) -> None:
        if self._fails:
            raise DataLossError(f"{message} (failOnDataLoss=false reads what there is)")
        log.warning("%s", message)
        self._at = next_offset

    def _pause(self, seconds: float) -> None:
        self.give_up.wait(seconds)
