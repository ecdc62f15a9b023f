"""Task of a replay: reads its partitions in the order of their offsets and sends them.

The state of a partition is written every second and whenever the task ends, even by an error. A killed task
leaves it up to a second behind, and the records since then are sent again. Needs pyarrow and confluent-kafka.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Final, NamedTuple

from service.base.errors import StorageError
from service.pipelines.replay_claim import CHECK_S, claim
from service.pipelines.replay_state import Acknowledged, Part, RateLimiter, rest_of
from service.remote.stores.store import ObjectStore
from service.spark.options import ReadOptions
from service.spark.plan.splits import Split
from service.spark.read.split_reader import read_split
from service.spark.schema import ReadColumn
from service.spark.store import open_beside, open_store_of
from service.spark.write.rows import Record, records_of
from service.spark.write.sender import RecordSender, SendError

log = logging.getLogger(__name__)

_COLUMNS: Final = tuple(ReadColumn(name) for name in ("key", "value", "offset", "timestamp", "headers"))


class ReplayWork(NamedTuple):
    """The rest of a partition to send."""

    part: Part
    split: Split


@dataclass(frozen=True, slots=True)
class Replayer:
    """The function of every task. Rates are the task's share; `settings` are the producer's."""

    options: ReadOptions
    state_url: str
    run: int
    into: str
    keep_partition: bool
    records_per_second: float | None
    bytes_per_second: float | None
    settings: Mapping[str, str]

    def __call__(self, works: Iterable[list[ReplayWork]]) -> Iterator[tuple[int, int]]:
        """Yield records and bytes sent, for each partition."""
        state = open_state(self.state_url, self.options)
        pace = RateLimiter(self.records_per_second, self.bytes_per_second)
        for work in (work for group in works for work in group):
            yield _Sending(self, work, state, pace).run()


def open_state(url: str, options: ReadOptions) -> ObjectStore:
    return open_beside(url, options)


class _Sending:
    """One partition, sent by one task. The sender calls back on the task's own thread."""

    def __init__(self, job: Replayer, work: ReplayWork, state: ObjectStore, pace: RateLimiter) -> None:
        self._job = job
        self._part = work.part
        self._pace = pace
        self._claim = claim(state, work.part, job.run)
        # An earlier attempt of this task may have come further than its plan.
        begin_offset = self._claim.before.next_offset
        self._split = rest_of(work.split, begin_offset)
        self._offsets = Acknowledged(begin_offset)
        self._records = self._bytes = 0
        self._checked_s = time.monotonic()

    def run(self) -> tuple[int, int]:
        sender = RecordSender(self._job.settings, acknowledged=self._acknowledged, idle=self._keep_up)
        with closing(sender):
            try:
                for offset, record in self._rows():
                    self._wait_for_turn(sender, record)
                    self._keep_up()
                    self._offsets.sent(offset)
                    sender.send(record, offset)
                sender.wait()
            except BaseException as e:
                self._give_up(sender)
                if isinstance(e, SendError):
                    part = self._part
                    raise StorageError(f"{part.topic}-{part.partition} into {e}") from e
                raise
        self._offsets.next_offset = max(self._offsets.next_offset, self._part.end_offset)
        self._save(is_ended=True)
        return self._records, self._bytes

    def _rows(self) -> Iterator[tuple[int, Record]]:
        options = self._job.options
        target = self._part.partition if self._job.keep_partition else None
        for batch in read_split(open_store_of(options), self._split, options, _COLUMNS):
            offsets = batch.column("offset").to_pylist()
            yield from zip(offsets, records_of(batch, self._job.into, target), strict=True)

    def _wait_for_turn(self, sender: RecordSender, record: Record) -> None:
        _, _, key, value, _, _ = record
        wait_s = self._pace.wait_s(time.monotonic(), len(key or b"") + len(value or b""))
        while wait_s > 0:
            began = time.monotonic()
            sender.poll(min(wait_s, CHECK_S))
            self._keep_up()
            wait_s -= time.monotonic() - began

    def _acknowledged(self, offset: int, size: int) -> None:
        self._offsets.done(offset)
        self._records += 1
        self._bytes += size

    def _keep_up(self) -> None:
        """Check the claim and save the state, once a second, before anything else is sent."""
        if time.monotonic() - self._checked_s >= CHECK_S:
            self._claim.check()
            self._save()
            self._checked_s = time.monotonic()

    def _save(self, *, is_ended: bool = False) -> None:
        self._claim.save(self._offsets.next_offset, self._records, self._bytes, is_ended=is_ended)

    def _give_up(self, sender: RecordSender) -> None:
        """Stop sending and save the state. An error here must not hide the cause; the state is then old."""
        try:
            self._save(is_ended=sender.stop())
        except StorageError as e:
            log.warning("%s-%s: its state was not saved: %s", self._part.topic, self._part.partition, e)
