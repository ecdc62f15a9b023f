"""`firn fsck` compares the rows of each object with its batches and the producers of the one before."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from service.base.threads import SystemThreads
from service.inspect.fsck_report import FsckReport
from service.inspect.partition_check import Subject, check_partition
from service.records.txn_rows import AbortedEntry, encode_row
from service.remote.format.keys import HeadKey
from service.remote.stores.memory_store import MemoryStore
from tests.support.transactional_log import TransactionalLog, random_log, snapshot_of
from tests.unit.remote.archive import CLUSTER, TIP, Archive


def archive() -> Archive:
    return Archive(MemoryStore(SystemThreads()))


def check(archive: Archive, *, deep: bool = True) -> FsckReport:
    subject = Subject(HeadKey(TIP.topic_id, TIP.partition), TIP.topic, frozenset((CLUSTER,)))
    return check_partition(archive.store, subject, deep=deep)


def errors(archive: Archive) -> list[tuple[str, str]]:
    return [(one.where, one.what) for one in check(archive).errors]


@pytest.mark.parametrize("seed", range(20))
def test_archives_of_any_transactions_are_clean_also_where_their_beginning_is_gone(seed: int) -> None:
    rng = random.Random(seed)
    log = random_log(rng, 100, base_offset=rng.choice([0, 0, 1_000]))
    borders = [batch.last_offset + 1 for batch in log.batches]
    made = archive()
    for end in sorted({*rng.sample(borders, 5), borders[-1]}):
        lost = b"" if rng.random() < 0.2 else None
        made.add_transactions(log, end, is_older=rng.random() < 0.3, snapshot=lost)
    assert errors(made) == []
    if rng.random() < 0.7:
        made.drop_before(rng.randrange(log.base_offset, borders[-1]))
    assert errors(made) == []


def two_objects(
    change: Callable[[list[AbortedEntry]], list[AbortedEntry]], *, is_cut: bool = False
) -> tuple[Archive, str]:
    """The second object has rows of 7, which began in the first one, and of 8, as `change` leaves them."""
    log = TransactionalLog()
    log.plain()
    log.write(7)
    log.write(9)
    log.end(9, is_commit=True)
    log.write(7)
    log.write(8)
    log.end(7, is_commit=False)
    log.end(8, is_commit=False)
    made = archive()
    made.add_transactions(log, 4)
    rows = b"".join(map(encode_row, change(log.rows)))
    key = made.add_transactions(log, 8, rows=rows).key
    if is_cut:
        made.drop_before(4)
    return made, key


@pytest.mark.parametrize("is_cut", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        lambda rows: [],
        lambda rows: rows[:1],
        lambda rows: rows[1:],
        lambda rows: [rows[0], rows[1]._replace(first_offset=4)],
        lambda rows: [rows[0]._replace(producer_id=6), rows[1]],
        lambda rows: [rows[0], rows[1]._replace(last_stable_offset=6)],
        lambda rows: [rows[0]._replace(last_offset=5), rows[1]],
    ],
)
def test_rows_that_are_not_those_of_the_batches_are_named(
    change: Callable[[list[AbortedEntry]], list[AbortedEntry]], is_cut: bool
) -> None:
    made, key = two_objects(change, is_cut=is_cut)
    found = errors(made)
    assert [where for where, _ in found] == [key]
    assert "transaction index: row" in found[0][1]
    assert check(made, deep=False).is_clean, "footers alone do not tell"


def test_a_first_offset_below_the_object_is_proved_by_the_one_before() -> None:
    made, key = two_objects(lambda rows: [rows[0]._replace(first_offset=0), rows[1]])
    assert [where for where, _ in errors(made)] == [key]
    made.drop_before(4)
    assert errors(made) == [], "what came before is gone, and nothing tells"


@pytest.mark.parametrize("snapshot", [snapshot_of({}), snapshot_of({7: 2}), snapshot_of({7: 1, 5: 3})])
def test_producers_whose_open_transactions_are_not_those_of_the_batches_are_named(snapshot: bytes) -> None:
    log = TransactionalLog()
    log.plain()
    log.write(7)
    log.plain()
    log.write(7)
    log.end(7, is_commit=False)
    made = archive()
    key = made.add_transactions(log, 3, snapshot=snapshot).key
    made.add_transactions(log, 5)
    found = errors(made)
    assert [where for where, _ in found] == [key], "the next one is checked by its own rows"
    assert "producer snapshot" in found[0][1]
