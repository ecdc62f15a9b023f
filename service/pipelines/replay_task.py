"""What a task of a replay does: reads its partitions in the order of their offsets and produces them.

The state of a partition is an object of its own, written every second and whenever the task ends, be it by
an error. A task that is killed leaves it up to a second behind, and what came after is sent again.
Needs pyarrow and confluent-kafka.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from service.base.errors import StorageError
from service.pipelines.replay_state import (
    MAX_STATE_BYTES,
    Acknowledged,
    Pace,
    Part,
    PartState,
    decode_state,
    rest_of,
)
from service.remote.errors import ObjectNotFound
from service.remote.store import ObjectStore
from service.spark.options import ReadOptions
from service.spark.plan.splits import Split
from service.spark.read.split_reader import read_split
from service.spark.schema import Column
from service.spark.store import open_beside, open_store_of

SAVE_INTERVAL_S: Final = 1.0
_COLUMNS: Final = tuple(Column(name) for name in ("key", "value", "offset", "timestamp", "headers"))
_CLIENT: Final = {
    "enable.idempotence": "true",
    "linger.ms": "20",
    "partitioner": "murmur2_random",  # as Java's producer: a key goes where it would have gone
    "message.max.bytes": "1000000000",
    "queue.buffering.max.kbytes": str(64 << 10),
}


class Work(NamedTuple):
    part: Part
    split: Split


@dataclass(frozen=True, slots=True)
class Replayer:
    """Sent to every task. Rates are the task's share; `client` wins over what is set here."""

    options: ReadOptions
    state_url: str
    into: str
    keep_partition: bool
    records_per_second: float | None
    bytes_per_second: float | None
    client: Mapping[str, str]

    def __call__(self, works: Iterable[list[Work]]) -> Iterator[tuple[int, int]]:
        """Yields records and bytes sent, for each partition."""
        from confluent_kafka import Producer

        state = open_state(self.state_url, self.options)
        pace = Pace(self.records_per_second, self.bytes_per_second)
        producer = Producer({**_CLIENT, **self.client})
        for work in (work for group in works for work in group):
            sending = _Sending(self, work, state, pace, producer)
            yield sending.run()


def open_state(url: str, options: ReadOptions) -> ObjectStore:
    return open_beside(url, options)


def read_state(store: ObjectStore, part: Part) -> PartState:
    """Where a partition is; at its beginning when nothing of it was sent."""
    try:
        return decode_state(store.get(part.key, max_size=MAX_STATE_BYTES))
    except ObjectNotFound:
        return PartState(part.begin_offset)


class _Sending:
    """One partition, by one task. Callbacks run inside `poll` and `flush`, on the task's own thread."""

    def __init__(self, job: Replayer, work: Work, state: ObjectStore, pace: Pace, producer: Any) -> None:
        self._job = job
        self._part = work.part
        self._store = state
        self._pace = pace
        self._producer = producer
        # A task that Spark tries again has come further than its plan.
        self._before = read_state(state, work.part)
        self._split = rest_of(work.split, self._before.next_offset)
        self._seen = Acknowledged(self._before.next_offset)
        self._records = self._bytes = 0
        self._failure: str | None = None
        self._saved_s = time.monotonic()

    def run(self) -> tuple[int, int]:
        target = self._part.partition if self._job.keep_partition else -1
        try:
            for offset, key, value, timestamp_ms, headers in self._rows():
                self._send(target, offset, key, value, timestamp_ms, headers)
            while self._seen.waiting and self._failure is None:
                self._producer.poll(0.1)
                self._save_at_times()
            self._check()
            self._seen.next_offset = max(self._seen.next_offset, self._part.end_offset)
        finally:
            self._save()
        return self._records, self._bytes

    def _rows(self) -> Iterator[tuple[int, bytes | None, bytes | None, int, list[tuple[str, bytes | None]]]]:
        import pyarrow as pa

        options = self._job.options
        for batch in read_split(open_store_of(options), self._split, options, _COLUMNS):
            keys, values, offsets, times, headers = batch.columns
            columns = (offsets, keys, values, times.cast(pa.int64()), headers)
            for offset, key, value, micros, found in zip(*(c.to_pylist() for c in columns), strict=True):
                yield offset, key, value, micros // 1000, [(h["key"], h["value"]) for h in found or ()]

    def _send(
        self,
        target: int,
        offset: int,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int,
        headers: list[tuple[str, bytes | None]],
    ) -> None:
        size = len(key or b"") + len(value or b"")
        wait_s = self._pace.wait_s(time.monotonic(), size)
        while wait_s > 0:
            began = time.monotonic()
            self._producer.poll(min(wait_s, SAVE_INTERVAL_S))
            self._save_at_times()
            wait_s -= time.monotonic() - began
        self._seen.sent(offset)
        while True:
            self._check()
            try:
                self._producer.produce(
                    self._job.into,
                    value,
                    key,
                    partition=target,
                    timestamp=max(timestamp_ms, 0),
                    headers=headers or None,
                    on_delivery=partial(self._delivered, offset, size),
                )
                break
            except BufferError:
                self._producer.poll(0.1)
                self._save_at_times()
        self._producer.poll(0)
        self._save_at_times()

    def _delivered(self, offset: int, size: int, error: Any, _: Any) -> None:
        if error is not None:
            self._failure = self._failure or f"offset {offset} was not accepted: {error}"
            return
        self._seen.done(offset)
        self._records += 1
        self._bytes += size

    def _check(self) -> None:
        if self._failure is not None:
            part = self._part
            raise StorageError(f"{part.topic}-{part.partition} into {self._job.into}: {self._failure}")

    def _save_at_times(self) -> None:
        if time.monotonic() - self._saved_s >= SAVE_INTERVAL_S:
            self._save()

    def _save(self) -> None:
        before = self._before
        state = PartState(
            self._seen.next_offset, before.records + self._records, before.size_bytes + self._bytes
        )
        self._store.put(self._part.key, state.encode())
        self._saved_s = time.monotonic()
