"""Random orders of erasure in random logs, killed at random calls of the disk, against a model of records."""

from __future__ import annotations

import contextlib
import errno
import itertools
import random
import shutil
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from service.base.clock import ManualClock
from service.base.errors import CorruptionError, StorageError
from service.config.settings import LogConfig
from service.hot.cleaning.erasing import LocalErasure
from service.hot.cleaning.log_rewrite import Aborted
from service.hot.log import LocalLog
from service.records.batch import CompressionType
from service.records.decode import Record
from service.records.erasure import ANY_TIME
from tests.support.compaction import START_MS, Pair
from tests.support.fault_disk import FaultDisk
from tests.support.world import make_world
from tests.unit.hot.cleanings import put, records_in
from tests.unit.hot.erasures import erase, frames, order_of
from tests.unit.hot.logs import TIP

HISTORIES = 200
MODELS = 10
MOST_CALLS = 130
"""About as many as an erasure in such a log makes, and the next start."""
KEYS = [b"a", b"b", b"c", b"d", None]
CODECS = [*CompressionType]
KNOWN = (StorageError, CorruptionError, Aborted)


class Model(NamedTuple):
    """A log in a folder, and what is in it."""

    folder: Path
    end: int
    records: list[Record]
    frames: list[tuple[int, ...]]


def opened(folder: Path, point: int, disk: FaultDisk | None = None) -> LocalLog:
    config = LogConfig(segment_bytes=700, index_interval_bytes=150)
    world = make_world(ManualClock(START_MS), disk)
    return LocalLog.open(folder / "events-0", TIP, config, world=world, recovery_point=point)


def filled(folder: Path, chance: random.Random) -> Model:
    log = opened(folder, 0)
    sequences = {1: 0, 2: 0}
    for n in range(chance.randrange(5, 30)):
        pairs = [
            Pair(chance.choice(KEYS), b"x" * chance.randrange(60)) for _ in range(chance.randrange(1, 6))
        ]
        pid = chance.choice((-1, 1, 2))
        producer = (-1, -1, -1)
        if pid > 0:
            producer = pid, 0, sequences[pid]
            sequences[pid] += len(pairs)
        put(log, pairs, codec=chance.choice(CODECS), timestamp=START_MS + 10 * n, producer=producer)
        if chance.random() < 0.1:
            log.appender.roll()
    log.durability.flush()
    model = Model(folder, log.log_end_offset, records_in(log), frames(log))
    log.close(clean=False)
    return model


def takes(order: LocalErasure, key: bytes | None, one: Record) -> bool:
    """Return whether an order for `key` takes a record; the model of the whole erasure."""
    is_early = order.keys.before_ms < 0 or one.timestamp < order.keys.before_ms
    return one.key is not None and one.key == key and one.offset < order.end_offset and is_early


def test_no_kill_loses_a_record_or_calls_an_order_done_that_is_not(tmp_path: Path) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance = random.Random(seed)
    models = [filled(tmp_path / f"model-{n}", chance) for n in range(MODELS)]
    kills = 0
    for _ in range(HISTORIES):
        model = chance.choice(models)
        folder = tmp_path / "now"
        shutil.copytree(model.folder, folder)
        orders = []
        for number in range(chance.randrange(1, 3)):
            key, end = chance.choice(KEYS[:4]), chance.randrange(model.end + 1)
            assert key is not None
            before = chance.choice((ANY_TIME, START_MS + chance.randrange(300)))
            orders.append((key, order_of(key, end=end, order_id=UUID(int=number + 1), before_ms=before)))
        ids = [order.order_id for _, order in orders]
        disk = FaultDisk()
        log = opened(folder, model.end, disk)
        for done, (_, order) in enumerate(orders):
            while not log.state.has_erased(order.order_id):
                call = chance.randrange(MOST_CALLS)
                fault = disk.fail("*", errno.EIO, after=call)
                with contextlib.suppress(*KNOWN):
                    erase(log, order, open_orders=ids, buffer_bytes=chance.choice((1, 64 << 10)))
                if fault.hits:
                    kills += 1
                    disk.heal()
                    disk.fail("*", errno.EIO, after=chance.randrange(60))
                    with contextlib.suppress(*KNOWN):
                        opened(folder, model.end, disk)
                    disk.heal()
                    log = opened(folder, model.end, disk)
                disk.heal()
                check(log, model, orders, done)
        check(log, model, orders, len(orders))
        log.close(clean=False)
        shutil.rmtree(folder)
    assert kills > HISTORIES // 4


def test_an_end_at_any_call_of_the_disk_is_put_right(tmp_path: Path) -> None:
    model = filled(tmp_path / "model", random.Random(39))
    order = order_of(b"a", b"b", end=model.end - 1)
    for call in itertools.count():
        folder, disk = tmp_path / "now", FaultDisk()
        shutil.copytree(model.folder, folder)
        log = opened(folder, model.end, disk)
        fault = disk.fail("*", errno.EIO, after=call)
        with contextlib.suppress(*KNOWN):
            erase(log, order)
        disk.heal()
        log = opened(folder, model.end, disk)
        stays = [one for one in model.records if one.key not in (b"a", b"b") or one.offset == model.end - 1]
        assert set(stays) <= set(records_in(log)) <= set(model.records), call
        if log.state.has_erased(order.order_id):
            assert records_in(log) == stays, call
        erase(log, order)
        assert records_in(log) == stays, call
        assert frames(log) == model.frames, call
        log.close(clean=False)
        shutil.rmtree(folder)
        if not fault.hits:
            assert call > 100
            return


def check(log: LocalLog, model: Model, orders: list[tuple[bytes, LocalErasure]], done: int) -> None:
    """Each record is there that no order takes, none that a done one takes, and no other but before it."""
    found = records_in(log)
    begun = orders[: done + 1]
    stays = [one for one in model.records if not any(takes(order, key, one) for key, order in begun)]
    may_stay = set(model.records)
    for key, order in orders:
        if log.state.has_erased(order.order_id):
            may_stay -= {one for one in model.records if takes(order, key, one)}
    assert set(stays) <= set(found) <= may_stay
    assert frames(log) == model.frames
    assert log.log_end_offset == model.end
    left = {path.suffix for path in log.dir.iterdir()}
    assert ".cleaned" not in left or log.failure is None
