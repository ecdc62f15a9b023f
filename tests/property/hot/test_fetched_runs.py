"""Batches that are appended at once leave what appending one by one does: files, offsets and producers."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from service.base.clock import ManualClock
from service.hot.log import LocalLog
from service.records.batch import stamp
from service.records.scan import scan_batches
from tests.unit.hot.logs import START_MS, batch, open_log

CASES = 60


def batches(chance: random.Random, count: int) -> list[bytes]:
    """With rising offsets, of one epoch mostly, of some producers."""
    offset, epoch, timestamp = 0, 1, START_MS
    sequences: dict[int, int] = {}
    made = []
    gaps, is_steady = chance.random() < 0.2, chance.random() < 0.7
    for _ in range(count):
        size = chance.choice((1, 1, 2, 7, 40))
        producer = chance.choice((-1, -1, 3, 4, 5))
        sequence = sequences.get(producer, 0) if producer >= 0 else -1
        sequences[producer] = sequence + size
        timestamp += chance.choice((0, 1, 50, -30))
        one = batch(
            size,
            timestamp=timestamp,
            value=b"v" * chance.choice((1, 30, 300)),
            producer_id=producer,
            epoch=0 if producer >= 0 else -1,
            sequence=sequence,
        ).data
        if not is_steady and chance.random() < 0.05:
            epoch += chance.randrange(1, 3)
        if gaps and chance.random() < 0.1:
            offset += chance.randrange(1, 9)
        stamp(one, 0, offset, epoch)
        offset += size
        made.append(bytes(one))
    return made


def left_by(log: LocalLog) -> object:
    producers = {
        pid: (entry.epoch, entry.last_timestamp, entry.batches, entry.txn_first_offset)
        for pid, entry in log.producers
    }
    state = log.state
    offsets = (log.log_end_offset, log.size, state.gaps_below, log.producers.end_offset)
    files = {path.name: path.read_bytes() for path in log.dir.iterdir()}
    return offsets, log.epochs.entries, producers, sorted(files.items())


@pytest.mark.parametrize("first", range(0, CASES, 20))
def test_a_run_leaves_what_its_batches_do(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 20):
        chance = random.Random(seed)
        options: dict[str, Any] = {
            "segment_bytes": chance.choice((2_000, 30_000, 1 << 30)),
            "index_interval_bytes": chance.choice((0, 300, 4096)),
            "segment_ms": chance.choice((100, 1 << 40)),
            "segment_index_bytes": chance.choice((120, 10 << 20)),
            "cleanup_policy": chance.choice(("delete", "compact")),
        }
        one, other = (
            open_log(tmp_path / f"{seed}-{name}", ManualClock(START_MS), **options)
            for name in ("one", "other")
        )
        made = batches(chance, chance.randrange(2, 150))
        while made:
            count = chance.choice((1, 2, 5, 30, 100))
            data = b"".join(made[:count])
            del made[:count]
            one.append_raw(memoryview(data))
            padded = memoryview(bytes(7) + data)
            other.append_fetched(padded, scan_batches(padded, 7))
            if chance.random() < 0.1:
                end = chance.randrange(max(one.log_end_offset - 30, 0), one.log_end_offset + 1)
                assert one.end_after(end) == other.end_after(end)
                if one.end_after(end) == one.log_end_offset:
                    continue
                assert one.truncate_to(end) == other.truncate_to(end)
                break
        assert left_by(one) == left_by(other), f"seed {seed}: {options}"
