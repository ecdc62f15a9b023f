"""Readers of committed transactions, of which the older ones lie in the bucket only."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from service.inspect.fsck import fsck
from service.records.batch import read_header
from service.remote.stores.obstore_store import open_store
from tests.node.conftest import NodeThread, Talk
from tests.node.requests import DAY, list_offset
from tests.node.test_read_committed import Transactions, committed
from tests.support.processes import wait_until
from tests.support.world import WORLD


class Ledger:
    """A tiered topic of transactions, and which of its values a reader is to see in the end."""

    def __init__(self, node: NodeThread, talk: Talk) -> None:
        self.talk = talk
        self.topic_id = talk.create(
            "t",
            remote_storage_enable="true",
            retention_ms="-1",
            local_retention_bytes="1",
            internal_segment_bytes="20000",
            file_delete_delay_ms="0",
        ).topic_id
        self.transactions = Transactions(node, self.topic_id, {})
        self.seen: list[tuple[int, bytes]] = []
        self._open: dict[int, list[tuple[int, bytes]]] = {}
        self._next = 0

    def plain(self) -> None:
        value = b"plain %d" % self._next + b"." * 300
        assert self.talk.produce(self.topic_id, [value], DAY).error_code == 0
        self.seen.append((self._next, value))
        self._next += 1

    def write(self, producer_id: int) -> None:
        value = b"%d of %d" % (self._next, producer_id) + b"." * 300
        self.transactions.send(producer_id, value)
        self._open.setdefault(producer_id, []).append((self._next, value))
        self._next += 1

    def end(self, producer_id: int, *, is_commit: bool) -> None:
        self.transactions.end(producer_id, is_commit=is_commit)
        written = self._open.pop(producer_id, [])
        self._next += 1
        if is_commit:
            self.seen = sorted([*self.seen, *written])

    def some(self, rng: random.Random, count: int) -> None:
        for _ in range(count):
            producer_id = rng.randrange(4)
            if rng.random() < 0.3:
                self.plain()
            elif rng.random() < 0.35:
                self.end(producer_id, is_commit=rng.random() < 0.5)
            else:
                self.write(producer_id)

    @property
    def local_start(self) -> int:
        return int(list_offset(self.talk, -4).offset)

    @property
    def stable(self) -> int:
        return min((first for (first, _), *_ in self._open.values()), default=self._next)

    def read(self, max_bytes: int) -> list[bytes | None]:
        """Return what a client shows that reads from the log's start up to what is stable."""
        at, found = 0, []
        while at < self.stable:
            answer = self.talk.fetch(
                self.topic_id, at, isolation_level=1, partition_max_bytes=max_bytes, max_wait=5000
            )
            assert (answer.error_code, answer.last_stable_offset) == (0, self.stable)
            data = memoryview(answer.records or b"")
            assert len(data), f"nothing at {at}, the border is at {self.local_start}"
            found += committed(answer)
            while len(data) > 61 and read_header(data).size <= len(data):
                at = read_header(data).next_offset
                data = data[read_header(data).size :]
        return found

    @property
    def expected(self) -> list[bytes]:
        return [value for offset, value in self.seen if offset < self.stable]


@pytest.fixture
def ledger(start: Callable[..., NodeThread], tmp_path: Path) -> Iterator[Ledger]:
    (tmp_path / "bucket").mkdir()
    node = start(firn_remote_url=f"file://{tmp_path}/bucket")
    with node.client() as client:
        yield Ledger(node, Talk(client))


def test_readers_of_committed_transactions_do_not_notice_the_border(ledger: Ledger, tmp_path: Path) -> None:
    rng = random.Random(5)
    ledger.write(9)
    ledger.some(rng, 300)
    ledger.end(9, is_commit=False)
    for producer_id in range(4):
        ledger.end(producer_id, is_commit=bool(producer_id % 2))
    ledger.some(rng, 150)
    wait_until("segments to be offloaded", lambda: ledger.local_start > 250, 80)
    assert ledger.read(1 << 20) == ledger.expected
    assert ledger.read(3000) == ledger.expected
    assert len(ledger.expected) > 100
    assert fsck(open_store(f"file://{tmp_path}/bucket", world=WORLD), deep=True).is_clean


def test_an_open_transaction_keeps_all_behind_it_local_until_it_ends(ledger: Ledger) -> None:
    for _ in range(100):
        ledger.plain()
    ledger.write(9)
    for _ in range(150):
        ledger.plain()
    wait_until("segments to be offloaded", lambda: ledger.local_start > 40, 80)
    assert ledger.local_start <= 100
    why = ledger.transactions.node.node.parts.cold.tiering.reasons
    wait_until("the reason", lambda: any("producer 9 has left a transaction" in one for one in why.values()))
    assert ledger.read(20_000) == ledger.expected
    ledger.end(9, is_commit=False)
    wait_until("the rest to be offloaded", lambda: ledger.local_start > 200, 80)
    assert not why
    assert ledger.read(1 << 20) == ledger.expected
    assert len(ledger.expected) == 250
