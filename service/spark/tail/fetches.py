"""The batches of one split, fetched by a thread ahead of their use.

While what came last is decoded, the next fetch is under way. Bytes that are under way or not yet taken stay
within a budget; only a single answer may exceed it. A leader that moves, dies or comes back is looked for
again, by a fresh look at the metadata, until `timeout_ms` pass without anything new.
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
from service.spark.tail.brokers import Brokers
from service.spark.tail.fetched import Fetched, Wanted, error_of, fetch_request, read_fetched
from service.spark.tail.options import TailOptions
from service.spark.tail.patience import Patience
from service.spark.tail.plan import TailSplit
from service.spark.tail.topic_lookup import (
    EARLIEST,
    LATEST,
    Place,
    Standing,
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

_LOOKS_FOR_ABSENT: Final = 5
"""A topic that is missing so many times in a row is gone: brokers that just started may not know it yet."""
_SMALLEST_FETCH_BYTES: Final = 64 << 10


class Fetches:
    """``for part in fetches``, in the order of offsets. Close it, or use it in a ``with``."""

    def __init__(self, split: TailSplit, tail: TailOptions, options: ReadOptions) -> None:
        self._brokers = Brokers(tail)
        self._fetcher = _Fetcher(split, tail, options, self._brokers)
        self._budget_bytes = options.read_ahead_bytes
        self._changed = threading.Condition()
        self._parts: deque[Fetched] = deque()
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
        """Give up what is under way; the thread ends by itself."""
        with self._changed:
            self._is_over = True
            self._parts.clear()
            self._changed.notify_all()
        self._fetcher.give_up.set()
        self._brokers.abort()

    def __iter__(self) -> Iterator[Fetched]:
        while (part := self._take()) is not None:
            yield part

    def _take(self) -> Fetched | None:
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
                del part  # it is the reader's
        except BaseException as e:  # the reader raises it
            self._failure = e
        finally:
            self._brokers.close()
            with self._changed:
                self._is_over = True
                self._changed.notify_all()

    def _put(self, part: Fetched) -> bool:
        """Whether more is wanted; returns when there is room for another one like this."""
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
    """One fetch after the other. Of the thread that fetches, but for `give_up`."""

    def __init__(self, split: TailSplit, tail: TailOptions, options: ReadOptions, brokers: Brokers) -> None:
        self._split = split
        self._name = f"{split.topic}-{split.partition}"
        self._tail = tail
        self._brokers = brokers
        self._committed = options.read_committed
        self._fails = options.fail_on_data_loss
        self._fetch_bytes = options.fetch_bytes
        self._at = split.begin_offset
        self._bytes_per_offset = split.size_bytes / max(1, split.end_offset - split.begin_offset)
        self._place: Place | None = None
        self._absent = 0
        self.give_up = threading.Event()

    @property
    def next_bytes(self) -> int:
        """What the next fetch asks for: no more than about what is left of the split."""
        left = int((self._split.end_offset - self._at) * self._bytes_per_offset * 1.25)
        return min(self._fetch_bytes, max(left, 0) + _SMALLEST_FETCH_BYTES)

    def parts(self) -> Iterator[Fetched]:
        """What there is of the split. Errors name the partition."""
        patience = Patience(self._tail, self._missing(), time.monotonic, random.random)
        while self._at < self._split.end_offset and not self.give_up.is_set():
            try:
                part = self._next(patience)
            except OSError as e:
                self._place = None
                self._pause(patience.failed(e))
                continue
            except WireError as e:
                raise BrokerError(f"{self._name}: {e}") from e
            except CorruptionError as e:
                raise CorruptionError(f"{self._name}: {e}") from e
            if part is not None and part.next_offset > self._at:
                begun, self._at = self._at, part.next_offset
                self._bytes_per_offset = len(part.data) / (part.next_offset - begun)
                yield part
                del part  # it is the reader's
                # What that does with it is not time that brokers took.
                patience.progress(self._missing())

    def _missing(self) -> str:
        return f"{self._name}: nothing of offsets {self._at} to {self._split.end_offset - 1}"

    def _next(self, patience: Patience) -> Fetched | None:
        """One try: batches, or None if there are none yet."""
        if self._place is None and not self._find(patience):
            return None
        assert self._place is not None
        wanted = Wanted(
            self._split.topic_id,
            self._split.partition,
            self._at,
            self.next_bytes,
            self._place.leader_epoch,
            self._committed,
            self._tail.client.wait_max_ms,
        )
        asked = time.monotonic()
        response = self._brokers.ask(
            self._place.address,
            ApiKey.FETCH,
            fetch_request(wanted),
            timeout_s=patience.left_s + wanted.wait_max_ms / 1000,
            expected_bytes=wanted.max_bytes,
        )
        code = error_of(response, wanted)
        if code != ErrorCode.none:
            self._failed(code, patience)
            return None
        found = read_fetched(response, wanted)
        if not found.data:
            patience.check("the log does not reach so far")
            if time.monotonic() - asked < wanted.wait_max_ms / 2000:
                self.give_up.wait(self._tail.client.backoff_ms / 1000)
        return found

    def _find(self, patience: Patience) -> bool:
        """Whether the leader was found, and leads the archive's topic of the archive's cluster."""
        split = self._split
        response = self._brokers.metadata([split.topic], patience.left_s)
        check_cluster(response.cluster_id, split.cluster_id)
        found = find_topic(response, split.topic, split.topic_id)
        self._absent = self._absent + 1 if found.standing is Standing.ABSENT else 0
        if found.standing is Standing.OTHER or self._absent >= _LOOKS_FOR_ABSENT:
            self._lost(
                f"{self._name}: offsets {self._at} to {split.end_offset - 1} are lost: {found.reason}",
                split.end_offset,
            )
            return False
        self._place = found.places.get(split.partition)
        if self._place is None:
            self._pause(patience.failed(found.reason or "the partition has no leader"))
        return self._place is not None

    def _failed(self, code: int, patience: Patience) -> None:
        """What to do about an error: look for the leader, give up, or go on where the log begins now."""
        if code == ErrorCode.offset_out_of_range:
            self._out_of_range(patience)
        elif is_transient(code):
            self._place = None
            self._pause(patience.failed(named(code)))
        else:
            raise BrokerError(f"{self._name}: brokers answer {named(code)}")

    def _out_of_range(self, patience: Patience) -> None:
        split, at = self._split, self._at
        start, end = self._log_end(EARLIEST, patience), self._log_end(LATEST, patience)
        if start is None or end is None or start <= at <= end:
            # It was so when the leader looked, or it is another leader now.
            self._place = None
            self._pause(patience.failed(named(ErrorCode.offset_out_of_range)))
            return
        self._lost(
            f"{self._name}: of offsets {split.begin_offset} to {split.end_offset - 1} those from {at} on are "
            f"not there, the brokers have {start} to {end - 1}",
            start if at < start < split.end_offset else split.end_offset,
        )

    def _log_end(self, which: int, patience: Patience) -> int | None:
        """Where the leader's log begins or ends; None if it does not tell now."""
        assert self._place is not None
        key = (self._split.topic, self._split.partition)
        request = offsets_request({key: which}, timeout_ms=self._tail.client.request_timeout_ms)
        response = self._brokers.ask(
            self._place.address, ApiKey.LIST_OFFSETS, request, timeout_s=patience.left_s
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
