"""Logs of open, committed and aborted transactions, made at random, and what must be known of them."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field
from typing import NamedTuple

from service.records.builder import BatchBuilder
from service.records.producer_snapshot import ProducerRow, encode_rows
from service.records.txn_rows import AbortedEntry
from tests.support.built_batches import build_batch

START_MS = 1_700_000_000_000


class Batch(NamedTuple):
    """One batch: of which producer (-1: of none), and whether it is a marker that commits or aborts."""

    data: bytes
    base_offset: int
    last_offset: int
    producer_id: int = -1
    is_commit: bool | None = None


@dataclass
class TransactionalLog:
    """Batches and, kept beside them by hand, the index rows and open transactions after each."""

    base_offset: int = 0
    batches: list[Batch] = field(default_factory=list)
    rows: list[AbortedEntry] = field(default_factory=list)
    opened: dict[int, int] = field(default_factory=dict)
    history: list[tuple[int, dict[int, int]]] = field(default_factory=list)
    """(end offset, open transactions) after each batch"""

    @property
    def end_offset(self) -> int:
        return self.batches[-1].last_offset + 1 if self.batches else self.base_offset

    def plain(self, count: int = 1) -> None:
        base = self.end_offset
        rows = [(START_MS + base + i, b"k", b"plain %d" % (base + i)) for i in range(count)]
        self._add(Batch(bytes(build_batch(rows, base_offset=base, leader_epoch=0)), base, base + count - 1))

    def write(self, producer_id: int, count: int = 1) -> None:
        """Add a batch of the producer's transaction, and begin that where none is open."""
        base = self.end_offset
        builder = BatchBuilder(
            base, leader_epoch=0, producer_id=producer_id, producer_epoch=0, is_transactional=True
        )
        for i in range(count):
            builder.add(START_MS + base + i, None, b"%d of %d" % (base + i, producer_id))
        self.opened.setdefault(producer_id, base)
        self._add(Batch(bytes(builder.build()), base, base + count - 1, producer_id))

    def end(self, producer_id: int, *, is_commit: bool, coordinator_epoch: int = 0) -> None:
        """Add a marker; an abort that ends data makes a row."""
        base = self.end_offset
        builder = BatchBuilder(
            base,
            leader_epoch=0,
            producer_id=producer_id,
            producer_epoch=0,
            is_transactional=True,
            is_control=True,
        )
        key, value = struct.pack(">hh", 0, int(is_commit)), struct.pack(">hi", 0, coordinator_epoch)
        builder.add(START_MS + base, key, value)
        first = self.opened.pop(producer_id, None)
        if first is not None and not is_commit:
            stable = min(self.opened.values(), default=base + 1)
            self.rows.append(AbortedEntry(producer_id, first, base, stable))
        self._add(Batch(bytes(builder.build()), base, base, producer_id, is_commit))

    def _add(self, batch: Batch) -> None:
        self.batches.append(batch)
        self.history.append((batch.last_offset + 1, dict(self.opened)))

    def open_at(self, end_offset: int) -> dict[int, int]:
        """Return the transactions that are open before `end_offset`, a border of batches."""
        return next((opened for end, opened in reversed(self.history) if end <= end_offset), {})

    def overlapping(self, fetch_offset: int, bound: int) -> list[AbortedEntry]:
        """Return the rows that matter to a read of these offsets, by looking at each."""
        return [row for row in self.rows if row.last_offset >= fetch_offset and row.first_offset < bound]

    def has_transactions(self, begin: int, end: int) -> bool:
        return any(batch.producer_id >= 0 for batch in self.batches if begin <= batch.base_offset < end)


def random_log(
    rng: random.Random, batches: int, producers: int = 4, base_offset: int = 0
) -> TransactionalLog:
    """Return a log in which transactions of a few producers overlap, some very long, with plain stretches."""
    log = TransactionalLog(base_offset)
    is_busy = True
    for _ in range(batches):
        is_busy = is_busy ^ (rng.random() < 0.1)
        producer = rng.randrange(producers)
        if not is_busy:
            log.plain(rng.randint(1, 3))
        elif rng.random() < (0.1 if producer == 0 else 0.5):
            log.end(producer, is_commit=rng.random() < 0.4)
        else:
            log.write(producer, rng.randint(1, 3))
    return log


def snapshot_of(opened: dict[int, int]) -> bytes:
    """Return a producer snapshot with these open transactions, and a producer without one."""
    rows = [ProducerRow(pid, 0, 0, first, 0, START_MS, 0, first) for pid, first in sorted(opened.items())]
    return encode_rows([*rows, ProducerRow(99, 3, 7, 1, 1, START_MS, -1, -1)])
